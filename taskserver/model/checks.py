"""Checks of single values from Python. Each error names the value and what is allowed.

Values for a task raise InvalidTask, all others SettingError: `wrong` is the class.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from math import inf
from typing import Any, TypeGuard

from ..errors import InvalidTask, SettingError, TaskServerError
from ..messages.text import DURATIONS, Duration, duration_seconds, shown
from .task import MAX_ATTEMPTS, MAX_GROUP_ID, MAX_GROUPS, MAX_ID, MAX_PRIORITY, MIN_PRIORITY

MAX_KEY_BYTES = 255
FIELD_LIMITS = {
    "task_id": (0, MAX_ID),
    "group_id": (0, MAX_GROUP_ID),
    "priority": (MIN_PRIORITY, MAX_PRIORITY),
    "max_attempts": (1, MAX_ATTEMPTS),
}
"""The least and the greatest number for each field."""
Wrong = type[TaskServerError]


def is_whole(value: object, least: int, most: int | None = None) -> TypeGuard[int]:
    """Whether a value is a whole number from `least` to `most`, inclusive; None: no limit."""
    return type(value) is int and least <= value and (most is None or value <= most)


def whole_numbers(least: int, most: int | None = None) -> str:
    """The numbers that `is_whole` allows, in words."""
    return f"a whole number from {least} {'on' if most is None else f'to {most}'}"


def check_number(name: str, value: Any, least: int, most: int | None = None, wrong: Wrong = InvalidTask) -> int:
    """A number that `is_whole`."""
    if not is_whole(value, least, most):
        raise wrong(f"{name} is {shown(value)}; allowed: {whole_numbers(least, most)}")
    return value


def check_field(name: str, value: Any, wrong: Wrong = InvalidTask) -> int:
    """A number within its field's FIELD_LIMITS."""
    least, most = FIELD_LIMITS[name]
    return check_number(name, value, least, most, wrong)


def check_positive(name: str, value: float | None, unit: str) -> float | None:
    """A number above 0 of a unit, or None. Raises SettingError."""
    if value is not None and not (type(value) in (int, float) and value > 0):
        raise SettingError(f"{name} is {shown(value)}; allowed: {unit} above 0")
    return value


def check_duration(name: str, value: Duration, most_days: int | None = None, wrong: Wrong = InvalidTask) -> float:
    """The seconds of a duration, from 0 to so many days; without a limit, above 0."""
    seconds = duration_seconds(value)
    if type(seconds) not in (int, float):
        is_right = False
    elif most_days is None:  # infinity is valid, but not an int too large for a float
        is_right = 0 < seconds <= sys.float_info.max or seconds == inf
    else:
        is_right = 0 <= seconds <= most_days * 86_400
    if not is_right:
        limits = "above 0" if most_days is None else f"from 0 to {most_days} days"
        raise wrong(f"{name} is {shown(value)}; allowed: {DURATIONS}, {limits}")
    return float(seconds)


def check_key(name: str, key: str) -> str:
    """A key of 1 to MAX_KEY_BYTES bytes. Raises InvalidTask."""
    try:
        size = len(key.encode()) if isinstance(key, str) else 0
    except UnicodeEncodeError:
        size = 0
    if not 1 <= size <= MAX_KEY_BYTES:
        what = f"{shown(key)}, {size} bytes long" if size else shown(key)
        raise InvalidTask(f"{name} is {what}; allowed: a text of 1 to {MAX_KEY_BYTES} bytes in UTF-8")
    return key


def check_text(what: str, text: str) -> str:
    """A text that is valid UTF-8, as every database requires. Raises InvalidTask."""
    try:
        text.encode()
    except (AttributeError, UnicodeEncodeError):
        raise InvalidTask(f"{what} is {shown(text)}; allowed: a text") from None
    return text


def check_kind(name: str, value: object, kinds: Any, allowed: str) -> None:
    """Refuse a value that is no instance of `kinds`. Raises SettingError."""
    if not isinstance(value, kinds):
        raise SettingError(f"{name} is {shown(value)}; allowed: {allowed}")


def check_list(name: str, value: object, allowed: str, wrong: Wrong = InvalidTask) -> Iterable[Any]:
    """Any iterable except text, bytes and mappings."""
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Iterable):
        raise wrong(f"{name} is {shown(value)}; allowed: {allowed}")
    return value


def check_groups(groups: Iterable[int] | None) -> Sequence[int] | None:
    """1 to MAX_GROUPS group ids, sorted and distinct; None: every group. Raises SettingError."""
    if groups is None:
        return None
    given = check_list("groups", groups, "a list of numbers, such as [3], or None for every group", SettingError)
    chosen = sorted({check_number("a group", group, *FIELD_LIMITS["group_id"], SettingError) for group in given})
    if not 0 < len(chosen) <= MAX_GROUPS:
        raise SettingError(f"groups names {len(chosen)} groups; allowed: 1 to {MAX_GROUPS}, or None for every group")
    return chosen
