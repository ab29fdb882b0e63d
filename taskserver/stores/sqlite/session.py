"""A session of SQLite: one thread's connection, and the verbs on it.

Differs from MySQL: every transaction takes the write lock when it begins, as a reader that becomes a writer later could
not wait for the lock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ...errors import DatabaseError
from ..session import Pace, Session
from .connection import FILES_CHANGED, open_connection
from .errors import DRIVER_ERRORS

MAX_BYTES_WITH_NUL = 1020
"""A longer text is read up to its NUL; keys and names, by which rows are found again, are shorter."""


class SQLiteSession(Session):
    """One thread's connection of ours to a file."""

    def __init__(self, path: Path, synchronous: str, error_of: Callable[[BaseException], DatabaseError]) -> None:
        super().__init__()
        self._path = path
        self._synchronous = synchronous
        self._error_of = error_of

    def connect(self, pace: Pace) -> None:
        connection = open_connection(self._path, self._synchronous, self._error_of)
        connection.text_factory = _text
        connection.in_use = self.in_use
        self.cursor = connection.cursor()
        self.connection = connection

    def close(self) -> None:
        connection, self.connection, self.cursor = self.connection, None, None
        if connection is not None:
            with suppress(*DRIVER_ERRORS):
                connection.close()

    def hasten(self, pace: Pace) -> None:
        if self.connection.is_abandoned:
            self.close()
            raise DatabaseError(f"{self._path}: {FILES_CHANGED}")

    def begin(self) -> None:
        self.send("BEGIN IMMEDIATE")

    def roll_back(self) -> None:
        if self.connection is not None and self.connection.in_transaction:
            super().roll_back()

    def send(self, sql: str, values: Sequence[Any] = ()) -> Any:
        try:
            self.cursor.execute(sql, values)
        except OverflowError:
            self.cursor.execute(sql, [_bindable(value) for value in values])
        return self.cursor


def _bindable(value: Any) -> Any:
    """The value; in place of a whole number beyond 64 bits, as an id of MySQL may be, a float that equals no number."""
    return float(value) if isinstance(value, int) and abs(value) >= 2**63 else value


def _text(value: bytes) -> str:
    # SQLite counts the characters of a text up to a NUL, so that no CHECK bounds what lies behind one. Long texts of
    # ours have none: to hold the rest would only take memory. With the NUL a name stays bad, and JSON no JSON.
    if len(value) > MAX_BYTES_WITH_NUL and (end := value.find(0)) >= 0:
        value = value[: end + 1]
    # Text that is no UTF-8 must not end a worker here; the code that uses the text finds the surrogates.
    return value.decode("utf-8", "surrogateescape")
