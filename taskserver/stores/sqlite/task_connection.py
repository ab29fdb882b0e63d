"""The connection that a task's code gets on SQLite: the standard library's own.

Its transaction has the one writer's lock from its begin on, so nobody can take the task away meanwhile. SQLite asks us
about each statement when it is prepared: a commit is refused, and so is everything once the transaction is gone, as
each statement would be committed by itself then.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from contextlib import suppress

from ...interrupts.stopping import uninterrupted
from ..retrying import rest_after
from ..task_connection import SET_SAVEPOINT, TaskConnection
from .lent_locks import lent_in


class SQLiteTaskConnection(TaskConnection):
    """A connection to SQLite for one task's own transaction."""

    def __init__(self, path: str, connection: sqlite3.Connection) -> None:
        """`path` is the file's real one."""
        self.connection: sqlite3.Connection = connection
        self._path = path
        self._pid = os.getpid()
        self._is_lent = False
        """Whether a task's code has the connection."""
        self._began_at = 0.0
        self._changes = 0
        """Rows that the connection had changed when a statement was prepared last."""
        connection.set_authorizer(self._authorize)

    def _authorize(self, action: int, word: str | None, *others: str | None) -> int:
        if not self._is_lent:
            return sqlite3.SQLITE_OK
        self._changes = self.connection.total_changes
        # A forked process is refused, too: its parent would not know of its writes.
        if not self.connection.in_transaction or os.getpid() != self._pid:
            self.has_gone_on = True
            return sqlite3.SQLITE_DENY
        if action == sqlite3.SQLITE_TRANSACTION and word == "COMMIT":
            self.refused = word
            return sqlite3.SQLITE_DENY
        return sqlite3.SQLITE_OK

    @uninterrupted
    def begin(self) -> None:
        self.connection.execute("BEGIN IMMEDIATE")
        self.connection.execute(SET_SAVEPOINT)
        lent_in[threading.get_ident()] = self._path
        self._began_at = time.monotonic()
        self._is_lent = True

    def take_back(self) -> None:
        self._is_lent = False

    def is_savepoint_missing(self, error: BaseException | None) -> bool:
        return "no such savepoint" in str(error)

    def is_nothing_committed(self) -> bool:
        # As a commit is refused. But a statement that is done again, for each row of an iterator, is prepared once.
        return self.connection.total_changes == self._changes

    def close(self) -> None:
        self._is_lent = False
        with suppress(sqlite3.Error):
            # A close alone leaves the lock with the cursors of a failed task, which its traceback holds.
            self.connection.rollback()
        self.connection.close()
        if lent_in.pop(threading.get_ident(), None) is not None:
            rest_after(self._began_at)
