"""What stores give to those who look at the queue: records of rows. A worker has no need of it."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from ..reports import Progress, as_texts, read_progress
from .tables import ALL_GROUPS


class QueueCount(NamedTuple):
    """How many rows of a group have a status."""

    group_id: int
    status: int
    rows: int
    oldest_seconds: float | None
    """Age of the oldest one, for new rows."""


class LastRun(NamedTuple):
    """The last run of one crontab line; instants are text in UTC, `ended_at` is None of one that runs or was killed."""

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
    """When the run before it began."""

    @property
    def groups(self) -> str:
        """Whose tasks it took, in words."""
        return "all groups" if self.group_ids == ALL_GROUPS else f"groups {self.group_ids}"

    @property
    def every_seconds(self) -> float | None:
        """How long after the run before it this one began."""
        if self.started_seconds_ago is None or self.previous_seconds_ago is None:
            return None
        return max(self.previous_seconds_ago - self.started_seconds_ago, 0.0)

    @property
    def failed(self) -> int:
        """Tasks that failed and will be tried again: the rest of what it took up."""
        return max(self.taken - self.done - self.fatal - self.lost, 0)


class TellingTask(NamedTuple):
    """A running task that tells how far it has come."""

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
    """What it returned, as JSON."""
    progress: str | None
    """How far it has come, as JSON."""
    archived: bool
    """Whether it stands in the archive."""


def telling_tasks(rows: Sequence[Sequence[Any]]) -> list[TellingTask]:
    """Of rows of these columns those whose progress can be read."""
    several = ((*columns, read_progress(text)) for *columns, text in rows)
    return [TellingTask(task_id, str(task), *others) for task_id, task, *others in several if others[-1] is not None]


def stored_task(row: Sequence[Any]) -> StoredTask:
    """A row of the columns above and whether it is archived."""
    *columns, archived = as_texts(row)
    return StoredTask._make((*columns, bool(archived)))
