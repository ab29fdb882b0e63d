"""The connection that a task's code gets on SQLite.

Its transaction has the one writer's lock from its begin on, so nobody can take the task away meanwhile. SQLite asks us
about each statement before it runs it: a statement that would end the transaction is refused.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from ...interrupts.stopping import uninterrupted
from ..database.session import Session
from ..database.task_session import IDLE, SET_SAVEPOINT, TaskSession
from .lent_locks import lent_in

ENDS = ("COMMIT", "ROLLBACK")
MAX_REST_SECONDS = 0.12
"""The longest pause after a transaction: a waiting process tries the lock every tenth of a second, after a while."""


class TaskCursor(sqlite3.Cursor):
    """The driver's cursor, which raises an error once the transaction is gone."""

    connection: TaskConnection

    def execute(self, *args: Any) -> TaskCursor:
        self.connection.check_transaction()
        return super().execute(*args)

    def executemany(self, sql: str, rows: Iterable[Any]) -> TaskCursor:
        self.connection.check_transaction()
        return super().executemany(sql, map(self._checked, rows))

    def _checked(self, row: Any) -> Any:
        self.connection.check_transaction()  # the iterator of the rows may use the connection, too
        return row


class TaskConnection(sqlite3.Connection):
    """The driver's connection with a transaction that ends with the task. A close is put off till then."""

    in_use = threading.RLock()
    """Its session's lock, once it has a session of ours."""
    session: SQLiteTaskSession | None = None
    _is_beginning = False
    """Whether the transaction begins anew, with a rollback first."""

    @property
    def _lender(self) -> SQLiteTaskSession | None:
        """The session while a task's code has the connection; None while it is ours."""
        return self.session if self.session is not None and self.session.is_lent else None

    @property
    def _is_undone(self) -> bool:
        """Whether SQLite rolled the task's transaction back: now it would commit each statement by itself."""
        return self._lender is not None and not self.in_transaction and not self._is_beginning

    def check_transaction(self) -> None:
        """Raises OperationalError where the task's transaction is not open any more."""
        if self.session is not None and self.session.is_idle:
            raise sqlite3.OperationalError(IDLE)
        if self._is_undone:
            raise sqlite3.OperationalError(
                "SQLite rolled back the task's transaction, by an error before this; "
                "taskserver.connection().rollback() begins it anew"
            )

    def cursor(self, factory: Any = TaskCursor) -> Any:
        return super().cursor(factory)

    # The driver's own methods would make their cursor without that method.

    def execute(self, *args: Any) -> Any:
        return self.cursor().execute(*args)

    def executemany(self, *args: Any) -> Any:
        return self.cursor().executemany(*args)

    def blobopen(self, *args: Any, **kwargs: Any) -> Any:
        self.check_transaction()  # SQLite asks nobody about that
        return super().blobopen(*args, **kwargs)  # type: ignore[misc]  # since Python 3.11

    def commit(self) -> None:
        if self._lender is not None:
            raise self._lender.refuse("commit()")
        super().commit()

    @uninterrupted
    def rollback(self) -> None:
        """Undo the task's writes so far; its transaction begins anew."""
        self._is_beginning = True
        try:
            super().rollback()
            if self._lender is not None:
                self._lender.begin()
        finally:
            self._is_beginning = False

    def __enter__(self) -> TaskConnection:
        return self

    def __exit__(self, *error: object) -> Any:
        # The driver's own method would commit, or roll back.
        return False if self._lender is not None else super().__exit__(*error)  # type: ignore[arg-type]

    def close(self) -> None:
        if self.session is None:
            super().close()

    def authorize(self, action: int, words: str | None, *others: str | None) -> int:
        """SQLite asks this when it prepares a statement: each time, as no prepared statements are kept."""
        if self.session is not None and self.session.is_idle:
            return sqlite3.SQLITE_DENY
        lender = self._lender
        if lender is None:
            return sqlite3.SQLITE_OK
        if lender.pid != os.getpid():
            return sqlite3.SQLITE_DENY  # a forked process: its parent would not know of its writes
        if self._is_beginning:
            return sqlite3.SQLITE_OK
        if self._is_undone:
            return sqlite3.SQLITE_DENY  # a cursor of another class got here without check_transaction
        if action != sqlite3.SQLITE_TRANSACTION or words not in ENDS:
            return sqlite3.SQLITE_OK
        lender.refuse(words)
        return sqlite3.SQLITE_DENY


class SQLiteTaskSession(TaskSession):
    """A session of SQLite for tasks' own transactions."""

    connection: TaskConnection

    def __init__(self, path: str, connect: Callable[[type[TaskConnection]], TaskConnection]) -> None:
        super().__init__()
        self._path = path
        self._began_at = 0.0
        self.connection = connect(TaskConnection)
        self._lend()

    def _lend(self) -> None:
        self.pid = os.getpid()
        self.connection.session = self
        self.connection.set_authorizer(self.connection.authorize)

    def stands(self) -> bool:
        return True

    @uninterrupted
    def begin(self) -> None:
        self.is_idle = False
        self.connection.row_factory = None  # a task may have set one
        self.connection.execute("BEGIN IMMEDIATE")
        self.connection.execute(SET_SAVEPOINT)
        lent_in[threading.get_ident()] = self._path
        self._began_at = time.monotonic()

    def hurry(self, is_in_hurry: bool) -> None:
        pass

    def finished(self) -> None:
        self.is_idle = True
        if lent_in.pop(threading.get_ident(), None) is not None:
            self._let_others_in()

    def _let_others_in(self) -> None:
        # A process that waits for the lock tries it now and then, and would never find it free between two tasks.
        time.sleep(min(time.monotonic() - self._began_at, MAX_REST_SECONDS))

    def close(self) -> None:
        self.connection.session = None
        with suppress(sqlite3.Error):
            # A close alone leaves the lock with the cursors of a failed task, which its traceback holds.
            self.connection.rollback()
        self.connection.close()
        self.finished()

    def is_savepoint_missing(self, error: BaseException | None) -> bool:
        return "no such savepoint" in str(error)

    def was_rolled_back(self) -> bool:
        return True  # a task cannot have ended it, as that is refused


class MemoryTaskSession(SQLiteTaskSession):
    """The one connection of a database in memory; other threads are kept away from it while a task has it."""

    def __init__(self, path: str, shared: Session) -> None:
        TaskSession.__init__(self)
        self._path = path
        self._began_at = 0.0
        self._shared = shared
        self.connection = shared.connection
        self._text_factory = self.connection.text_factory
        # The driver sets an authorizer with the GIL held, and would wait for ever for another thread's statement, which
        # needs the GIL to be authorized.
        with shared.in_use:
            self._lend()

    @uninterrupted
    def begin(self) -> None:
        if not self._shared.in_transaction:
            self._shared.in_use.acquire()
            self._shared.in_transaction = True
        super().begin()

    def _let_others_in(self) -> None:
        pass  # other threads wait for the session's lock, which wakes them up

    def finished(self) -> None:
        super().finished()
        self.is_idle = False  # the store goes on with the connection, in the state in which it was before
        self.connection.row_factory = self.connection.isolation_level = None
        self.connection.text_factory = self._text_factory
        if self._shared.in_transaction:
            self._shared.in_transaction = False
            self._shared.in_use.release()

    def close(self) -> None:
        # The database would go with its connection.
        self.connection.session = None
        if self.connection.in_transaction:
            self.connection.rollback()
        self.finished()
