"""A connection of the standard library's driver: how it is opened, and what a fork and a loss of its files do to it."""

from __future__ import annotations

import os
import sqlite3
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from ...errors import DatabaseError
from ..dialect import missing
from .errors import DRIVER_ERRORS
from .open_files import Identity, OpenFiles, descriptors, identity_of

LOCK_WAIT_SECONDS = 2.0
"""One turn of waiting for the writer; between turns a signal is heard and the patience ends."""
FILES_CHANGED = (
    "what is open is no longer the file at this path with its log: a task has closed files that are not its own, or "
    "opened this one by other means than SQLite, or somebody has put another in its place; see docs/guarantees.md"
)


class Connection(sqlite3.Connection):
    """The driver's connection. Once its files are others it is abandoned: it writes nothing, and it is never closed.

    A close writes what the log holds into the database's file and removes the log, by descriptors and names that may
    lead to other files by then.
    """

    in_use = threading.RLock()
    """Its session's lock, once it has a session."""
    files: OpenFiles | None = None

    @property
    def is_abandoned(self) -> bool:
        """Whether nothing may be written by it any more."""
        return self.files is not None and self.files.are_others

    def close(self) -> None:
        if self.is_abandoned:
            _keep(self)
        else:
            super().close()


def _keep(connection: Connection) -> None:
    """Losing its last reference would close the connection, and so would the end of Python."""
    with suppress(ImportError):  # a Python without ctypes
        import ctypes

        ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))
    _abandoned.append(connection)


# The open connections of this process, the abandoned ones, and those that a fork left in it in the midst of a
# transaction.
_open: weakref.WeakSet[Connection] = weakref.WeakSet()
_abandoned: list[Connection] = []
_unfinished: list[Connection] = []
# The files of the descriptors that a fork left in this process, our connections' own apart.
_inherited: dict[int, Identity | None] = {}


def _close_inherited() -> None:
    """In a forked child: close the connections that its parent had open.

    SQLite keeps one account of its locks for each file and process, and a fork copies the account without the locks. A
    connection that the child opens beside an inherited one takes the file for locked, and a parent that closes last
    removes the log into which the child goes on writing. A connection in the midst of a transaction stays open, as a
    close would roll back the parent's transaction; beside it the child can open no other. Nor can it beside one of
    the program's own, which is not ours to close.
    """
    for connection in list(_open):
        with suppress(sqlite3.ProgrammingError):  # it is closed, and something still refers to it
            if connection not in _abandoned:
                _close_here(connection)
    _open.clear()
    _inherited.clear()
    _inherited.update(descriptors())


def _close_here(connection: Connection) -> None:
    # The parent's heartbeat may be in the midst of a statement: the child would wait for its end for ever.
    if connection.in_transaction or not connection.in_use.acquire(blocking=False):
        _unfinished.append(connection)
    elif connection.files is not None and connection.files.were_closed:
        _keep(connection)
    else:
        # Not Connection.close(): the log may be gone, or another, as the parent may have closed its connection since.
        sqlite3.Connection.close(connection)


os.register_at_fork(after_in_child=_close_inherited)


def open_connection(path: Path, synchronous: str, error_of: Callable[[BaseException], DatabaseError]) -> Connection:
    """A connection to an existing file, with this word for PRAGMA synchronous. Raises DatabaseError."""
    if not os.path.exists(path):
        raise missing(f"there is no database {path}")
    if _unfinished:
        raise DatabaseError(f"{path}: this process was forked while another thread wrote to SQLite; fork before that")
    database = identity_of(path)
    inherited = [number for number, identity in list(_inherited.items()) if identity == database]
    if any(identity_of(number) == database for number in inherited):
        raise DatabaseError(
            f"{path}: this process was forked while the program had this file open, as by a connection of its own; "
            "close that before the fork"
        )
    for number in inherited:  # closed since: this number may be that of our own connection next
        _inherited.pop(number, None)
    if any(kept.files and kept.files.database == database for kept in _abandoned):
        # SQLite would share locks and descriptors with the abandoned connection.
        raise DatabaseError(f"{path}: {FILES_CHANGED}; this process cannot open it any more")
    try:
        connection = sqlite3.connect(
            path,
            timeout=LOCK_WAIT_SECONDS,
            isolation_level=None,  # our own statements begin and commit transactions
            check_same_thread=False,  # close() closes the connections of all threads
            factory=Connection,
        )
        _open.add(connection)
        # With `full` a commit is on the disk when it returns, as on MySQL. SQLite opens its log here.
        connection.execute(f"PRAGMA synchronous = {synchronous}")
    except DRIVER_ERRORS as error:
        raise error_of(error) from error
    connection.files = OpenFiles(path)
    return connection
