"""The connection that a task's code gets on MySQL and MariaDB.

It is PyMySQL's own, except that calls which would end the transaction are refused. With each answer the server says
whether a transaction is open: so a statement is noticed that commits by itself, as CREATE TABLE does.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any, TypeVar

import pymysql
from pymysql.connections import Connection
from pymysql.constants.SERVER_STATUS import SERVER_STATUS_IN_TRANS
from pymysql.cursors import Cursor

from ..database.task_session import IDLE, SET_SAVEPOINT, TaskSession
from .errors import LOCK_WAIT, ROLL_BACK, SAVEPOINT_MISSING, number_of

T = TypeVar("T")

IDLE_SECONDS = 1.0
SECONDS_OF_OURS = 60
"""The wait for the answer to a statement of ours: longer than the server waits for a lock."""
LOST = 2013


class TaskConnection(Connection):
    """PyMySQL's connection with a transaction that ends with the task. A close is put off till then."""

    session: MySQLTaskSession | None = None
    is_in_transaction = False
    is_over = False
    """Whether our session has closed: nobody commits later writes, so they are refused."""
    pid = 0
    """The process that opened the connection."""
    _is_answer_due = False
    """Whether an answer was not read to its end, as an interrupt or an unreadable value came in between. The next
    statement would take the rest for its own answer."""
    _words = ""
    """The first words of the last statement."""

    @property
    def _lender(self) -> MySQLTaskSession | None:
        """The session while a task's code has the connection; None while it is ours."""
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

    def rollback(self) -> None:
        """Undo the task's writes so far; its transaction begins anew."""
        if self._lender is not None:
            self._lender.rolled_back_by = "rollback() was interrupted"  # begin() clears it
        super().rollback()
        if self._lender is not None:
            self._lender.begin()

    def close(self) -> None:
        if self.session is None:
            super().close()

    def connect(self, sock: Any = None) -> None:
        # A reconnect, as by ping(), would lose the writes on the connection that broke.
        if self._lender is not None or self.is_over:
            raise pymysql.OperationalError(LOST, "the connection of the task's transaction broke")
        super().connect(sock)

    def query(self, sql: str | bytes, unbuffered: bool = False) -> int:
        self._words = _shown(sql)
        affected: int = super().query(sql, unbuffered)
        return affected

    # The driver has no public place for these checks. The first of the following methods sends each statement; one of
    # the others reads each answer.

    def _execute_command(self, command: int, sql: str | bytes) -> None:
        if self.session is not None and self.pid != os.getpid():
            raise pymysql.OperationalError(LOST, "a forked process cannot use the connection of its parent's task")
        if self.session is not None and self.session.is_idle:
            raise pymysql.OperationalError(LOST, IDLE)
        if self._is_answer_due:
            self._force_close()  # type: ignore[attr-defined]
            raise pymysql.OperationalError(LOST, "the task went on though the answer before this one was cut off")
        self._is_answer_due = True
        try:
            super()._execute_command(command, sql)  # type: ignore[misc]
        except (TypeError, ValueError):  # the statement could not be written, and was not sent
            self._is_answer_due = False
            raise

    def _read_query_result(self, unbuffered: bool = False) -> int:
        affected: int = self._read_whole(super()._read_query_result, unbuffered)  # type: ignore[misc]
        was_in_transaction = self.is_in_transaction
        self.is_in_transaction = bool(self.server_status & SERVER_STATUS_IN_TRANS)  # type: ignore[attr-defined]
        if was_in_transaction and not self.is_in_transaction and self._lender is not None:
            raise self._lender.notice(self._words)
        return affected

    def next_result(self, unbuffered: bool = False) -> int:
        # The driver calls this on the way to the next statement, too, while that one's answer is due already.
        was_due, self._is_answer_due = self._is_answer_due, True
        affected: int = super().next_result(unbuffered)
        self._is_answer_due = was_due
        return affected

    def _read_ok_packet(self) -> Any:
        return self._read_whole(super()._read_ok_packet)  # type: ignore[misc]

    def set_character_set(self, charset: str, collation: str | None = None) -> None:
        self._read_whole(super().set_character_set, charset, collation)

    def show_warnings(self) -> Any:
        return self._read_whole(super().show_warnings)

    def _read_whole(self, read: Callable[..., T], *args: Any) -> T:
        try:
            answer = read(*args)
        except pymysql.MySQLError:  # an error is an answer, too, or the connection is closed
            self._is_answer_due = False
            raise
        self._is_answer_due = False
        return answer

    def _read_packet(self, *args: Any) -> Any:
        try:
            return super()._read_packet(*args)  # type: ignore[no-untyped-call]
        except pymysql.MySQLError as error:  # where rows are read one by one, it may come after any row
            self._note(error)
            raise

    def _note(self, error: pymysql.MySQLError) -> None:
        """Note the effect of an error on the transaction."""
        number = number_of(error)
        if number in ROLL_BACK:
            self.is_in_transaction = False
        if self._lender is not None and number in ROLL_BACK:
            self._lender.rolled_back_by = f"{error.args[-1]} ({number})"
        elif self._lender is not None and number == LOCK_WAIT:
            self._lender.has_waited_in_vain = True


def _shown(sql: str | bytes) -> str:
    """The first two words of a statement: the rest may have a secret."""
    text = sql.decode(errors="replace") if isinstance(sql, (bytes, bytearray)) else str(sql)
    return " ".join(text.split()[:2])[:40]


class MySQLTaskSession(TaskSession):
    """A session of MySQL or MariaDB for tasks' own transactions."""

    connection: TaskConnection

    def __init__(self, connection: TaskConnection) -> None:
        super().__init__()
        self.connection = connection
        connection.session = self
        connection.pid = os.getpid()
        self.has_waited_in_vain = False
        """Whether a lock did not come in time, which on some servers rolls back the whole transaction."""
        self._used_at = time.monotonic()

    def stands(self) -> bool:
        if time.monotonic() - self._used_at <= IDLE_SECONDS:
            return True
        self.is_idle = False
        try:
            self.connection.ping(reconnect=False)
        except (pymysql.MySQLError, OSError):
            return False
        self._used_at = time.monotonic()
        return True

    def begin(self) -> None:
        self.is_idle = self.has_waited_in_vain = False
        connection = self.connection
        for sql in ("BEGIN", SET_SAVEPOINT):
            connection.is_in_transaction = False
            connection.query(sql)
        self.rolled_back_by = ""

    def hurry(self, is_in_hurry: bool) -> None:
        # The driver has no public word for changing this.
        connection: Any = self.connection
        connection._read_timeout = connection._write_timeout = SECONDS_OF_OURS if is_in_hurry else None

    def finished(self) -> None:
        self._used_at = time.monotonic()
        self.is_idle = True

    def close(self) -> None:
        self.is_idle = False
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
