"""Rows that hold the key of a schedule, so that its times are passed over until they have ended.

That is right for the task that an earlier time added. But any program may write a row with that key, and all that such
a task's row could have, so nothing tells the two apart for sure. What would keep a schedule silent for longer than its
own task does is told: when a time is passed over, in `client.py status` and by the doctor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ...messages.programs import CLIENT
from ...model.results import as_texts
from ...model.schedule import Schedule
from ...model.task import Status
from ..database import Database

KEY_PREFIX = "schedule:"
"""This and the schedule's name are the unique_key of its tasks."""
MAX_BACKOFF_SECONDS = 1.1 * 86_400
"""No backoff is longer; a task may ask for more by Retry(delay=…)."""


class Holder(NamedTuple):
    """A row that has a schedule's key, and has not ended."""

    id: int
    task: str
    status: int
    group_id: int
    priority: int
    due_at: str | None
    due_seconds_ago: float | None
    """Below 0 where it lies ahead."""

    def keeps_silent(self, schedule: Schedule, lease_seconds: int) -> str | None:
        """Why this row may keep the schedule silent for longer than its own task would; None where it does not."""
        ahead = -(self.due_seconds_ago or 0.0)
        if self.status == Status.IN_PROGRESS:
            reason = "is in progress" if ahead > lease_seconds else None
        elif self.status == Status.ERROR:
            reason = "is in error" if ahead > MAX_BACKOFF_SECONDS else None
        elif self.status == Status.WAITING:
            reason = "waits" if ahead > 0 or self.due_at is None else None
        elif self.status == Status.NEW:
            is_as_added = self.group_id == schedule.group_id and self.priority <= schedule.priority and ahead <= 0
            reason = None if is_as_added else f"is new in group {self.group_id}, with priority {self.priority}"
        else:
            reason = f"has the status {self.status}"
        return reason and self._in_words(schedule.name, reason)

    def _in_words(self, name: str, reason: str) -> str:
        until = f" until {self.due_at[:19]} UTC" if self.due_at else ""
        return (
            f"task {self.id} ({self.task}) has its key, {KEY_PREFIX}{name}, and {reason}{until}: meanwhile its times "
            f"are passed over; {self._way_out()}"
        )

    def _way_out(self) -> str:
        if self.status == Status.IN_PROGRESS:
            return f"{CLIENT} reclaim --force {self.id} takes it back"
        if self.status in set(Status):
            return f"{CLIENT} cancel {self.id} lets the next one come"
        return "delete that row"


HOLDERS = """
    SELECT unique_key, id, task, status, group_id, priority, {due_at_text}, {due_at_age} FROM {table}
    WHERE unique_key IN ({ids}) AND status NOT IN (2, 4)
"""


def holders(database: Database, names: Sequence[str]) -> Mapping[str, Holder]:
    """The rows that hold the keys of these schedules, by the schedule's name."""
    keys = {f"{KEY_PREFIX}{name}": name for name in names}
    found = map(as_texts, database.fetch_ids(HOLDERS, list(keys)))
    return {keys[key]: Holder._make(columns) for key, *columns in found if key in keys}
