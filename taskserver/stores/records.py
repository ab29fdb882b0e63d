"""Rows as operators see them. A worker does not need them."""

from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from typing import Any, NamedTuple

from ..errors import SettingError
from ..messages.text import DURATIONS, duration_seconds, shown, utc
from ..model.new_task import FIRST_INSTANT, LAST_INSTANT
from ..model.results import Progress, as_texts, read_progress
from ..model.task import ALL_GROUPS, Status

OTHER = -1
"""Stands for all numbers in rows that are no Status."""


class QueueCount(NamedTuple):
    """How many rows of a group have a status."""

    group_id: int
    status: int
    """A Status, or OTHER."""
    rows: int
    oldest_seconds: float | None
    """Since the oldest new row was added; None for other statuses."""
    ready_seconds: float | None = None
    """Since it is ready: a delayed or retried task was added long before."""
    is_more: bool = False
    """Whether there are more rows than were counted."""


GIVEN_UP_LINE = "dependency: task …, for which it waits, is fatal or was cancelled"
"""Stands for the errors of all tasks that were given up because of others."""


class ErrorCount(NamedTuple):
    """Tasks in error and fatal whose errors have the same first line."""

    line: str
    rows: int
    fatal: int
    """How many of these tasks are fatal."""
    first_seen: datetime | None
    """The earliest of these failures; only rows that stand in the queue count."""
    last_seen: datetime | None
    example_id: int
    """The id of the newest of these tasks."""

    @property
    def is_given_up(self) -> bool:
        """Whether this line stands for several errors: each task waits for another fatal one."""
        return self.line == GIVEN_UP_LINE


class LastRun(NamedTuple):
    """The last run of one crontab line: of one host and groups."""

    host: str
    group_ids: str
    """As `3,5,6`, or `all`."""
    pid: int
    started_at: datetime | None
    """None for an instant that cannot be, as is `started_seconds_ago` then."""
    started_seconds_ago: float | None
    ended_at: datetime | None
    """None while it runs, or if it was killed."""
    reason: str | None
    """Why it ended: a value of taskserver.Reason."""
    taken: int
    done: int
    fatal: int
    lost: int
    released: int
    previous_seconds_ago: float | None = None
    """Since the run before it began."""

    @property
    def groups(self) -> str:
        """In words."""
        return groups_in_words(self.group_ids)

    @property
    def every_seconds(self) -> float | None:
        """From the begin of the run before to the begin of this one."""
        if self.started_seconds_ago is None or self.previous_seconds_ago is None:
            return None
        return max(self.previous_seconds_ago - self.started_seconds_ago, 0.0)

    @property
    def failed(self) -> int:
        """Tasks that will be retried: all others that the run took."""
        return max(self.taken - self.done - self.fatal - self.lost, 0)

    def as_dict(self) -> dict[str, Any]:
        """The record, and what follows from it."""
        return {**self._asdict(), "failed": self.failed, "every_seconds": self.every_seconds}


class WorkerProcess(NamedTuple):
    """A worker that is at work, or was when it last wrote its counts."""

    number: int
    """Random; a RunningTask names it."""
    host: str
    group_ids: str
    """As `3,5,6`, or `all`."""
    pid: int
    identity: str
    """Distinguishes the process from later ones with its pid (host/process_identity.py)."""
    started_at: datetime | None
    started_seconds_ago: float | None
    seen_seconds_ago: float | None
    """Since it wrote its counts."""
    ended_at: datetime | None
    """When a run on its host found that the process had ended."""
    taken: int
    done: int
    failed: int
    fatal: int
    lost: int
    released: int
    claimed: int = 0
    """Tasks that it has claimed and not started."""
    is_here: bool = False
    """Whether it is on this host."""
    has_ended: bool | None = None
    """Whether its process has ended; None if that is unknown, as of most processes of other hosts."""

    @property
    def groups(self) -> str:
        """In words."""
        return groups_in_words(self.group_ids)


class RunningTask(NamedTuple):
    """A task that has been started, and has not ended."""

    id: int
    task: str
    group_id: int
    attempts: int
    seconds: float | None
    """Since its start."""
    number: int | None
    """The number of its worker."""
    progress: Progress | None
    """None if it reports none."""


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
    """As JSON."""
    progress: str | None
    """As JSON."""
    archived: bool

    def run_seconds(self, now: str) -> float | None:
        """How long its last attempt ran, or has run until `now`, the database's clock as text in UTC.

        None if it is unknown: the task was not started, is lost, or was cancelled, perhaps long after its attempt. Of
        a bad row it would be the import of its module.
        """
        has_failed = self.status in (Status.ERROR, Status.FATAL)
        is_lost = has_failed and (self.error_text or "").startswith("lost: ")
        is_bad = self.status == Status.FATAL and not self.attempts
        if is_lost or is_bad or self.status == Status.CANCELLED:
            return None
        ends: dict[int, str | None] = {Status.IN_PROGRESS: now, Status.ERROR: self.updated_at}
        seconds = _seconds_between(self.started_at, ends.get(self.status, self.finished_at))
        return seconds if seconds is not None and seconds >= 0 else None

    def comes_in_seconds(self, now: str) -> float | None:
        """When a task in error or waiting becomes new; None for other tasks."""
        return _seconds_between(now, self.due_at) if self.status in (Status.ERROR, Status.WAITING) else None

    def lease_ends_in_seconds(self, now: str) -> float | None:
        """When the lease of a task in progress expires; None for other tasks."""
        return _seconds_between(now, self.due_at) if self.status == Status.IN_PROGRESS else None


def _seconds_between(earlier: str | None, later: str | None) -> float | None:
    """None if one is missing, or is no instant, as MySQL's 0000-00-00."""
    try:
        return (datetime.fromisoformat(later or "") - datetime.fromisoformat(earlier or "")).total_seconds()
    except (ValueError, TypeError):
        return None


def groups_in_words(group_ids: str) -> str:
    """The groups of a run's or worker's record, in words."""
    return "all groups" if group_ids == ALL_GROUPS else f"groups {group_ids}"


def last_run(row: Sequence[Any]) -> LastRun:
    """A run from a row of LastRun's columns."""
    run = LastRun._make(as_texts(row))
    return run._replace(started_at=utc(row[3]), ended_at=utc(row[5]))


def worker_process(row: Sequence[Any]) -> WorkerProcess:
    """A process from a row of WorkerProcess's columns."""
    columns = WorkerProcess._fields[: len(row)]
    process = WorkerProcess(**dict(zip(columns, as_texts(row), strict=True)))
    return process._replace(started_at=utc(process.started_at), ended_at=utc(process.ended_at))


def error_count(row: Sequence[Any]) -> ErrorCount:
    """An error from a row of ErrorCount's columns."""
    line, rows, fatal, first_seen, last_seen, example_id = as_texts(row)
    return ErrorCount(line, rows, int(fatal), utc(first_seen), utc(last_seen), example_id)


def running_task(row: Sequence[Any], number: int | None) -> RunningTask:
    """A running task from a row of RunningTask's columns, where the number is left out."""
    task_id, task, group_id, attempts, seconds, progress = row
    return RunningTask(task_id, str(task), group_id, attempts, seconds, number, read_progress(progress))


def stored_task(row: Sequence[Any]) -> StoredTask:
    """A task from a row of the queue's columns and a last one: whether it is archived."""
    *columns, archived = as_texts(row)
    return StoredTask._make((*columns, bool(archived)))


# ---- since when operators list tasks and stats

MAX_SINCE_SECONDS = 50 * 366 * 86_400


def earliest(since: object, seconds_before: int = 0) -> tuple[str, Any]:
    """SQL for an instant by the database's clock, so many seconds before `since`, and the value for its mark.

    `since` is an aware datetime, or a duration before now. Raises SettingError.
    """
    if isinstance(since, datetime) and since.utcoffset() is not None:
        first = min(max(since, FIRST_INSTANT), LAST_INSTANT) - timedelta(seconds=seconds_before)
        return "{instant}", f"{first.astimezone(timezone.utc):%Y-%m-%d %H:%M:%S}"
    seconds = duration_seconds(since)
    if type(seconds) not in (int, float) or not 0 <= seconds < float("inf"):
        raise SettingError(f"since is {shown(since)}; allowed: {DURATIONS}, from 0 on, or an aware datetime")
    return "{after}", -min(seconds, MAX_SINCE_SECONDS) - seconds_before
