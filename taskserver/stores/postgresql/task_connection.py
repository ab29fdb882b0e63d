"""The connection that a task's code gets on PostgreSQL: psycopg's own.

Nothing commits a transaction there but a COMMIT: CREATE TABLE is a part of it, and a second BEGIN does nothing. After
an error the server refuses all statements, until the transaction is rolled back, or goes back to a savepoint.

Between us and the server may stand a pooler of transactions: all settings are those of the one transaction, and no
statement is prepared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from ...errors import DatabaseError
from ...settings.dsn import PostgreSQLDsn
from ..session import Pace
from ..task_connection import ROLLBACK_TO_SAVEPOINT, SET_SAVEPOINT, TaskConnection
from .connection import Connection, connect_to, suit
from .errors import DRIVER_ERRORS, IN_FAILED_TRANSACTION, NO_TRANSACTION, SAVEPOINT_MISSING, state_of

SECONDS_OF_OURS = 60
"""The wait for the answer to a statement of ours."""
CANCEL_SECONDS = 2.0

# A task may compute, or wait for a lock, for longer than hosts let a statement or a transaction take.
UNLIMITED = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout")
UNLIMITED_SINCE_17 = ("transaction_timeout",)
VERSION_17 = 170_000
OWN_TRANSACTION = """
    FROM pg_catalog.pg_locks
    WHERE locktype = 'virtualxid' AND virtualxid = virtualtransaction AND pid = pg_catalog.pg_backend_pid()
"""
# A transaction that has written nothing has no id of its own: asking gives it one.
BEGUN = f"SELECT pid, virtualtransaction, CAST(pg_catalog.pg_current_xact_id() AS text){{}} {OWN_TRANSACTION}"
ENDED = f"SELECT pid, virtualtransaction, pg_catalog.pg_xact_status(CAST($1 AS xid8)) {OWN_TRANSACTION}"


class PostgreSQLTaskConnection(TaskConnection):
    """A connection to PostgreSQL for one task's own transaction."""

    connection: Connection

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._pid = 0
        """The server's process that has the transaction."""
        self._session, self._number = "", 0
        """That process by another number, and the number of the transaction among its own: each adds one."""
        self._transaction_id = ""

    def execute(self, composed: str, values: Sequence[Any] = ()) -> Any:
        # Ours, with the marks $1, $2: the task may choose another kind of cursors, rows and values for its connection.
        cursor = psycopg.RawCursor(self.connection, row_factory=tuple_row)
        suit(cursor)
        cursor.execute(composed.encode(), values or None)
        if composed.startswith("COMMIT") and cursor.statusmessage != "COMMIT":
            # The server answers so where an error went before, and says nothing of it.
            raise psycopg.errors.InFailedSqlTransaction("the transaction was rolled back")
        return cursor

    def begin(self) -> None:
        # The driver begins the transaction before its first statement.
        version = self.connection.info.server_version
        names = UNLIMITED + (UNLIMITED_SINCE_17 if version >= VERSION_17 else ())
        unlimited = "".join(f", pg_catalog.set_config('{name}', '0', true)" for name in names)
        ((self._pid, own, self._transaction_id, *_),) = self.execute(BEGUN.format(unlimited)).fetchall()
        self._session, self._number = _parts(own)
        self.execute(SET_SAVEPOINT)
        self.connection.answer_seconds = None  # the task's own statements may take any time

    def take_back(self) -> None:
        self.connection.answer_seconds = SECONDS_OF_OURS

    def is_savepoint_missing(self, error: BaseException | None) -> bool:
        # Or it is not to be had, after an error that the task kept to itself.
        return state_of(error) in (SAVEPOINT_MISSING, NO_TRANSACTION, IN_FAILED_TRANSACTION)

    @property
    def has_ended(self) -> bool:
        return self.connection.last_status == TransactionStatus.IDLE

    def is_nothing_committed(self) -> bool:
        return self._is_still_open() or self._was_rolled_back()

    def _is_still_open(self) -> bool:
        """Whether the transaction is the one that was begun: a failed one goes back to its savepoint, if it has it."""
        if self.connection.info.transaction_status != TransactionStatus.INERROR:
            return False
        try:
            self.execute(ROLLBACK_TO_SAVEPOINT)
        except psycopg.Error as error:
            if state_of(error) != SAVEPOINT_MISSING:
                raise
            return False
        return True

    def _was_rolled_back(self) -> bool:
        """Whether the transaction that was begun was rolled back, and none was committed after it.

        The session's transactions are numbered. The last one before this look is that in which the savepoint was
        missing, and is not committed either. So nothing is known where the task had others between these two, or where
        a pooler may have had them elsewhere.
        """
        self.connection.rollback()
        ((pid, own, status),) = self.execute(ENDED, (self._transaction_id,)).fetchall()
        session, number = _parts(own)
        is_same_session = self.connection.info.backend_pid == pid == self._pid and session == self._session
        return is_same_session and status == "aborted" and number - self._number in (1, 2)

    def close(self) -> None:
        # A statement goes on without us, and keeps its locks from the next attempt. An old libpq could wait for long.
        with suppress(*DRIVER_ERRORS):
            is_busy = self.connection.info.transaction_status == TransactionStatus.ACTIVE
            if is_busy and psycopg.capabilities.has_cancel_safe():
                self.connection.cancel_safe(timeout=CANCEL_SECONDS)
        with suppress(*DRIVER_ERRORS):
            self.connection.close()


def open_task_connection(
    dsn: PostgreSQLDsn, pace: Pace, login_error: Callable[[BaseException], DatabaseError]
) -> PostgreSQLTaskConnection:
    """A new connection. Raises DatabaseError; `login_error` translates an error of the driver."""
    try:
        connection = connect_to(dsn, pace.answer_seconds, prepare_threshold=None)
        connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
    except Exception as error:  # a server that is none of PostgreSQL's may make the driver raise anything
        raise login_error(error) from None
    connection.answer_seconds = min(SECONDS_OF_OURS, pace.answer_seconds)
    return PostgreSQLTaskConnection(connection)


def _parts(virtual_transaction: str) -> tuple[str, int]:
    """The session's number and its transaction's, as of 3/17."""
    session, _, number = virtual_transaction.partition("/")
    return session, int(number)
