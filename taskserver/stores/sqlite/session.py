"""Connections to SQLite, on the standard library's driver, and what a fork does to them.

Differs from MySQL: every transaction takes the write lock when it begins, as a reader that becomes a writer later could
not wait for the lock.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ...errors import DatabaseError
from ..database.dialect import missing
from ..database.session import Pace, Session
from .errors import DRIVER_ERRORS

LOCK_WAIT_SECONDS = 2.0
"""One turn of waiting for the writer; between turns a signal is heard and the patience ends."""
MAX_BYTES_WITH_NUL = 1020
"""A longer text is read up to its NUL; keys and names, by which rows are found again, are shorter."""


class Connection(sqlite3.Connection):
    """The driver's connection, as a class of ours so that a WeakSet can hold it."""

    in_use = threading.RLock()
    """Its session's lock, once it has a session."""


# The open connections of this process, and the connections that a fork left in it in the midst of a transaction.
_open: weakref.WeakSet[Connection] = weakref.WeakSet()
_unfinished: list[Connection] = []


def _close_inherited() -> None:
    """In a forked child: close the connections that its parent had open.

    SQLite keeps one account of its locks for each file and process, and a fork copies the account without the locks. A
    connection that the child opens beside an inherited one takes the file for locked, and a parent that closes last
    removes the log into which the child goes on writing. A connection in the midst of a transaction stays open, as a
    close would roll back the parent's transaction; beside it the child can open no other.
    """
    for connection in list(_open):
        with suppress(sqlite3.ProgrammingError):  # it is closed, and something still refers to it
            _close_here(connection)
    _open.clear()


def _close_here(connection: Connection) -> None:
    # The parent's heartbeat may be in the midst of a statement: the child would wait for its end for ever.
    if connection.in_transaction or not connection.in_use.acquire(blocking=False):
        _unfinished.append(connection)
    else:
        connection.close()


os.register_at_fork(after_in_child=_close_inherited)


def open_connection(
    path: Path, error_of: Callable[[BaseException], DatabaseError], cached_statements: int = 128
) -> Connection:
    """A connection to an existing file. Raises DatabaseError."""
    if not os.path.exists(path):
        raise missing(f"there is no database {path}")
    if _unfinished:
        raise DatabaseError(f"{path}: this process was forked while another thread wrote to SQLite; fork before that")
    try:
        connection = sqlite3.connect(
            path,
            timeout=LOCK_WAIT_SECONDS,
            isolation_level=None,  # our own statements begin and commit transactions
            check_same_thread=False,  # close() closes the connections of all threads
            factory=Connection,
            cached_statements=cached_statements,
        )
        _open.add(connection)
        # A commit is on the disk when it returns, as on MySQL.
        connection.execute("PRAGMA synchronous = FULL")
    except DRIVER_ERRORS as error:
        raise error_of(error) from error
    return connection


class SQLiteSession(Session):
    """One thread's connection of ours to a file."""

    def __init__(self, path: Path, error_of: Callable[[BaseException], DatabaseError]) -> None:
        super().__init__()
        self._path = path
        self._error_of = error_of

    def connect(self, pace: Pace) -> None:
        connection = open_connection(self._path, self._error_of)
        connection.text_factory = _text
        connection.in_use = self.in_use
        self.cursor = connection.cursor()
        self.connection = connection

    def close(self) -> None:
        connection, self.connection, self.cursor = self.connection, None, None
        if connection is not None:
            with suppress(*DRIVER_ERRORS):
                connection.close()

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
