"""What all parts of one run share, created with its first task. Most runs of cron find none, and import no json."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from ..interrupts.alarm import Alarm
from ..interrupts.stop import Stop
from ..messages.classes import namespace_of_module
from ..model.task import ClaimedTask
from ..settings.load import Settings
from ..stores import Store
from .callables import Callables
from .heartbeat import Heartbeat
from .limits import RunLimits
from .result import RunResult
from .stats import RunStats

MAY_BE_OLDER_SECONDS = 60.0
"""An upload takes time: a row that was added this long before its end may need the new code, too."""


class CodeFiles:
    """The `.env`, and the files of imported modules in the deployment's folder or of listed packages."""

    def __init__(self, folder: Path, modules: Sequence[str], since: float) -> None:
        """`since` is when the process began, by time.time: it has all code that is older."""
        self._folder = os.path.join(folder, "")
        self._packages = {name.partition(".")[0] for name in modules}
        self._since = since

    def are_newer_for(self, waited_seconds: float) -> bool:
        """Whether a task that waited so long may need a newer file than this process has read.

        Not if it was added long before the change: else a file that changes all the time would keep it for ever.
        """
        changed_at = max(map(_changed_at, self._paths()))
        return self._since < changed_at and time.time() - waited_seconds > changed_at - MAY_BE_OLDER_SECONDS

    def _paths(self) -> Iterator[str]:
        yield f"{self._folder}.env"
        for name, module in list(sys.modules.items()):
            path = namespace_of_module(module).get("__file__") if issubclass(type(module), ModuleType) else None
            if type(path) is str and (path.startswith(self._folder) or name.partition(".")[0] in self._packages):
                yield path


def _changed_at(path: str) -> float:
    """When a file was written or put there, even if the upload kept its old mtime."""
    with suppress(OSError):
        return os.stat(path).st_ctime
    return 0.0


class RunContext(NamedTuple):
    """One run, for its parts."""

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
    """None if the process is not ours: no process with newer code will follow."""

    def needs_newer_code(self, task: ClaimedTask) -> bool:
        """Whether a new process may be able to run this task, as newer code was uploaded."""
        return self.code_files is not None and self.code_files.are_newer_for(task.waited_seconds)

    @property
    def keeps_results(self) -> bool:
        """Whether the rows of completed tasks stay, with their results."""
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
    """In the `with`, code of tasks can run with a timeout and the heartbeat."""
    callables = callables or Callables(settings.modules, settings.folder)
    code_files = CodeFiles(settings.folder, settings.modules, stop.began_at()) if stop.ends_process else None
    with (
        Alarm(stop, settings.lease_seconds / 4) as limit,
        Heartbeat(store, limit, settings.lease_seconds, settings.timeout_seconds, bool(stop.ends_process)) as heartbeat,
    ):
        yield RunContext(store, settings, callables, heartbeat, limit, stop, result, stats, limits, code_files)
