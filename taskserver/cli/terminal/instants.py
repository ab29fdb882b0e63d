"""Instants as people read them: in this host's time zone, which is named; JSON has them in UTC."""

from __future__ import annotations

from datetime import datetime, timezone

from ...messages.printable import age
from .output import Whole


def zone() -> str:
    """The name of this host's time zone as it is now, as UTC or CET."""
    return datetime.now().astimezone().strftime("%Z")


def headed(name: str) -> str:
    """The head of a column of instants, which names their zone."""
    return f"{name} ({zone()})"


def in_column(text: str | None, characters: int = 19) -> str:
    """An instant of a row, which is text in UTC, below a head that names the zone of now.

    Another zone stands beside it, as in winter that of an instant in summer. A text that is no instant, as a column of
    SQLite may hold, stays as it is.
    """
    found = _local(text)
    if found is None:
        return text or ""
    name = found.strftime("%Z")
    return Whole(f"{found:%Y-%m-%d %H:%M:%S}"[:characters] + (f" {name}" if name != zone() else ""))


def in_sentence(text: str | None) -> str:
    """An instant of a row with the name of its zone."""
    found = _local(text)
    return f"{found:%Y-%m-%d %H:%M:%S %Z}" if found else text or ""


def time_of_day(text: str) -> str:
    """The hour and minute of an instant of today, with the name of its zone."""
    found = _local(text)
    return f"{found:%H:%M %Z}" if found else text


def when(seconds: float | None) -> str:
    """After how long something comes, as `in 3 min`; empty for None."""
    return "" if seconds is None else f"in {age(seconds)}" if seconds > 0 else "now"


def exactly(text: str | None) -> str:
    """An instant of a row with its microseconds and the name of its zone."""
    found = _local(text)
    return f"{found:%Y-%m-%d %H:%M:%S.%f %Z}" if found else text or ""


def _local(text: str | None) -> datetime | None:
    try:
        return datetime.fromisoformat(text or "").replace(tzinfo=timezone.utc).astimezone()
    except (ValueError, OverflowError, OSError):  # no instant, or at the end of time
        return None
