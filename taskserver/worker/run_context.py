"""The things that all parts of one run share. equipment.py makes them, and the parts."""

from __future__ import annotations

from typing import NamedTuple

from ..interrupts.stopping import Stop
from ..interrupts.time_limit import TimeLimit
from ..settings.load import Settings
from ..stores import Store
from .callables import Callables
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
    time_limit: TimeLimit
    stop: Stop
    result: RunResult
    stats: RunStats
    limits: RunLimits

    @property
    def keeps_results(self) -> bool:
        """Whether the rows of completed tasks stay, and with them the results of the tasks."""
        return self.settings.mode != "delete"
