"""Texts, numbers, durations and instants for people: safe for a terminal, a mail or a log."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta, timezone
from itertools import islice, takewhile
from math import isfinite
from typing import Any

from ..errors import span_seconds

MAX_ERROR_LENGTH = 1000
"""Characters of an error_text."""
MAX_VALUE_LENGTH = 80
"""Characters of a value in a message."""
MAX_COMPARED = 300
"""Names that a mistyped name is compared with; a file may have any number of them."""
MAX_LINE = 12_000
"""Characters of a line; texts in rows may be of any length, and cron mails lines."""


def printable(text: str) -> str:
    """The text `escaped`, without its middle if it is too long for a line."""
    return truncate_middle(escaped(truncate_middle(text, MAX_LINE)), MAX_LINE)


def truncate_middle(text: str, most: int) -> str:
    """The text in at most `most` characters: its start and its end."""
    return text if len(text) <= most else f"{text[: most // 2]}…{text[1 - most // 2 :]}"


def escaped(text: str) -> str:
    r"""The text in one line, with `\n`, `\x1b` and the like instead of control characters."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode() for character in text
    )


def letters(json_text: str) -> str:
    r"""JSON text with readable letters, as `é` for `\u00e9`; unprintable characters stay escaped."""
    import json  # few programs show arguments

    def read(found: re.Match[str]) -> str:
        text: str = json.loads(f'"{found.group()}"')
        return text if text.isprintable() and not {'"', "\\"} & {*text} else found.group()

    return re.sub(r"\\\\|(?:\\u[0-9a-fA-F]{4})+", read, json_text)


_UNITS = (("d", 86_400), ("h", 3600), ("min", 60))


def _in_largest_unit(seconds: float) -> tuple[float, str]:
    """Seconds in the largest unit of which there are at least two."""
    return next(((seconds / length, unit) for unit, length in _UNITS if seconds >= 2 * length), (seconds, "s"))


def age(seconds: float | None) -> str:
    """Seconds, rounded, as `3 min`; empty for None."""
    if seconds is None:
        return ""
    amount, unit = _in_largest_unit(max(seconds, 0))
    return f"{amount:.0f} {unit}"


def in_units(seconds: float | None) -> str:
    """Seconds with about two significant digits, as `1.5 s` or `250 ms`; empty for None."""
    if seconds is None:
        return ""
    if seconds < 1:
        return f"{seconds * 1000:.{0 if seconds >= 0.01 else 1}f} ms"
    amount, unit = _in_largest_unit(seconds)
    return f"{amount:.{0 if amount >= 10 else 1}f} {unit}"


def when(seconds: float | None) -> str:
    """As `in 3 min` or `now`; empty for None."""
    return "" if seconds is None else f"in {age(seconds)}" if seconds > 0 else "now"


def megabytes(count: int) -> str:
    """Bytes as `12.3 MB`."""
    return f"{count / 1_000_000:,.1f} MB"


def count_of(rows: int, noun: str) -> str:
    """`1 task` or `3 tasks`."""
    return f"{rows} {noun}{'' if rows == 1 else 's'}"


# ---- numbers and durations, as people write them


def read_number(text: str, or_span: bool = False) -> float | None:
    """The number in a text such as 5, -5, 0.5 or 1e3, or the seconds of a span such as 5m; None for other texts.

    A whole one is an int. int() and float() would also accept blanks, underscores, digits of every script, and inf.
    """
    if re.fullmatch(r"-?[0-9]{1,20}", text):
        return int(text)
    if re.fullmatch(r"[0-9]{1,20}(\.[0-9]{1,20})?(e[0-9]{1,2})?", text):
        return float(text)
    return span_seconds(text) if or_span else None


Duration = float | str | timedelta
DURATIONS = 'seconds, a text such as "5m", or a timedelta'
"""The valid durations, for messages."""


def duration_seconds(value: object) -> Any:
    """The seconds of a duration; None for other texts, and other values unchanged: the caller refuses them."""
    if isinstance(value, str):
        return span_seconds(value)
    return value.total_seconds() if isinstance(value, timedelta) else value


# ---- names and values in messages


def nearest(name: str, names: Iterable[str], likeness: float = 0.65) -> str | None:
    """The most similar name, by at least `likeness` (0 to 1), ignoring case; None without one."""
    from difflib import get_close_matches  # imported with the first mistake

    by_folded = {one[:MAX_VALUE_LENGTH].casefold(): one for one in islice(names, MAX_COMPARED)}
    found = get_close_matches(name[:MAX_VALUE_LENGTH].casefold(), by_folded, n=1, cutoff=likeness)
    return by_folded[found[0]] if found else None


def shown(value: object) -> str:
    """The repr of a value for a message, cut if it is long."""
    try:
        text = repr(value)
    except Exception:  # a too long integer, or a repr that fails
        return f"a {type(value).__name__} that cannot be shown"
    return text if len(text) <= MAX_VALUE_LENGTH else f"{text[: MAX_VALUE_LENGTH - 1]}…"


# ---- instants, in this host's time zone, with its name; in JSON in UTC


def zone() -> str:
    """The current name of this host's time zone, as UTC or CET."""
    return datetime.now().astimezone().strftime("%Z")


def in_sentence(instant: datetime | None, form: str = "%Y-%m-%d %H:%M:%S %Z") -> str:
    """An instant with its zone's name; empty for None."""
    return f"{local(instant):{form}}" if instant else ""


def exactly(instant: datetime | None) -> str:
    """An instant with its microseconds."""
    return in_sentence(instant, "%Y-%m-%d %H:%M:%S.%f %Z")


def time_of_day(instant: datetime) -> str:
    """The hour and minute of an instant."""
    return in_sentence(instant, "%H:%M %Z")


def on_day(instant: datetime | None) -> str:
    """The day, hour and minute of an instant, as `today 03:30` or `2026-11-30 03:30`; empty for None."""
    if instant is None:
        return ""
    found = local(instant)
    days = (datetime.now().astimezone().date() - found.date()).days
    day = {-1: "tomorrow", 0: "today", 1: "yesterday"}.get(days) or found.date()
    return f"{day} {found:%H:%M}"


def utc(text: str | None) -> datetime | None:
    """The instant of a text in UTC; None for any other value, as SQLite may store."""
    try:
        return datetime.fromisoformat(text).replace(tzinfo=timezone.utc) if text else None
    except (ValueError, TypeError):
        return None


def iso(instant: datetime | None) -> str | None:
    """An instant for JSON: 2026-01-31T12:00:00.000000Z."""
    if instant is None:
        return None
    return instant.astimezone(timezone.utc).isoformat(timespec="microseconds").replace("+00:00", "Z")


def plain(value: Any) -> Any:
    """A value for JSON: instants and infinite numbers as texts, records as objects."""
    if isinstance(value, datetime):
        return iso(value)
    if hasattr(value, "as_dict"):
        return plain(value.as_dict())
    if hasattr(value, "_asdict"):
        return plain(value._asdict())
    if isinstance(value, Mapping):
        return {key: plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple, frozenset)):
        return list(map(plain, value))
    return str(value) if isinstance(value, float) and not isfinite(value) else value


def local(instant: datetime) -> datetime:
    """An instant in this host's zone; unchanged at the limits of time, as SQLite may store."""
    try:
        return instant.astimezone()
    except (ValueError, OverflowError, OSError):
        return instant


# ---- arguments to copy into a terminal or a crontab


def prefix_in_shell(text: str) -> str:
    """The start of a text as an argument to copy into a terminal or a crontab; may be empty.

    It ends before the first control character or % (which cron changes to a new line) or backslash (which some crons
    reduce).
    """
    from shlex import quote  # most programs show no such line

    begin = "".join(takewhile(lambda character: character.isprintable() and character not in "%\\", text))
    return quote(begin) if begin else ""


def error_in_shell(line: str) -> str:
    """The argument with which client.py selects an error, by its whole line or by the start that can be copied."""
    from shlex import quote

    begin = prefix_in_shell(line)
    is_whole = begin == quote(line) and len(line) < MAX_ERROR_LENGTH
    option = "--error-line" if is_whole else "--error"
    return f"{option}={begin}" if begin else ""  # with "=", because a line may start with "-"
