"""Arguments in Python: each check returns the value, or raises a SettingError that names it and what is allowed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..errors import SettingError, is_delay
from ..messages.text import DURATIONS, Duration, duration_seconds, shown
from ..model.task import MAX_GROUP_ID, MAX_ID


def check_kind(name: str, value: object, kinds: Any, allowed: str) -> None:
    """Refuse a value of any other types than `kinds`, as isinstance takes them. Raises SettingError."""
    if not isinstance(value, kinds):
        raise SettingError(f"{name} is {shown(value)}; allowed: {allowed}")


def check_whole_number(name: str, value: int, least: int, most: int | None) -> int:
    """A whole number within limits, both allowed; `most` None is no limit. Raises SettingError."""
    if type(value) is not int or value < least or (most is not None and value > most):
        allowed = f"from {least} to {most}" if most is not None else f"from {least} on"
        raise SettingError(f"{name} is {shown(value)}; allowed: a whole number {allowed}")
    return value


def check_task_id(task_id: int) -> int:
    """A task's id. Raises SettingError."""
    return check_whole_number("task_id", task_id, 0, MAX_ID)


def check_group_id(group_id: int) -> int:
    """A group's id. Raises SettingError."""
    return check_whole_number("group_id", group_id, 0, MAX_GROUP_ID)


def check_duration(name: str, value: Duration) -> float:
    """The seconds of a duration. Raises SettingError."""
    seconds: float = duration_seconds(value)
    if not is_delay(seconds):
        raise SettingError(f"{name} is {shown(value)}; allowed: {DURATIONS}, from 0 to 366 days")
    return seconds


def check_positive(name: str, value: float | None, unit: str) -> float | None:
    """A number above 0 of a unit, or None. Raises SettingError."""
    if value is not None and not (type(value) in (int, float) and value > 0):
        raise SettingError(f"{name} is {shown(value)}; allowed: {unit} above 0")
    return value


def check_groups(groups: Iterable[int] | None, max_groups: int) -> Sequence[int] | None:
    """Group ids in order, each once, from 1 to `max_groups` of them; or None for every group. Raises SettingError."""
    if groups is None:
        return None
    # The bytes of b"3" are numbers, too, and the characters of "3,5" none: neither is a list.
    if isinstance(groups, (str, bytes, bytearray, Mapping)) or not isinstance(groups, Iterable):
        raise SettingError(f"groups is {shown(groups)}; allowed: a list of numbers, as [3], or None for every group")
    chosen = sorted({check_whole_number("a group", group, 0, MAX_GROUP_ID) for group in groups})
    if not 0 < len(chosen) <= max_groups:
        raise SettingError(f"groups names {len(chosen)} groups; allowed: 1 to {max_groups}, or None for every group")
    return chosen
