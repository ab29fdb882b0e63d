"""The settings as a table: each row has the function that parses a value from a text or from Python.

These functions raise a SettingError that names the setting, the value, and what is allowed.
"""

# Annotations are not deferred here: named tuples compile deferred ones, which slows down each empty run.

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import SPAN_EXAMPLES, SettingError, span_seconds
from ..messages.programs import CLIENT
from ..messages.text import nearest, read_number, shown
from ..model.backoff import DAY_SECONDS, parse_backoff
from ..model.checks import is_whole, whole_numbers
from ..model.task import MAX_ATTEMPTS, MAX_SECONDS, MODES

PREFIX = "TASKSERVER_"
LOG_LEVELS = ("debug", "info", "warning", "error")
LOG_FORMATS = ("text", "json")
MAX_PAUSE_SECONDS = 3600
MAX_DAYS = 36_500
"""The greatest age of rows: an older one would be before the first date of the databases."""

Parser = Callable[[str, Any], Any]
"""Takes the setting's name for errors, and the value as a text or from Python."""
Hook = str | Callable[..., object] | None
"""`module:function`, or in Python the function itself."""

# Compiled when used: most settings are not set, and a run starts each minute.
_TABLE = r"[A-Za-z_][A-Za-z0-9_]{0,39}"
_NAME = r"[^\W\d]\w*(\.[^\W\d]\w*)*"
_MODULE = rf"{_NAME}(\.\*)?"
_HOOK = rf"{_NAME}:{_NAME}"


class Setting(NamedTuple):
    """A setting. Its key is TASKSERVER_ and its name in capitals; in Python it is an argument of its name."""

    name: str
    field: str
    """Of `Settings` or `PageSettings`, which has the default."""
    parse: Parser

    @property
    def key(self) -> str:
        return PREFIX + self.name.upper()


class RunPauses(NamedTuple):
    """Pauses in seconds. From the first to the second, and up to the third, each is twice as long as the one before."""

    after_work: float = 0.1
    """Before the first look of a lingering run after its last task."""
    when_empty: float = 1.0
    """Between its looks while the queue is empty."""
    after_error: float = 5.0
    """The longest pause between two tries to reach an unavailable database."""


# ---- values


def matching(pattern: str, allowed: str) -> Parser:
    """Takes a text of this form."""

    def parse(name: str, value: object) -> str:
        if not (isinstance(value, str) and re.fullmatch(pattern, value)):
            raise _wrong(name, value, allowed)
        return value

    return parse


def one_of(allowed: Sequence[str]) -> Parser:
    """Takes one of a few texts."""

    def parse(name: str, value: object) -> str:
        if not isinstance(value, str) or value not in allowed:
            raise _wrong(name, value, " or ".join(allowed))
        return value

    return parse


def whole_number(least: int, most: int, is_time: bool = False, is_optional: bool = False) -> Parser:
    """Takes a whole number from `least` to `most`, as a time also a span such as 5m, if optional also None."""
    allowed = whole_numbers(least, most) + (f", of seconds, or a span {SPAN_EXAMPLES}" if is_time else "")

    def parse(name: str, value: object) -> int | None:
        if value is None and is_optional:
            return None
        number = read_number(value, or_span=is_time) if isinstance(value, str) else value
        if not is_whole(number, least, most):
            raise _wrong(name, value, allowed)
        return number

    return parse


def span_to_keep(name: str, value: object) -> int | None:
    """Takes a span with its unit, because 30 could mean days; in Python also a number of seconds or None."""
    if isinstance(value, str) and not span_seconds(value):
        raise _wrong(name, value, "a span with its unit, such as 30d")
    seconds: int | None = whole_number(1, MAX_DAYS * DAY_SECONDS, is_time=True, is_optional=True)(name, value)
    return seconds


def hook(example: str) -> Parser:
    """Takes `module:function`, in Python also the function itself or None."""
    named = matching(_HOOK, f"module:function, such as {example}")
    return lambda name, value: value if value is None or callable(value) else named(name, value)


def modules(name: str, value: object) -> tuple[str, ...]:
    """Takes module names with commas between them, in Python also a list or tuple; removes duplicates."""
    parts = value.split(",") if isinstance(value, str) else value
    names = [part.strip() for part in parts if isinstance(part, str)] if isinstance(parts, (list, tuple)) else []
    is_all = bool(names) and isinstance(parts, (list, tuple)) and len(names) == len(parts)
    if not is_all or not all(re.fullmatch(_MODULE, one) for one in names):
        also = "" if isinstance(value, str) else ", or a list of them"
        raise _wrong(name, value, f"module names with commas between them, as tasks,shop.jobs.*{also}")
    file = next((one for one in names if one.endswith(".py")), None)
    if file:
        raise SettingError(f"{name} names the file {file!r}; modules are named without .py: write {file[:-3]}")
    return tuple(dict.fromkeys(names))


def run_pauses(name: str, value: object) -> RunPauses:
    """Takes three pauses, such as 0.1,1,5."""
    parts = [part.strip() for part in value.split(",")] if isinstance(value, str) else []
    found = [read_number(part, or_span=True) or 0 for part in parts]
    if len(found) != 3 or not 0 < found[0] <= found[1] <= found[2] <= MAX_PAUSE_SECONDS:
        raise _wrong(
            name,
            value,
            f"three numbers of seconds, or spans {SPAN_EXAMPLES}, after work, when the queue is empty and after an "
            f"error, such as 0.1,1,5: each above 0, none smaller than the one before, at most {MAX_PAUSE_SECONDS}",
        )
    return RunPauses._make(found)


def _wrong(name: str, value: object, allowed: str) -> SettingError:
    return SettingError(f"{name} is wrong: {shown(value)}; allowed: {allowed}")


# ---- the table

SETTINGS = (
    Setting("table", "table", matching(_TABLE, "a letter or _, then up to 39 letters, digits or _")),
    Setting("mode", "mode", one_of(MODES)),
    Setting("modules", "modules", modules),
    Setting("max_attempts", "max_attempts", whole_number(1, MAX_ATTEMPTS)),
    Setting("backoff", "backoff", parse_backoff),
    Setting("lease", "lease_seconds", whole_number(1, MAX_SECONDS, is_time=True)),
    Setting("timeout", "timeout_seconds", whole_number(0, MAX_SECONDS, is_time=True)),
    Setting("db_patience", "patience_seconds", whole_number(0, DAY_SECONDS, is_time=True)),
    Setting("keep", "keep_seconds", span_to_keep),
    Setting("pauses", "pauses", run_pauses),
    Setting("log", "log_file", lambda name, value: Path(value)),
    Setting("log_level", "log_level", one_of(LOG_LEVELS)),
    Setting("log_format", "log_format", one_of(LOG_FORMATS)),
    Setting("setup", "setup", hook("shop.worker:setup")),
    Setting("between", "between", hook("django.db:close_old_connections")),
    Setting("on_failure", "on_failure", hook("alerts:notify")),
)
"""All settings of the programs except TASKSERVER_DSN and TASKSERVER_PASSWORD, which dsn.py parses together."""
SETTING_KEYS = (f"{PREFIX}DSN", f"{PREFIX}PASSWORD", *(one.key for one in SETTINGS))
PAGE_KEYS = (
    "TASKSERVER_PAGE_PASSWORD",
    "TASKSERVER_PAGE_ALLOW",
    "TASKSERVER_PAGE_PROXIES",
    "TASKSERVER_PAGE_HOSTS",
    "TASKSERVER_PAGE_ACTIONS",
    "TASKSERVER_METRICS_TOKEN",
    "TASKSERVER_ADD_TOKENS",
)
"""The settings of the status page; page.py has their rows, which import more."""
ALL_KEYS = SETTING_KEYS + PAGE_KEYS
GONE = {"TASKSERVER_WARN_AFTER": f"is gone: delete it; {CLIENT} check --mail reports what fails"}
"""Settings of earlier versions, and what to do instead."""


def fields_of(table: Sequence[Setting], given: Mapping[str, Any], in_python: bool = False) -> dict[str, Any]:
    """The fields of the given settings; errors name a setting by its key, or in Python by its name."""
    return {
        one.field: one.parse(one.name if in_python else one.key, given[one.name]) for one in table if one.name in given
    }


# ---- mistyped keys


def letters_of(key: str) -> str:
    """The letters and digits of a key, in capitals: equal for all spellings."""
    return "".join(filter(str.isalnum, key)).upper()


def nearest_key(key: str, likeness: float) -> str | None:
    """The setting that a mistyped key may mean, with at least `likeness` from 0 to 1; or None."""
    # Without the prefix, which makes all keys similar.
    by_letters = {letters_of(one.removeprefix(PREFIX)): one for one in ALL_KEYS}
    found = nearest(letters_of(key).removeprefix(letters_of(PREFIX)), by_letters, likeness)
    return by_letters[found] if found else None
