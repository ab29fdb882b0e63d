"""Rows of the queue that may need a person, for `client.py doctor` and the overview; these judge them."""

from __future__ import annotations

from typing import NamedTuple

from ..database import Database
from .dependencies import IS_ORPHAN

MAX_LAPSED = 10_000
"""Claims that are counted."""
MAX_WAITING = 1000
"""Rows without an instant, the oldest, among which those that wait for no other task are looked for."""


class Lapsed(NamedTuple):
    """Claims that nobody took back."""

    rows: int
    oldest_seconds: float
    """The time since the end of the oldest of their leases."""


class QueueFacts(NamedTuple):
    """Rows of the queue that may need a person."""

    names: tuple[str, ...]
    """The callables that the next rows name, each once."""
    lapsed: Lapsed
    undated: int
    """How many rows wait for nothing: neither an instant nor another task; of the oldest waiting ones."""
    orphaned: int
    """How many rows wait for tasks that are gone or over."""


class Diagnosis:
    """The facts of one queue."""

    def __init__(self, database: Database) -> None:
        self._database = database

    NAMES_OF_NEXT = """
        SELECT DISTINCT task FROM (
            SELECT * FROM (SELECT task FROM {table} WHERE {any_status} = 0 ORDER BY priority, id LIMIT ?) AS next_new
            UNION ALL
            SELECT * FROM (SELECT task FROM {table} WHERE {due_status} = 3 ORDER BY due_at LIMIT ?) AS next_failed
            UNION ALL
            SELECT * FROM (SELECT task FROM {table} WHERE {due_status} = 5 ORDER BY due_at LIMIT ?) AS next_waiting
        ) AS next_rows
    """
    LAPSED = f"""
        SELECT COUNT(*), MAX({{due_at_age}}) FROM (
            SELECT due_at FROM {{table}} {{by_due}} WHERE {{due_status}} = 1 AND due_at < {{after}} LIMIT {MAX_LAPSED}
        ) AS lapsed
    """
    UNDATED = """
        SELECT COUNT(*) + (
            SELECT COUNT(*) FROM (
                SELECT id FROM {table} {by_due} WHERE {due_status} = 3 AND due_at IS NULL ORDER BY due_at, id LIMIT ?
            ) AS failed
        ) FROM (
            SELECT id FROM {table} {by_due} WHERE {due_status} = 5 AND due_at IS NULL ORDER BY due_at, id LIMIT ?
        ) AS waiting WHERE NOT EXISTS (SELECT 1 FROM {dependencies} WHERE child_id = waiting.id)
    """
    ORPHANED = f"SELECT COUNT(*) FROM {{table}} WHERE {IS_ORPHAN}"

    def lapsed(self, seconds: float) -> Lapsed:
        """The claims whose lease ended more than so many seconds ago. Raises DatabaseError."""
        rows, oldest = self._database.fetch(self.LAPSED, [-seconds])[0]
        return Lapsed(rows, float(oldest or 0))

    def undated(self) -> int:
        """How many rows in error, and of the oldest waiting ones, wait for neither an instant nor a task.

        Raises DatabaseError.
        """
        rows: int = self._database.fetch_value(self.UNDATED, [MAX_WAITING] * 2)
        return rows

    def queue_facts(self, most_rows: int, lapsed_seconds: float) -> QueueFacts:
        """Facts about the queue's rows. Raises DatabaseError.

        The names are of the next `most_rows` rows that are new, failed and waiting; a claim is lapsed once its lease
        ended more than `lapsed_seconds` ago.
        """
        names = self._database.fetch(self.NAMES_OF_NEXT, [most_rows] * 3)
        orphaned = self._database.fetch(self.ORPHANED)[0][0]
        texts = (name.decode(errors="replace") if isinstance(name, bytes) else str(name) for (name,) in names)
        return QueueFacts(tuple(sorted(texts)), self.lapsed(lapsed_seconds), self.undated(), orphaned)
