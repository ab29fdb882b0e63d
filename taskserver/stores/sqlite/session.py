"""A connection to an SQLite file on the standard library's driver: its files, forks, statements.

Differs from MySQL: every transaction takes the write lock when it begins, because a reader that becomes a writer could
not wait for the lock. And a connection is only open files of this process: a fork copies them, a task can close them.
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
from ..dialect import Pace, Session, missing
from .errors import DRIVER_ERRORS

LOCK_WAIT_SECONDS = 2.0
"""One wait for the writer; between two waits, signals are handled and the patience can end."""
FILES_CHANGED = (
    "what is open is no longer the file at this path with its log: a task has closed files that are not its own, or "
    "opened this one by other means than SQLite, or somebody has put another in its place; see docs/guarantees.md"
)

Identity = tuple[int, int]
"""Distinguishes a file from all others."""


def identity_of(file: str | Path | int) -> Identity | None:
    """The identity of a file, by path or descriptor; None if it does not exist."""
    try:
        found = os.stat(file)
    except OSError:
        return None
    return found.st_dev, found.st_ino


# ---- the driver's connection


class Connection(sqlite3.Connection):
    """The driver's connection. If its files were replaced, it is abandoned: never written to, never closed.

    Closing writes the log into the database's file and removes the log, by names that may now mean other files.
    """

    in_use = threading.RLock()
    """Its session's lock, once it has a session."""
    files: Sequence[tuple[Sequence[str | int], Identity]] = ()
    """The database's file, this process's descriptors of it, and the log's index, as they were at opening.

    If a task opens and closes the database's file without SQLite, this process loses its locks: another process may
    then remove the log and its index while we use them. (Checking the log itself would make each commit a third slower:
    Linux must then write exact times for it.) If a task closes descriptors of SQLite, SQLite would write to the next
    files that get their numbers.
    """

    @property
    def is_abandoned(self) -> bool:
        for files, seen in self.files:  # plain loops: this runs before each verb
            for file in files:
                if identity_of(file) == seen:
                    break
            else:
                return True
        return False

    def close(self) -> None:
        if not self.is_abandoned:
            super().close()
            return
        with suppress(ImportError):  # a Python without ctypes
            import ctypes

            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self))  # or the end of Python would close it
        _abandoned.append(self)


# ---- forks

# This process's open connections; the abandoned ones; those inherited from a fork during a transaction; and the files
# of inherited descriptors, except those of our connections.
_open: weakref.WeakSet[Connection] = weakref.WeakSet()
_abandoned: list[Connection] = []
_unfinished: list[Connection] = []
_inherited: dict[int, Identity | None] = {}


def _close_inherited() -> None:
    """In a forked child: close the parent's connections.

    SQLite records its locks for each file in the process, and a fork copies the record without the locks. A new
    connection in the child would then believe that it holds the inherited locks. And the parent's last close would
    remove the log while the child writes to it. A connection in a transaction stays open, because closing it would roll
    back the parent's transaction; then the child can open no other. The same is true for a connection of the program
    itself, which we may not close.
    """
    for connection in list(_open):
        with suppress(sqlite3.ProgrammingError):  # it is already closed
            if connection in _abandoned:
                continue
            # If the parent's heartbeat was in a statement, its lock is never released in the child.
            if connection.in_transaction or not connection.in_use.acquire(blocking=False):
                _unfinished.append(connection)
            else:
                # Not Connection.close(): the log may be missing or new if the parent has closed its connection.
                sqlite3.Connection.close(connection)
    _open.clear()
    _inherited.clear()
    _inherited.update(_descriptors())


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_close_inherited)


def _descriptors() -> dict[int, Identity | None]:
    """The files of this process's descriptors; empty if the system cannot list them, as at their limit."""
    with suppress(OSError):
        return {number: identity_of(number) for number in map(int, os.listdir("/dev/fd"))}
    return {}


# ---- opening


def open_connection(path: Path, synchronous: str, error_of: Callable[[BaseException], DatabaseError]) -> Connection:
    """A connection to an existing file; `synchronous` is for the PRAGMA. Raises DatabaseError."""
    try:
        os.stat(path)
    except FileNotFoundError:  # or its folder
        raise missing(f"there is no database {path}") from None
    except OSError:
        pass  # SQLite says that it cannot be opened
    if _unfinished:
        raise DatabaseError(f"{path}: this process was forked while another thread wrote to SQLite; fork before that")
    database = identity_of(path)
    for number in [number for number, identity in _inherited.items() if identity == database]:
        if identity_of(number) == database:
            raise DatabaseError(
                f"{path}: this process was forked while the program had this file open, as by a connection of its own; "
                "close that before the fork"
            )
        del _inherited[number]  # it was closed: our own connection may get this number next
    if any(kept.files[0][1] == database for kept in _abandoned):
        # SQLite would share locks and descriptors with the abandoned connection.
        raise DatabaseError(f"{path}: {FILES_CHANGED}; this process cannot open it any more")
    try:
        connection = sqlite3.connect(
            path,
            timeout=LOCK_WAIT_SECONDS,
            isolation_level=None,  # we begin and commit transactions ourselves
            check_same_thread=False,  # close() closes the connections of all threads
            factory=Connection,
        )
        _open.add(connection)
        # With `full`, a commit is on the disk when it returns, as on MySQL. SQLite opens its log here.
        connection.execute(f"PRAGMA synchronous = {synchronous}")
    except DRIVER_ERRORS as error:
        raise error_of(error) from error
    real = os.path.realpath(path)  # the log is next to the link's target
    own = [number for number, identity in _descriptors().items() if identity == database]
    files: list[tuple[Sequence[str | int], Identity | None]] = [([str(path)], database), (own, database)]
    files.append(([f"{real}-shm"], identity_of(f"{real}-shm")))
    connection.files = [(names, identity) for names, identity in files if names and identity]
    return connection


# ---- statements


class SQLiteSession(Session):
    """One thread's connection of ours to a file."""

    driver_errors = DRIVER_ERRORS
    begin_sql = "BEGIN IMMEDIATE"

    def __init__(self, path: Path, synchronous: str, error_of: Callable[[BaseException], DatabaseError]) -> None:
        super().__init__()
        self._path = path
        self._synchronous = synchronous
        self._error_of = error_of

    def connect(self, pace: Pace) -> None:
        connection = open_connection(self._path, self._synchronous, self._error_of)
        # Invalid UTF-8 must not end a worker; the code that uses the text handles the surrogates.
        connection.text_factory = lambda value: value.decode("utf-8", "surrogateescape")
        connection.in_use = self.in_use
        self.cursor = connection.cursor()
        self.connection = connection

    def make_ready(self, pace: Pace) -> None:
        if self.connection.is_abandoned:
            self.close()
            raise DatabaseError(f"{self._path}: {FILES_CHANGED}")

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
    """An id beyond 64 bits, as MySQL has, becomes a float that no id equals."""
    return float(value) if isinstance(value, int) and abs(value) >= 2**63 else value
