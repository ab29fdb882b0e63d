"""The names of the settings and the values that they take, for settings read as text and for arguments in Python.

Each check returns the value, or raises a SettingError that names the key and what is allowed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import SPANS, SettingError, span_seconds
from ..messages.programs import CLIENT
from ..messages.text import nearest, shown
from ..model.task import MAX_GROUP_ID, MAX_ID, MODES

PREFIX = "TASKSERVER_"
_NAMES = (
    *("DSN", "PASSWORD", "TABLE", "MODE", "MODULES"),
    *("MAX_ATTEMPTS", "BACKOFF", "LEASE", "TIMEOUT", "DB_PATIENCE", "PAUSES", "LOG", "LOG_LEVEL", "LOG_FORMAT"),
    *("SETUP", "BETWEEN", "ON_FAILURE"),
)
_PAGE_NAMES = (
    "PAGE_PASSWORD",
    "PAGE_ALLOW",
    "PAGE_PROXIES",
    "PAGE_HOSTS",
    "PAGE_ACTIONS",
    "METRICS_TOKEN",
    "ADD_TOKENS",
)
SETTING_KEYS = tuple(PREFIX + name for name in _NAMES)
"""The settings of the programs, in the order of `Settings`."""
PAGE_KEYS = tuple(PREFIX + name for name in _PAGE_NAMES)
"""The settings that the status page alone reads."""
ALL_KEYS = SETTING_KEYS + PAGE_KEYS
GONE = {"TASKSERVER_WARN_AFTER": f"is gone: delete it; {CLIENT} check --mail reports what fails"}
"""Settings of earlier versions, and what to do instead."""
LOG_LEVELS = ("debug", "info", "warning", "error")
LOG_FORMATS = ("text", "json")
Hook = str | Callable[..., object] | None
"""`module:function`, or given in Python the function itself."""

# Compiled when they are used: most settings are left alone, and a run is started each minute.
_TABLE = r"[A-Za-z_][A-Za-z0-9_]{0,39}"
_NAME = r"[^\W\d]\w*(\.[^\W\d]\w*)*"
_MODULE = rf"{_NAME}(\.\*)?"
_HOOK = rf"{_NAME}:{_NAME}"


# ---- names


def letters_of(key: str) -> str:
    """The letters and digits of a key, in capitals: all spellings of one name have them in common."""
    return "".join(filter(str.isalnum, key)).upper()


def nearest_key(key: str, likeness: float) -> str | None:
    """The setting that a mistyped key may have meant: alike by at least `likeness`, from 0 to 1; else None."""
    # The prefix, which all keys have in common, would make all of them alike.
    by_letters = {letters_of(name): PREFIX + name for name in _NAMES + _PAGE_NAMES}
    found = nearest(letters_of(key).removeprefix(letters_of(PREFIX)), by_letters, likeness)
    return by_letters[found] if found is not None else None


# ---- values; `key` is the name that an error gives them


def check_table(key: str, value: str) -> str:
    """A queue table's name. Raises SettingError."""
    if not (isinstance(value, str) and re.fullmatch(_TABLE, value)):
        raise _wrong(key, value, "a letter or _, then up to 39 letters, digits or _")
    return value


def check_mode(key: str, value: str) -> str:
    """One of MODES. Raises SettingError."""
    return one_of(MODES)(key, value)


def hook_as(example: str) -> Callable[[str, str], str]:
    """The check of a text that names a function of an importable module, as `module:function`."""

    def check(key: str, value: str) -> str:
        if not (isinstance(value, str) and re.fullmatch(_HOOK, value)):
            raise _wrong(key, value, f"module:function, as {example}")
        return value

    return check


check_setup = hook_as("shop.worker:setup")
check_between = hook_as("django.db:close_old_connections")
check_on_failure = hook_as("alerts:tell")


def one_of(allowed: Sequence[str]) -> Callable[[str, str], str]:
    """The check of a text that is one of a few."""

    def check(key: str, value: str) -> str:
        if not isinstance(value, str) or value not in allowed:
            raise _wrong(key, value, " or ".join(allowed))
        return value

    return check


def check_modules(key: str, value: str | Sequence[str], folder: Path) -> tuple[str, ...]:
    """The listed modules, each once, from a text with commas between them, or a list or tuple. Raises SettingError.

    `folder` is the program's: a file there whose name is given, as tasks.py, is no module of a package `tasks`.
    """
    parts: object = value.split(",") if isinstance(value, str) else value
    names = [part.strip() for part in parts if isinstance(part, str)] if isinstance(parts, (list, tuple)) else []
    is_all = bool(names) and isinstance(parts, (list, tuple)) and len(names) == len(parts)
    if not is_all or not all(re.fullmatch(_MODULE, name) for name in names):
        also = "" if isinstance(value, str) else ", or a list of them"
        raise _wrong(key, value, f"module names with commas between them, as tasks,shop.jobs.*{also}")
    for name in names:
        module = name.removesuffix(".py")
        if module != name and os.path.isfile(folder / f"{module.replace('.', '/')}.py"):
            raise SettingError(f"{key} names the file {name!r}; modules are named without .py: write {module}")
    return tuple(dict.fromkeys(names))


def whole_number_as_text(least: int, most: int) -> Callable[[str, str], int]:
    """The check of a text that holds a whole number within limits, both allowed."""

    def check(key: str, value: str) -> int:
        # isascii: int() would take digits of every script, and underscores.
        if not (value.isascii() and value.isdigit() and len(value) < 12 and least <= int(value) <= most):
            raise _wrong(key, value, f"a whole number from {least} to {most}")
        return int(value)

    return check


def seconds_as_text(least: int, most: int) -> Callable[[str, str], int]:
    """The check of a text that holds whole seconds within limits, both allowed, or a span of time as 5m."""

    def check(key: str, value: str) -> int:
        seconds = span_seconds(f"{value}s" if value.isdigit() else value)
        if seconds is None or not least <= seconds <= most:
            raise _wrong(key, value, f"a whole number from {least} to {most}, of seconds, or a span {SPANS}")
        return seconds

    return check


def _wrong(key: str, value: object, allowed: str) -> SettingError:
    what = repr(value[:100]) if isinstance(value, str) else shown(value)
    return SettingError(f"{key} is wrong: {what}; allowed: {allowed}")


# ---- arguments in Python


def check_kind(name: str, value: object, kinds: Any, allowed: str) -> None:
    """Refuse a value of any other types than `kinds`, as isinstance takes them. Raises SettingError."""
    if not isinstance(value, kinds):
        raise SettingError(f"{name} is {shown(value)}; allowed: {allowed}")


def function_or(check: Callable[[str, str], str], name: str, value: Hook) -> Hook:
    """A function itself, what a check of its name takes, or None. Raises SettingError."""
    return check(name, value) if value is not None and not callable(value) else value


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
