"""The things that all parts of one run share. equipment.py makes them, and the parts."""

from __future__ import annotations

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
    code_files: CodeFiles | None
    """None where no other process with newer code is to follow, as the process belongs to others."""
    heartbeat: Heartbeat
    time_limit: Alarm
    stop: Stop
    result: RunResult
    stats: RunStats
    limits: RunLimits

    def needs_newer_code(self, task: ClaimedTask) -> bool:
        """Whether another process may run a task that this one cannot, as its code was put there later."""
        return self.code_files is not None and self.code_files.are_newer_for(task.waited_seconds)

    @property
    def keeps_results(self) -> bool:
        """Whether the rows of completed tasks stay, and with them the results of the tasks."""
        return self.settings.mode != "delete"
