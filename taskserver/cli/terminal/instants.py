"""Instants in the tables of a terminal: in this host's time zone, which the head of the column names."""

from __future__ import annotations

from ...messages.text import exactly, in_sentence, local, time_of_day, when, zone
from .output import Whole

__all__ = ["exactly", "headed", "in_column", "in_sentence", "time_of_day", "when", "zone"]


def headed(name: str) -> str:
    """The head of a column of instants, which names their zone."""
    return f"{name} ({zone()})"


def in_column(text: str | None, characters: int = 19) -> str:
    """An instant of a row, which is text in UTC, below a head that names the zone of now.

    Another zone stands beside it, as in winter that of an instant in summer. A text that is no instant, as a column of
    SQLite may hold, stays as it is.
    """
    found = local(text)
    if found is None:
        return text or ""
    name = found.strftime("%Z")
    return Whole(f"{found:%Y-%m-%d %H:%M:%S}"[:characters] + (f" {name}" if name != zone() else ""))
