"""Puts the parts of a run together: heartbeat, executor, the ways to execute. Imported with the first task of a run.

Most runs of a crontab find no task, and need neither json nor inspect.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from ..interrupts.alarm import Alarm
from ..interrupts.stop import Stop
from ..settings.load import Settings
from ..stores import Store
from .alone import AloneExecution
from .attempts import Attempts
from .batch import BatchExecution
from .between import Between
from .callables import Callables
from .code_files import CodeFiles
from .completion import Completions
from .executor import Executions, Executor
from .failure_hook import FailureHook
from .finishing import Finishing
from .heartbeat import Heartbeat
from .limits import RunLimits
from .reporting import Reporter
from .result import RunResult
from .run_context import RunContext
from .setup import Setup
from .shared import SharedExecution
from .starts import Starts
from .stats import RunStats
from .transactional import TransactionalExecution


class Equipment(NamedTuple):
    """The parts that the loop of a run uses."""

    executor: Executor
    finishing: Finishing
    heartbeat: Heartbeat
    stats: RunStats
    reporter: Reporter
    setup: Setup
    between: Between


@contextmanager
def equipped(
    store: Store,
    settings: Settings,
    stop: Stop,
    result: RunResult,
    stats: RunStats,
    limits: RunLimits,
    callables: Callables | None = None,
) -> Iterator[Equipment]:
    """In the `with`, tasks can be run."""
    callables = callables or Callables(settings.modules, settings.folder)
    code_files = CodeFiles(settings.folder, settings.modules, stop.began_at()) if stop.ends_process else None
    with (
        Alarm(stop, settings.lease_seconds / 4) as limit,
        Heartbeat(store, limit, settings.lease_seconds, settings.timeout_seconds, bool(stop.ends_process)) as heartbeat,
    ):
        run = RunContext(store, settings, callables, code_files, heartbeat, limit, stop, result, stats, limits)
        between = Between(settings.between, run)
        reporter = Reporter(run, FailureHook(settings.on_failure, run, between))
        finishing = Finishing(store, reporter)
        attempts = Attempts(run, finishing, reporter, between)
        starts = Starts(run, reporter)
        completions = Completions(run, attempts, reporter)
        alone = AloneExecution(run, attempts, finishing, reporter, completions)
        executions = Executions(
            alone,
            TransactionalExecution(run, attempts, finishing, reporter, completions),
            BatchExecution(run, attempts, starts, finishing, reporter),
            SharedExecution(run, attempts, starts, finishing, reporter, alone),
        )
        executor = Executor(run, attempts, finishing, reporter, executions)
        yield Equipment(executor, finishing, heartbeat, stats, reporter, Setup(settings.setup, run), between)
