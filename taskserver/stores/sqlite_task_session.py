"""The connection that a task's code gets on SQLite.

Its transaction has the lock of the one writer from its begin on, so nobody can take the task away meanwhile. SQLite
asks about each statement before it is run: what would end the transaction is refused.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from ..stopping import uninterrupted
from .database import Session
from .task_session import SET_SAVEPOINT, TaskSession

ENDS = ("COMMIT", "ROLLBACK")
LONGEST_REST_SECONDS = 0.12
"""SQLite looks every tenth of a second, having waited for a while."""
lent_in: dict[int, str] = {}
"""Threads that have such a transaction open, and the files: what else they write there would wait for themselves."""


class TaskConnection(sqlite3.Connection):
    """The driver's, whose transaction ends with the task. Closing it is put off till then."""

    in_use = threading.RLock()
    """That of its session, once it has one."""
    session: SQLiteTaskSession | None = None
    _is_rolling_back = False

    @property
    def _lender(self) -> SQLiteTaskSession | None:
        """None while it is ours."""
        return self.session if self.session is not None and self.session.is_lent else None

    def commit(self) -> None:
        if self._lender is not None:
            raise self._lender.refuse("commit()")
        super().commit()

    @uninterrupted
    def rollback(self) -> None:
        """Undo what the task wrote so far; its transaction begins anew."""
        self._is_rolling_back = True
        try:
            super().rollback()
        finally:
            self._is_rolling_back = False
        if self._lender is not None:
            self._lender.begin()

    def __enter__(self) -> TaskConnection:
        return self

    def __exit__(self, *error: object) -> Any:
        # The driver's would commit, or roll back.
        return False if self._lender is not None else super().__exit__(*error)  # type: ignore[arg-type]

    def close(self) -> None:
        if self._lender is None:
            super().close()

    def authorize(self, action: int, words: str | None, *others: str | None) -> int:
        """Asked by SQLite before a statement is run."""
        lender = self._lender
        if lender is not None and lender.pid != os.getpid():
            return sqlite3.SQLITE_DENY  # a forked process, whose parent would not know what it wrote
        if lender is None or action != sqlite3.SQLITE_TRANSACTION or words not in ENDS or self._is_rolling_back:
            return sqlite3.SQLITE_OK
        lender.refuse(words)
        return sqlite3.SQLITE_DENY


class SQLiteTaskSession(TaskSession):
    """One of those."""

    connection: TaskConnection

    def __init__(self, path: str, connect: Callable[[type[TaskConnection]], TaskConnection]) -> None:
        super().__init__()
        self._path = path
        self._began_at = 0.0
        self.connection = connect(TaskConnection)
        # Where SQLite itself rolled back, as on a full disk, what a task writes after that is to be in a transaction.
        self.connection.isolation_level = "IMMEDIATE"
        self._lend()

    def _lend(self) -> None:
        self.pid = os.getpid()
        self.connection.session = self
        self.connection.set_authorizer(self.connection.authorize)

    def stands(self) -> bool:
        return True

    @uninterrupted
    def begin(self) -> None:
        self.connection.row_factory = None  # which a task may have set
        self.connection.execute("BEGIN IMMEDIATE")
        self.connection.execute(SET_SAVEPOINT)
        lent_in[threading.get_ident()] = self._path
        self._began_at = time.monotonic()

    def hurry(self, is_in_hurry: bool) -> None:
        pass

    def finished(self) -> None:
        if lent_in.pop(threading.get_ident(), None) is not None:
            self._let_others_in()

    def _let_others_in(self) -> None:
        # Who waits for the lock looks for it now and then, and would never find it free between one task and the next.
        time.sleep(min(time.monotonic() - self._began_at, LONGEST_REST_SECONDS))

    def close(self) -> None:
        self.connection.session = None
        with suppress(sqlite3.Error):
            # Closing alone would not: the cursors of a failed task, which its traceback holds, keep the lock.
            self.connection.rollback()
        self.connection.close()
        self.finished()

    def is_savepoint_missing(self, error: BaseException | None) -> bool:
        return "no such savepoint" in str(error)

    def was_rolled_back(self) -> bool:
        return True  # as what a task may end it by is refused


class MemoryTaskSession(SQLiteTaskSession):
    """The one connection of a database in memory, from which other threads are kept away meanwhile."""

    def __init__(self, path: str, shared: Session) -> None:
        TaskSession.__init__(self)
        self._path = path
        self._began_at = 0.0
        self._shared = shared
        self.connection = shared.connection
        self._lend()

    @uninterrupted
    def begin(self) -> None:
        if not self._shared.in_transaction:
            self._shared.in_use.acquire()
            self._shared.in_transaction = True
        super().begin()
        # Anew, so that SQLite asks of statements too that were prepared before, such as the store's own COMMIT.
        self._lend()

    def _let_others_in(self) -> None:
        pass  # they wait for the session, which wakes them up

    def finished(self) -> None:
        super().finished()
        if self._shared.in_transaction:
            self._shared.in_transaction = False
            self._shared.in_use.release()

    def close(self) -> None:
        # The database would go with its connection.
        self.connection.session = None
        if self.connection.in_transaction:
            self.connection.rollback()
        self.finished()
