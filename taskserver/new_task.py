"""What a producer gives, checked before it becomes a row. Apart from task.py, as most runs of a worker add nothing."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta, timezone
from functools import lru_cache
from typing import Any

from .arguments import write_arguments
from .errors import InvalidTask
from .lifecycle import MAX_GROUP_ID, MAX_PRIORITY, MAX_TASK_LENGTH, MIN_PRIORITY, NewTask
from .settings import MAX_ATTEMPTS

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
)
"""What the description of a task may hold, in add_tasks and in JSON lines."""

LONGEST_DELAY_DAYS = 3660
FIRST_INSTANT = datetime(1970, 1, 2, tzinfo=timezone.utc)
LAST_INSTANT = datetime(2038, 1, 19, 3, 14, 7, tzinfo=timezone.utc)
"""Of the columns of most MySQL servers, and so for all."""
MAX_KEY_BYTES = 255
MAX_VERSION = 2**63 - 1
LONGEST_SHOWN = 80

_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*[.:][^\W\d]\w*(\.[^\W\d]\w*)*")


def new_task(
    task: str | Callable[..., Any],
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
) -> NewTask:
    """Check what a producer gave. Raises InvalidTask, which names what was wrong and what is allowed."""
    name = name_of(task)
    _check_number("group_id", group_id, 0, MAX_GROUP_ID)
    check_priority(priority)
    text = write_arguments(args)
    given = (max_attempts, delay, at, unique_key, rerun, version)
    if given == NOTHING_MORE:
        return NewTask(name, text, group_id, priority)
    if max_attempts is not None:
        _check_number("max_attempts", max_attempts, 1, MAX_ATTEMPTS)
    if delay is not None and at is not None:
        raise InvalidTask("it has delay and at; allowed: one of them")
    _check_rerun(unique_key, rerun, version)
    seconds = None if delay is None else _delay_seconds(delay)
    due_at = None if at is None else _instant(at)
    key = None if unique_key is None else check_key("unique_key", unique_key)
    return NewTask(name, text, group_id, priority, max_attempts, seconds or None, due_at, key, rerun, version)


NOTHING_MORE = (None, None, None, None, False, None)


def _check_number(name: str, value: object, least: int, most: int) -> None:
    if type(value) is not int or not least <= value <= most:
        raise InvalidTask(f"{name} is {shown(value)}; allowed: a whole number from {least} to {most}")


def check_priority(priority: int) -> None:
    """Raises InvalidTask."""
    _check_number("priority", priority, MIN_PRIORITY, MAX_PRIORITY)


def _check_rerun(unique_key: str | None, rerun: bool, version: int | None) -> None:
    if type(rerun) is not bool:
        raise InvalidTask(f"rerun is {shown(rerun)}; allowed: true or false")
    if rerun and unique_key is None:
        raise InvalidTask("it has rerun and no unique_key, which tells the row that is to run again")
    if version is not None:
        _check_number("version", version, 0, MAX_VERSION)
        if not rerun:
            raise InvalidTask("it has a version and no rerun; a version tells whether a rerun is newer than the row")


def check_key(name: str, key: str) -> str:
    """A text that fits where keys are compared byte by byte. Raises InvalidTask."""
    try:
        size = len(key.encode()) if isinstance(key, str) else 0
    except UnicodeEncodeError:
        size = 0
    if not 1 <= size <= MAX_KEY_BYTES:
        what = f"{shown(key)}, {size} bytes long" if size else shown(key)
        raise InvalidTask(f"{name} is {what}; allowed: a text of 1 to {MAX_KEY_BYTES} bytes in UTF-8")
    return key


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


def check_text(what: str, text: str) -> str:
    """A text that a database can be asked for. Raises InvalidTask."""
    try:
        text.encode()
    except (AttributeError, UnicodeEncodeError):
        raise InvalidTask(f"{what} is {shown(text)}; allowed: a text") from None
    return text


def new_task_from(description: Mapping[str, Any]) -> NewTask:
    """The same for a description such as {"task": "tasks.send", "args": {…}, "group_id": 3}."""
    if not isinstance(description, Mapping):
        raise InvalidTask(f'it is {shown(description)}; allowed: an object such as {{"task": …, "args": …}}')
    if "task" not in description:
        raise InvalidTask('it has no "task"')
    try:
        return new_task(**description)
    except TypeError:
        unknown = sorted(str(key) for key in description if key not in KEYS)
        if not unknown:
            raise
        raise InvalidTask(f"it has {', '.join(map(repr, unknown))}; allowed: {', '.join(KEYS)}") from None


def name_of(task: str | Callable[..., Any]) -> str:
    """The name of a callable, which a producer gives by its name or as the function itself. Raises InvalidTask."""
    return check_name(task) if isinstance(task, str) else _name_of_function(task)


@lru_cache(maxsize=1024)
def check_name(name: str) -> str:
    """Check that a name has the form of a callable's. Raises InvalidTask."""
    if len(name) > MAX_TASK_LENGTH or not _NAME.fullmatch(name):
        raise InvalidTask(
            f"task is {shown(name)}; allowed: module.function, module.Class.method or module:Class.method, "
            f"at most {MAX_TASK_LENGTH} characters"
        )
    return name


def _name_of_function(function: Callable[..., Any]) -> str:
    module = getattr(function, "__module__", None)
    qualified_name = getattr(function, "__qualname__", None)
    cls = getattr(function, "__self__", None)
    if isinstance(cls, type):
        # A class method runs for the class that it was taken from, though a base class may have defined it.
        module, qualified_name = cls.__module__, f"{cls.__qualname__}.{getattr(function, '__name__', '')}"
    if not callable(function) or not isinstance(module, str) or not isinstance(qualified_name, str):
        raise InvalidTask(f"task is {shown(function)}; allowed: a name as 'tasks.send_letter', or the function itself")
    if module == "__main__":
        raise InvalidTask(
            f"task is {qualified_name!r} of the program that was started, which no worker can import; "
            "put it into a module, such as tasks.py"
        )
    return check_name(f"{module}.{qualified_name}")


def shown(value: object) -> str:
    """A value that was given, for a message."""
    try:
        text = repr(value)
    except Exception:  # an integer too long to be written, or an object that has no text
        return f"a {type(value).__name__} that cannot be shown"
    return text if len(text) <= LONGEST_SHOWN else f"{text[: LONGEST_SHOWN - 1]}…"
