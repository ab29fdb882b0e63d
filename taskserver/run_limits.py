"""How far a run may go, and the reason for which it is to end."""

from __future__ import annotations

import resource
import sys
import time
from typing import NamedTuple

from .run_result import Reason, RunResult
from .stopping import Stop


class Limits(NamedTuple):
    """How far a run may go."""

    max_tasks: int = 0
    """0: no limit."""
    batch: int = 100
    """Claimed at once, at most."""
    max_seconds: float | None = None
    max_megabytes: float | None = None
    """Of memory that the process has, in units of 1,000,000 bytes."""


class RunLimits:
    """The limits of one run, and how far it has gone."""

    def __init__(self, limits: Limits, stop: Stop, result: RunResult) -> None:
        self._limits = limits
        self._stop = stop
        self._result = result
        self._began_at = time.monotonic()
        self.called_with_others = 0
        """Of the tasks that were taken up: those for which no call was made of their own."""

    def reason_to_end(self) -> Reason | None:
        """Why nothing more is to be claimed or started; None while it may."""
        limits, taken = self._limits, self._result.taken
        if self._stop.asked:
            return Reason.STOPPED
        if limits.max_tasks and taken >= limits.max_tasks:
            return Reason.MAX_TASKS
        return self._reason_of_host(taken - self.called_with_others)

    def is_to_leave(self) -> bool:
        """Whether even of what was taken up nothing more is to be started, one by one."""
        return self._stop.asked or self._reason_of_host(self._result.taken) is not None

    def _reason_of_host(self, calls: int) -> Reason | None:
        """The same by time, of which another of so many calls may take as much as they took so far, and by memory."""
        limits = self._limits
        usual_seconds = self.elapsed() / calls if calls else 0.0
        if limits.max_seconds is not None and self.elapsed() + usual_seconds >= limits.max_seconds:
            return Reason.MAX_TIME
        if limits.max_megabytes is not None and process_megabytes() > limits.max_megabytes:
            return Reason.MAX_MEMORY
        return None

    def claim_size(self) -> int:
        """How many tasks to claim next."""
        batch, max_tasks = self._limits.batch, self._limits.max_tasks
        return min(batch, max_tasks - self._result.taken) if max_tasks else batch

    def most_at_once(self, most: int) -> int:
        """How many tasks to start with one call, the one that was taken last included.

        Those that fit into the time that is left, and that one in any case.
        """
        over = self._result.taken - 1
        if self._limits.max_seconds is None or not over:
            return most
        usual_seconds = self.elapsed() / over
        return max(min(most, int((self._limits.max_seconds - self.elapsed()) / usual_seconds)), 1)

    def elapsed(self) -> float:
        """Seconds since the run began."""
        return time.monotonic() - self._began_at


def process_megabytes() -> float:
    """What this process holds in memory now; where the system does not tell, the most that it ever held."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * resource.getpagesize() / 1e6
    except (OSError, ValueError, IndexError):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak / 1e6 if sys.platform == "darwin" else peak * 1024 / 1e6
