"""Instants as people read them: in this host's time zone, which is named; JSON has them in UTC."""

from __future__ import annotations

from datetime import datetime, timezone

from .printable import age


def zone() -> str:
    """The name of this host's time zone as it is now, as UTC or CET."""
    return datetime.now().astimezone().strftime("%Z")


def in_sentence(text: str | None) -> str:
    """An instant of a row with the name of its zone."""
    found = local(text)
    return f"{found:%Y-%m-%d %H:%M:%S %Z}" if found else text or ""


def time_of_day(text: str) -> str:
    """The hour and minute of an instant of today, with the name of its zone."""
    found = local(text)
    return f"{found:%H:%M %Z}" if found else text


def when(seconds: float | None) -> str:
    """After how long something comes, as `in 3 min`; empty for None."""
    return "" if seconds is None else f"in {age(seconds)}" if seconds > 0 else "now"


def exactly(text: str | None) -> str:
    """An instant of a row with its microseconds and the name of its zone."""
    found = local(text)
    return f"{found:%Y-%m-%d %H:%M:%S.%f %Z}" if found else text or ""


def utc(text: str | None) -> datetime | None:
    """An instant of a row, which is text in UTC; None for a text that is no instant, as a column of SQLite may hold."""
    try:
        return datetime.fromisoformat(text or "").replace(tzinfo=timezone.utc)
    except (ValueError, TypeError):
        return None


def local(text: str | None) -> datetime | None:
    """The same in this host's zone."""
    try:
        found = utc(text)
        return found and found.astimezone()
    except (ValueError, OverflowError, OSError):  # no instant, or at the end of time
        return None
