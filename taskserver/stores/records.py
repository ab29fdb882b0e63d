"""Rows as operators see them. A worker does not need them."""

from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from typing import Any, NamedTuple

from ..errors import BadTask, SettingError
from ..messages.text import DURATIONS, duration_seconds, shown, utc
from ..model.arguments import parse_json
from ..model.new_task import FIRST_INSTANT, LAST_INSTANT
from ..model.pipeline import read_stages
from ..model.results import Progress, as_texts, by_name, read_progress, read_result
from ..model.task import ALL_GROUPS, LOST, Status, known_status, name_of_status
from .words import QUEUE_COLUMNS

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
    """Failed tasks with the same first line of their error."""

    line: str
    rows: int
    fatal: int
    """How many of these tasks are fatal."""
    first_seen: datetime | None
    """The earliest of these failures; deleted rows do not count."""
    last_seen: datetime | None
    example_id: int
    """The newest of these tasks."""

    @property
    def kind(self) -> str:
        """The exception's name, or LOST."""
        return self.line.partition(": ")[0]

    @property
    def is_given_up(self) -> bool:
        """Whether the line stands for several errors, each with the id of another failed task."""
        return self.line == GIVEN_UP_LINE


class LastRun(NamedTuple):
    """The last run of one crontab line, that is, of one host and groups."""

    host: str
    group_ids: str
    """As `3,5,6`, or `all`."""
    pid: int
    started_at: datetime | None
    """None for an invalid instant; then `started_seconds_ago` is None too."""
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
    """Since the start of the run before."""

    @property
    def groups(self) -> str:
        return groups_in_words(self.group_ids)

    @property
    def every_seconds(self) -> float | None:
        """From the start of the run before to the start of this one."""
        if self.started_seconds_ago is None or self.previous_seconds_ago is None:
            return None
        return max(self.previous_seconds_ago - self.started_seconds_ago, 0.0)

    @property
    def failed(self) -> int:
        """Tasks that will be retried."""
        return max(self.taken - self.done - self.fatal - self.lost, 0)

    def as_dict(self) -> dict[str, Any]:
        """The record and its derived values."""
        return {**self._asdict(), "failed": self.failed, "every_seconds": self.every_seconds}


class WorkerProcess(NamedTuple):
    """A worker at work, or one that was at work when it last wrote its counts."""

    number: int
    """Random; see RunningTask.number."""
    host: str
    group_ids: str
    """As `3,5,6`, or `all`."""
    pid: int
    identity: str
    """Distinguishes the process from later ones with the same pid (host/process_identity.py)."""
    started_at: datetime | None
    started_seconds_ago: float | None
    seen_seconds_ago: float | None
    """Since it wrote its counts."""
    ended_at: datetime | None
    """When a run on its host noticed that the process had ended."""
    taken: int
    done: int
    failed: int
    fatal: int
    lost: int
    released: int
    claimed: int = 0
    """Tasks that it claimed and has not started."""
    is_here: bool = False
    """Whether it is on this host."""
    has_ended: bool | None = None
    """Whether its process has ended; None if unknown, as for most processes of other hosts."""

    @property
    def groups(self) -> str:
        return groups_in_words(self.group_ids)


class RunningTask(NamedTuple):
    """A started task that has not ended."""

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


class _Fields(NamedTuple):
    """The fields of `TaskRow`."""

    id: int
    task: str
    args: Any
    """The arguments as a dict or a list, None without arguments, or the text if it is invalid JSON."""
    group_id: int
    priority: int
    status: int
    """A Status, or another number that a program wrote."""
    attempts: int
    max_attempts: int | None
    """None: as its callable or the settings say."""
    due_at: datetime | None
    """When it becomes new; for a task in progress, when its lease ends."""
    unique_key: str | None
    error: str | None
    """The last error, with `Type: message` on the first line; None once the task succeeded."""
    created_at: datetime | None
    started_at: datetime | None
    """The start of its last attempt."""
    finished_at: datetime | None
    """When it became done, fatal or cancelled."""
    updated_at: datetime | None
    version: int | None
    result: Any
    """As in a TaskState."""
    progress: Progress | None


class TaskRow(_Fields):
    """A task as its row shows it; a missing or invalid instant is None."""

    columns: dict[str, Any]
    """All columns, with parsed instants, and last `archived`."""
    now: datetime | None
    """The database's clock when the row was read."""
    is_gone: bool = False
    """Whether its worker's process ended during the task; health/status.py sets it."""

    def as_dict(self) -> dict[str, Any]:
        """The columns unchanged, and computed values, for JSON."""
        return self.columns | {"status_name": name_of_status(self.status), "run_seconds": self.run_seconds}

    @property
    def archived(self) -> bool:
        return bool(self.columns["archived"])

    @property
    def state(self) -> str:
        """The name of its status; for a task in progress: `claimed`, `running` or `gone`."""
        if self.status == Status.IN_PROGRESS:
            return "gone" if self.is_gone else "running" if self.started_at else "claimed"
        return name_of_status(self.status)

    @property
    def error_line(self) -> str:
        return (self.error or "").partition("\n")[0]

    @property
    def run_seconds(self) -> float | None:
        """How long its last attempt ran, or has run so far.

        None if unknown: the task is unstarted, lost or gone, or was cancelled, perhaps long after its attempt. For a
        bad row it would only be the time of an import.
        """
        has_failed = self.status in (Status.ERROR, Status.FATAL)
        is_lost = has_failed and (self.error or "").startswith(f"{LOST}: ")
        is_bad = self.status == Status.FATAL and not self.attempts
        if is_lost or is_bad or self.is_gone or self.status == Status.CANCELLED:
            return None
        ends: dict[int, datetime | None] = {Status.IN_PROGRESS: self.now, Status.ERROR: self.updated_at}
        seconds = _seconds_between(self.started_at, ends.get(self.status, self.finished_at))
        return seconds if seconds is not None and seconds >= 0 else None

    @property
    def ready_at(self) -> datetime | None:
        """When a task in error or waiting becomes new, or when the lease of one that is gone ends."""
        return self.due_at if self.is_gone or self.status in (Status.ERROR, Status.WAITING) else None

    @property
    def ready_in_seconds(self) -> float | None:
        """Below 0 if it is late."""
        return _seconds_between(self.now, self.ready_at)

    @property
    def stage(self) -> str | None:
        """The current stage as `2 of 3`; None if it is no pipeline or its stages are invalid."""
        try:
            count = len(read_stages(self.columns["stages"]))
        except BadTask:
            return None
        return f"{self.columns['stage'] + 1} of {count}" if count else None

    @property
    def stages(self) -> list[str]:
        """A line for each stage of a pipeline; the column's text if it is invalid."""
        try:
            stages = read_stages(self.columns["stages"])
        except BadTask:
            return [self.columns["stages"] or ""]
        lines, current, group_id = [], self.columns["stage"], None
        for number, stage in enumerate(stages):
            state = "done" if number < current else name_of_status(self.status) if number == current else "to come"
            # A stage without a value keeps the row's value.
            group_id = self.group_id if number == current else group_id if stage.group_id is None else stage.group_id
            priority = None if stage.priority == self.priority else stage.priority
            values = {"group": group_id, "priority": priority, "max_attempts": stage.max_attempts}
            details = "".join(f", {name} {value}" for name, value in values.items() if value is not None)
            lines.append(f"{number + 1} {stage.task}{details}: {state}")
        return lines


def _seconds_between(earlier: datetime | None, later: datetime | None) -> float | None:
    return (later - earlier).total_seconds() if earlier and later else None


def groups_in_words(group_ids: str) -> str:
    """The groups of a run or worker, in words."""
    return "all groups" if group_ids == ALL_GROUPS else f"groups {group_ids}"


def error_count(row: Sequence[Any]) -> ErrorCount:
    """An ErrorCount from its row."""
    line, rows, fatal, first_seen, last_seen, example_id = as_texts(row)
    return ErrorCount(line, rows, int(fatal), utc(first_seen), utc(last_seen), example_id)


def running_task(row: Sequence[Any], number: int | None) -> RunningTask:
    """A RunningTask from its row, which lacks the number."""
    task_id, task, group_id, attempts, seconds, progress = row
    return RunningTask(task_id, str(task), group_id, attempts, seconds, number, read_progress(progress))


COLUMNS = QUEUE_COLUMNS.split(", ")


def task_row(row: Sequence[Any]) -> TaskRow:
    """A task from its row: the queue's columns, the database's clock, and whether it is archived."""
    *values, now, archived = row
    columns = by_name(COLUMNS, values) | {"archived": bool(archived)}
    status = known_status(columns["status"])
    read = {
        **columns,
        "task": str(columns["task"]),
        "args": _args(columns["args"]),
        "status": status,
        "error": columns["error_text"],
        "result": read_result(columns["result"]) if status == Status.DONE else None,
        "progress": read_progress(columns["progress"]),
    }
    task = TaskRow._make(read[name] for name in TaskRow._fields)
    task.columns, task.now = columns, utc(now)
    return task


def _args(text: str | None) -> Any:
    try:
        return parse_json(text) if isinstance(text, str) and text else None
    except BadTask:
        return text


# ---- since when tasks and stats are listed

MAX_SINCE_SECONDS = 50 * 366 * 86_400


def earliest(since: object, seconds_before: int = 0) -> tuple[str, Any]:
    """SQL for the instant `seconds_before` before `since`, by the database's clock, and the value for its mark.

    `since` is an aware datetime, or a duration before now. Raises SettingError.
    """
    if isinstance(since, datetime) and since.utcoffset() is not None:
        first = min(max(since, FIRST_INSTANT), LAST_INSTANT) - timedelta(seconds=seconds_before)
        return "{instant}", f"{first.astimezone(timezone.utc):%Y-%m-%d %H:%M:%S}"
    seconds = duration_seconds(since)
    if type(seconds) not in (int, float) or not 0 <= seconds < float("inf"):
        raise SettingError(f"since is {shown(since)}; allowed: {DURATIONS}, from 0 on, or an aware datetime")
    return "{after}", -min(seconds, MAX_SINCE_SECONDS) - seconds_before
