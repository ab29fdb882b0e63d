"""What all parts of one run share, made with its first task. Most runs of a crontab find none, and import no json."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from ..interrupts.alarm import Alarm
from ..interrupts.stop import Stop
from ..model.task import ClaimedTask
from ..settings.load import Settings
from ..stores import Store
from .callables import Callables
from .code_files import CodeFiles
from .heartbeat import Heartbeat
from .limits import RunLimits
from .result import RunResult
from .stats import RunStats


class RunContext(NamedTuple):
    """One run, as its parts know it."""

    store: Store
    settings: Settings
    callables: Callables
    heartbeat: Heartbeat
    alarm: Alarm
    stop: Stop
    result: RunResult
    stats: RunStats
    limits: RunLimits
    code_files: CodeFiles | None
    """None if no other process with newer code follows, as the process belongs to others."""

    def needs_newer_code(self, task: ClaimedTask) -> bool:
        """Whether another process may run a task that this one cannot, as its code was put there later."""
        return self.code_files is not None and self.code_files.are_newer_for(task.waited_seconds)

    @property
    def keeps_results(self) -> bool:
        """Whether the rows of completed tasks stay, and with them the results of the tasks."""
        return self.settings.mode != "delete"


@contextmanager
def watching(
    store: Store,
    settings: Settings,
    stop: Stop,
    result: RunResult,
    stats: RunStats,
    limits: RunLimits,
    callables: Callables | None,
) -> Iterator[RunContext]:
    """In the `with`, code of tasks can run: it has a timeout, and the heartbeat beside it."""
    callables = callables or Callables(settings.modules, settings.folder)
    code_files = CodeFiles(settings.folder, settings.modules, stop.began_at()) if stop.ends_process else None
    with (
        Alarm(stop, settings.lease_seconds / 4) as limit,
        Heartbeat(store, limit, settings.lease_seconds, settings.timeout_seconds, bool(stop.ends_process)) as heartbeat,
    ):
        yield RunContext(store, settings, callables, heartbeat, limit, stop, result, stats, limits, code_files)
