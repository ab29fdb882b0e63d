"""One call of a task's code as the heartbeat sees it: the plan made before, and when something is due.

attempts.py plans a call, and hands the plan to the heartbeat, which watches the call from its begin to its end.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from ..model.task import ClaimedTask


class OwnCompletion(Protocol):
    """The completion of a task by its own code: see completion.py."""

    is_asked_for: bool
    """Whether the task's code has begun to complete it."""

    def complete(self, connection: object, value: object) -> None:
        """Complete the task, with this value as its result, in the transaction of a connection."""


class CallPlan(NamedTuple):
    """A call that is about to begin."""

    tasks: Sequence[ClaimedTask]
    """The tasks whose code is called; several where their callable takes several; none where other foreign code is."""
    timeout_seconds: float
    """0: no limit."""
    max_attempts: int
    """How often the first of the tasks may start."""
    completion: OwnCompletion | None = None
    """The completion by the task's own code; None where that cannot complete it."""
    heeds_cancel: bool = True
    """Whether the call is interrupted once a person cancels one of its tasks."""
    connection: Any = None
    """The driver's connection, which holds the task's own transaction; None outside of one."""
    holds_lock: bool = False
    """Whether that transaction keeps everybody else, and the run's own connection, from writing. Then nobody can take
    the task away, and nothing can be renewed."""
    name: str = ""
    """What messages call it where it is no task's."""


class WatchedCall:
    """A call that runs; instants by time.monotonic."""

    is_cancelled = False
    is_struck = False
    """Whether it was interrupted, or that was tried."""
    number = 0
    """As the alarm counts calls."""
    is_lost = False
    """Whether the rows of its tasks were seen without its claim."""
    save_ended_at = float("inf")
    """When the finishes of tasks that ended before it are to be written."""

    def __init__(self, plan: CallPlan, lease_seconds: float) -> None:
        now = time.monotonic()
        self.plan = plan
        self.tasks = plan.tasks
        self.ends_at = now + plan.timeout_seconds if plan.timeout_seconds else float("inf")
        self.give_back_at = now + lease_seconds / 3
        self.renew_at = min(now + lease_seconds / 3, self.ends_at)
        if plan.holds_lock:
            self.give_back_at = self.renew_at = float("inf")
        if not plan.tasks:
            self.renew_at = float("inf")
        self.strike_at = self.ends_at
        self.end_process_at = self.ends_at + lease_seconds
        self._lease_seconds = lease_seconds

    def give_time_to_end(self, now: float, seconds: float) -> None:
        """Let its process live for so long, or as long as a lease, from its first interrupt on, which is now."""
        if not self.is_struck:
            self.end_process_at = max(self.end_process_at, now + min(seconds, self._lease_seconds))
        self.is_struck = True

    def cancel(self) -> None:
        """Have the call end from now on, as if its time were up."""
        now = time.monotonic()
        self.ends_at = min(self.ends_at, now)
        self.strike_at = now + self._lease_seconds / 4
        self.end_process_at = min(self.end_process_at, now + self._lease_seconds)
        self.is_cancelled = True

    def __str__(self) -> str:
        if self.plan.name:
            return self.plan.name
        first, others = self.tasks[0], len(self.tasks) - 1
        return f"task {first.id} {first.task}{f' and {others} others' if others else ''}"
