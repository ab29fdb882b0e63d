"""The connection that a task's code gets on MySQL and MariaDB.

It is PyMySQL's own but for what would end its transaction. That the server tells with each answer whether a transaction
is open shows what the task's statements committed by the way, as CREATE TABLE does.
"""

from __future__ import annotations

import os
import time
from typing import Any

import pymysql
from pymysql.connections import Connection
from pymysql.constants.SERVER_STATUS import SERVER_STATUS_IN_TRANS
from pymysql.cursors import Cursor

from ..stopping import uninterrupted
from .mysql_errors import LOCK_WAIT, ROLL_BACK, SAVEPOINT_MISSING, number_of
from .task_session import SET_SAVEPOINT, TaskSession

IDLE_SECONDS = 1.0
SECONDS_OF_OURS = 60
"""For the answer to a statement of ours: longer than the server waits for a lock."""
LOST = 2013


class TaskConnection(Connection):
    """PyMySQL's, whose transaction ends with the task. Closing it is put off till then."""

    session: MySQLTaskSession | None = None
    is_in_transaction = False
    is_over = False
    """Whether we let go of it, so that nobody completes what is written there."""
    pid = 0

    @property
    def _lender(self) -> MySQLTaskSession | None:
        """None while it is ours."""
        return self.session if self.session is not None and self.session.is_lent else None

    def commit(self) -> None:
        self._refuse("commit()")
        super().commit()

    def begin(self) -> None:
        self._refuse("begin()")
        super().begin()

    def autocommit(self, value: object) -> None:
        if value:
            self._refuse("autocommit()")
        super().autocommit(value)

    def _refuse(self, words: str) -> None:
        if self._lender is not None:
            raise self._lender.refuse(words)

    @uninterrupted
    def rollback(self) -> None:
        """Undo what the task wrote so far; its transaction begins anew."""
        super().rollback()
        if self._lender is not None:
            self._lender.begin()

    def close(self) -> None:
        if self._lender is None:
            super().close()

    def connect(self, sock: Any = None) -> None:
        # As by ping(): what was written on the one that broke would be missing.
        if self._lender is not None or self.is_over:
            raise pymysql.OperationalError(LOST, "the connection of the task's transaction broke")
        super().connect(sock)

    def query(self, sql: str | bytes, unbuffered: bool = False) -> int:
        if self.pid != os.getpid():
            raise pymysql.OperationalError(LOST, "a forked process cannot use the connection of its parent's task")
        try:
            affected: int = super().query(sql, unbuffered)
        except pymysql.MySQLError as error:
            self._note(error)
            raise
        was_in_transaction = self.is_in_transaction
        self.is_in_transaction = bool(self.server_status & SERVER_STATUS_IN_TRANS)  # type: ignore[attr-defined]
        if was_in_transaction and not self.is_in_transaction and self._lender is not None:
            raise self._lender.notice(_shown(sql))
        return affected

    def _note(self, error: pymysql.MySQLError) -> None:
        """What an error means for the transaction."""
        number = number_of(error)
        if number in ROLL_BACK:
            self.is_in_transaction = False
        if self._lender is not None and number in ROLL_BACK:
            self._lender.rolled_back_by = f"{error.args[-1]} ({number})"
        elif self._lender is not None and number == LOCK_WAIT:
            self._lender.has_waited_in_vain = True


def _shown(sql: str | bytes) -> str:
    """The first words of a statement: what follows them may be a secret."""
    text = sql.decode(errors="replace") if isinstance(sql, (bytes, bytearray)) else sql
    return " ".join(text.split()[:2])[:40]


class MySQLTaskSession(TaskSession):
    """One of those."""

    connection: TaskConnection

    def __init__(self, connection: TaskConnection) -> None:
        super().__init__()
        self.connection = connection
        connection.session = self
        connection.pid = os.getpid()
        self.has_waited_in_vain = False
        """Which on some servers rolls back the whole transaction."""
        self._used_at = time.monotonic()

    def stands(self) -> bool:
        if time.monotonic() - self._used_at <= IDLE_SECONDS:
            return True
        try:
            self.connection.ping(reconnect=False)
        except (pymysql.MySQLError, OSError):
            return False
        self._used_at = time.monotonic()
        return True

    @uninterrupted
    def begin(self) -> None:
        self.rolled_back_by = ""
        self.has_waited_in_vain = False
        connection = self.connection
        for sql in ("BEGIN", SET_SAVEPOINT):
            connection.is_in_transaction = False
            connection.query(sql)

    def hurry(self, is_in_hurry: bool) -> None:
        # The driver has no public word for changing this.
        connection: Any = self.connection
        connection._read_timeout = connection._write_timeout = SECONDS_OF_OURS if is_in_hurry else None

    def finished(self) -> None:
        self._used_at = time.monotonic()

    def close(self) -> None:
        self.connection.session = None
        self.connection.is_over = True
        try:
            self.connection.close()
        except (pymysql.MySQLError, OSError):
            pass

    def is_savepoint_missing(self, error: BaseException | None) -> bool:
        return number_of(error) == SAVEPOINT_MISSING

    def was_rolled_back(self) -> bool:
        if not self.has_waited_in_vain:
            return False
        try:
            cursor = self.connection.cursor(Cursor)
            cursor.execute("SELECT @@innodb_rollback_on_timeout")
            return bool(cursor.fetchall()[0][0])
        except (pymysql.MySQLError, OSError):
            return False
