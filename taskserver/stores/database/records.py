"""Records of rows, for operators who look at the queue. A worker does not need them."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

from ...model.results import Progress, as_texts, read_progress
from ...model.task import ALL_GROUPS, CANCELLED, Status


class QueueCount(NamedTuple):
    """How many rows of a group have a status."""

    group_id: int
    status: int
    rows: int
    oldest_seconds: float | None
    """The age of the oldest new row; None for other statuses."""


class LastRun(NamedTuple):
    """The last run of one crontab line. Instants are text in UTC; `ended_at` is None while it runs, or if killed."""

    host: str
    group_ids: str
    pid: int
    started_at: str | None
    started_seconds_ago: float | None
    ended_at: str | None
    reason: str | None
    taken: int
    done: int
    fatal: int
    lost: int
    released: int
    previous_seconds_ago: float | None = None
    """The age of the begin of the run before it."""

    @property
    def groups(self) -> str:
        """The groups whose tasks it took, in words."""
        return "all groups" if self.group_ids == ALL_GROUPS else f"groups {self.group_ids}"

    @property
    def every_seconds(self) -> float | None:
        """The seconds between the begin of the run before and the begin of this one."""
        if self.started_seconds_ago is None or self.previous_seconds_ago is None:
            return None
        return max(self.previous_seconds_ago - self.started_seconds_ago, 0.0)

    @property
    def failed(self) -> int:
        """Tasks that failed and will be tried again: all other tasks that the run took up."""
        return max(self.taken - self.done - self.fatal - self.lost, 0)


class TellingTask(NamedTuple):
    """A running task that stores how far it has come."""

    id: int
    task: str
    group_id: int
    attempts: int
    seconds: float | None
    """Since its start."""
    progress: Progress


class StoredTask(NamedTuple):
    """A row as an operator sees it; instants are text in UTC."""

    id: int
    task: str
    args: str | None
    group_id: int
    priority: int
    status: int
    attempts: int
    max_attempts: int | None
    due_at: str | None
    claim: int | None
    unique_key: str | None
    error_text: str | None
    created_at: str
    started_at: str | None
    finished_at: str | None
    updated_at: str
    version: int | None
    stages: str | None
    stage: int
    awaited: int
    result: str | None
    """The returned value, as JSON."""
    progress: str | None
    """How far the task has come, as JSON."""
    archived: bool
    """Whether the row stands in the archive."""

    def run_seconds(self, now: str) -> float | None:
        """How long its last attempt ran, or has run until `now`, the database's clock as text in UTC.

        None where that is not known: not started, lost, or cancelled, perhaps long after its attempt.
        """
        error = self.error_text or ""
        if self.status in (Status.ERROR, Status.FATAL) and (error == CANCELLED or error.startswith("lost: ")):
            return None
        ends: dict[int, str | None] = {Status.IN_PROGRESS: now, Status.ERROR: self.updated_at}
        end = ends.get(self.status, self.finished_at)
        try:
            seconds = (
                datetime.fromisoformat(end or "") - datetime.fromisoformat(self.started_at or "")
            ).total_seconds()
        except (ValueError, TypeError):  # one is missing, or a column of SQLite holds what is no instant
            return None
        return seconds if seconds >= 0 else None


def last_run(row: Sequence[Any]) -> LastRun:
    """A run from a row of LastRun's columns. SQLite's may hold anything: what is no number counts as 0."""
    columns = as_texts(row)
    counts = (value if isinstance(value, int) else 0 for value in columns[7:12])
    return LastRun._make((*columns[:7], *counts, *columns[12:]))


def telling_tasks(rows: Sequence[Sequence[Any]]) -> list[TellingTask]:
    """The tasks whose progress can be read, from rows of TellingTask's columns."""
    several = ((*columns, read_progress(text)) for *columns, text in rows)
    return [TellingTask(task_id, str(task), *others) for task_id, task, *others in several if others[-1] is not None]


def stored_task(row: Sequence[Any]) -> StoredTask:
    """A task from a row of the queue's columns and a last one: whether it is archived."""
    *columns, archived = as_texts(row)
    return StoredTask._make((*columns, bool(archived)))
