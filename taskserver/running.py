"""One call of a task's code: what watches over it has to know, and when what is due."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from .lifecycle import ClaimedTask


class Watch(NamedTuple):
    """One call that is to be watched over."""

    tasks: Sequence[ClaimedTask]
    """Whose code it is; several, where their callable takes several."""
    timeout_seconds: float
    """0: no limit."""
    limit: int
    """How often they may start; that of the first one."""
    heeds_cancel: bool = True
    """Whether it is interrupted once a person cancels one of them."""
    connection: Any = None
    """The driver's, of the task's own transaction."""
    holds_lock: bool = False
    """Whether that keeps everybody else, and the run's own connection, from writing: so nobody takes the task away."""


class Running:
    """That call while it runs; instants by time.monotonic."""

    def __init__(self, watch: Watch, lease_seconds: float) -> None:
        now = time.monotonic()
        self.watch = watch
        self.tasks = watch.tasks
        self.is_cancelled = False
        self.is_lost = False
        """Whether its rows were seen without its claim."""
        self.ends_at = now + watch.timeout_seconds if watch.timeout_seconds else float("inf")
        self.give_back_at = now + lease_seconds / 3
        self.renew_at = min(now + lease_seconds / 3, self.ends_at)
        if watch.holds_lock:
            self.give_back_at = self.renew_at = float("inf")
        self.strike_at = self.ends_at
        self.end_process_at = self.ends_at + lease_seconds
        self._lease_seconds = lease_seconds

    def cancel(self) -> None:
        """As if its time were up: from now on it is to end."""
        now = time.monotonic()
        self.ends_at = min(self.ends_at, now)
        self.strike_at = now + self._lease_seconds / 4
        self.end_process_at = min(self.end_process_at, now + self._lease_seconds)
        self.is_cancelled = True

    def __str__(self) -> str:
        first, others = self.tasks[0], len(self.tasks) - 1
        return f"task {first.id} {first.task}{f' and {others} others' if others else ''}"
