"""What a producer gives, checked before it becomes a row. Apart from task.py, as most runs of a worker add nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta, timezone
from itertools import islice
from typing import Any

from .arguments import write_arguments
from .checks import check_group_id, check_key, check_max_attempts, check_number, check_priority, name_of
from .errors import InvalidTask
from .lifecycle import MAX_ID, NewTask
from .printable import shown
from .stages import new_stages

KEYS = (
    "task",
    "args",
    "group_id",
    "priority",
    "max_attempts",
    "delay",
    "at",
    "unique_key",
    "rerun",
    "version",
    "stages",
    "depends_on",
)
"""What the description of a task may hold, in add_tasks and in JSON lines."""

LONGEST_DELAY_DAYS = 3660
FIRST_INSTANT = datetime(1970, 1, 2, tzinfo=timezone.utc)
LAST_INSTANT = datetime(2038, 1, 19, 3, 14, 7, tzinfo=timezone.utc)
"""Of the columns of most MySQL servers, and so for all."""
MAX_VERSION = 2**63 - 1
MOST_PARENTS = 100_000


def new_task(
    task: str | Callable[..., Any] | None = None,
    args: object = None,
    group_id: int = 0,
    priority: int = 0,
    *,
    max_attempts: int | None = None,
    delay: float | timedelta | None = None,
    at: datetime | str | None = None,
    unique_key: str | None = None,
    rerun: bool = False,
    version: int | None = None,
    stages: object = None,
    depends_on: Iterable[int] | None = None,
) -> NewTask:
    """Check what a producer gave: a task, or the stages of a pipeline.

    Raises InvalidTask, which names what was wrong and what is allowed.
    """
    name = name_of(task) if stages is None else ""  # type: ignore[arg-type]  # what it is not, it refuses
    check_group_id(group_id)
    check_priority(priority)
    text = write_arguments(args)
    given = (max_attempts, delay, at, unique_key, rerun, version, stages, depends_on)
    if given == NOTHING_MORE:
        return NewTask(name, text, group_id, priority)
    if max_attempts is not None:
        check_max_attempts(max_attempts)
    if delay is not None and at is not None:
        raise InvalidTask("it has delay and at; allowed: one of them")
    _check_rerun(unique_key, rerun, version)
    seconds = None if delay is None else _delay_seconds(delay)
    due_at = None if at is None else _instant(at)
    key = None if unique_key is None else check_key("unique_key", unique_key)
    parents = None if depends_on is None else _parents(depends_on, key)
    stages_text = None
    if stages is not None:
        if task is not None:
            raise InvalidTask("it has task and stages; allowed: one of them, as the first of the stages is the task")
        (first, *_), stages_text = new_stages(stages, group_id, priority, max_attempts)
        name, group_id, priority, max_attempts = first[:4]  # type: ignore[assignment]  # new_stages gives each of them
    # What waits for others is looked at when its instant has come: at once, where it names none.
    seconds = seconds or (0.0 if parents and due_at is None else None)
    return NewTask(
        name, text, group_id, priority, max_attempts, seconds, due_at, key, rerun, version, stages_text, parents
    )


NOTHING_MORE = (None, None, None, None, False, None, None, None)


def _check_rerun(unique_key: str | None, rerun: bool, version: int | None) -> None:
    if type(rerun) is not bool:
        raise InvalidTask(f"rerun is {shown(rerun)}; allowed: true or false")
    if rerun and unique_key is None:
        raise InvalidTask("it has rerun and no unique_key, which tells the row that is to run again")
    if version is not None:
        check_number("version", version, 0, MAX_VERSION)
        if not rerun:
            raise InvalidTask("it has a version and no rerun; a version tells whether a rerun is newer than the row")


def _parents(depends_on: object, key: str | None) -> str | None:
    """Ids as a text, each once. Raises InvalidTask."""
    try:
        ids = None if isinstance(depends_on, (str, bytes, Mapping)) else list(islice(depends_on, MOST_PARENTS + 1))  # type: ignore[call-overload]
    except TypeError:
        ids = None
    if ids is None:
        raise InvalidTask(f"depends_on is {shown(depends_on)}; allowed: a list of ids of tasks")
    if len(ids) > MOST_PARENTS:
        raise InvalidTask(f"depends_on names more than {MOST_PARENTS} tasks, which is the most that are allowed")
    for task_id in ids:
        check_number("an id in depends_on", task_id, 1, MAX_ID)
    if ids and key is not None:
        raise InvalidTask(
            "it has depends_on and a unique_key; allowed: one of them, as a row that has the key may have started"
        )
    return ",".join(map(str, sorted(set(ids)))) or None


def _delay_seconds(delay: object) -> float:
    seconds = delay.total_seconds() if isinstance(delay, timedelta) else delay
    if type(seconds) not in (int, float) or not 0 <= seconds <= LONGEST_DELAY_DAYS * 86_400:  # type: ignore[operator]
        raise InvalidTask(
            f"delay is {shown(delay)}; allowed: seconds or a timedelta, from 0 to {LONGEST_DELAY_DAYS} days"
        )
    return float(seconds)  # type: ignore[arg-type]


def _instant(at: object) -> str:
    """An instant as the column due_at takes it. Raises InvalidTask."""
    try:
        instant = read_instant(at) if isinstance(at, str) else at
    except ValueError:
        instant = None
    if not isinstance(instant, datetime):
        raise InvalidTask(f"at is {shown(at)}; allowed: a datetime, or its text as 2026-01-31T12:00:00+01:00")
    if instant.utcoffset() is None:
        raise InvalidTask(
            f"at is {shown(at)}, which has no time zone; allowed: an aware datetime, as datetime.now(timezone.utc), "
            "or a text with Z or +01:00 at its end, as 2026-01-31T12:00:00Z"
        )
    if not FIRST_INSTANT <= instant <= LAST_INSTANT:
        raise InvalidTask(f"at is {shown(at)}; allowed: from {FIRST_INSTANT:%Y-%m-%d} to {LAST_INSTANT:%Y-%m-%d}")
    return f"{instant.astimezone(timezone.utc):%Y-%m-%d %H:%M:%S.%f}"


def read_instant(text: str) -> datetime:
    """An instant in ISO 8601. Raises ValueError."""
    # Before 3.11 Python does not know this form of UTC.
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


def new_task_from(description: Mapping[str, Any]) -> NewTask:
    """The same for a description such as {"task": "tasks.send", "args": {…}, "group_id": 3}."""
    if not isinstance(description, Mapping):
        raise InvalidTask(f'it is {shown(description)}; allowed: an object such as {{"task": …, "args": …}}')
    if "task" not in description and "stages" not in description:
        raise InvalidTask('it has no "task"')
    try:
        return new_task(**description)
    except TypeError:
        unknown = sorted(str(key) for key in description if key not in KEYS)
        if not unknown:
            raise
        raise InvalidTask(f"it has {', '.join(map(repr, unknown))}; allowed: {', '.join(KEYS)}") from None
