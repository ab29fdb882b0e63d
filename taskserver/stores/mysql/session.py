"""One thread's connection to MySQL or MariaDB, on PyMySQL."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence
from functools import partial
from math import isfinite
from typing import Any

import pymysql
from pymysql.constants import CLIENT

from ...errors import DatabaseError
from ...settings.dsn import MySQLDsn
from ..session import Pace, Session
from ..statements import MAX_UTF8_BYTES, SHORT_BYTES, Write
from .connection import Connection
from .errors import DRIVER_ERRORS, LOCK_WAIT_ENDED, NO_ID_LEFT, STATEMENT_BINLOG, TOO_LONG, number_of
from .login import log_in

READ_SECONDS_IN_A_RUN = 10
"""A worker's statements are short: a server that is silent for so long is gone, though TCP may not know it yet."""
READ_SECONDS = 60
"""Producers wait longer: after a cut they would not know whether their task was added."""

# UTC, as NOW() in a zone with summer time gives one hour twice a year; strict, so that nothing of ours is cut
# silently; backslash escapes on, as PyMySQL quotes with them.
# Locks of rows are waited for in short turns, between which a signal is heard and the patience ends.
# The others are as servers come, and hosts set them otherwise. A host's max_join_size would refuse a claim among many
# tasks, sql_safe_updates each claim; sql_select_limit would hide tasks that were claimed; completion_type CHAIN or
# RELEASE would undo what follows a COMMIT; without unique_checks a key could stand twice. Where autocommit
# is off for all, MySQL's greeting says that it is on, which the driver believes; and from 0 to 1 it ends a transaction
# that an init_connect began.
# A host's limit on a statement's time is for what web pages forget to bound. Ours are short, or a person waits for them
# (a look through all rows, a change of the tables): cut off, they would begin anew and never end. Each server passes
# over the comments that are not for it.
SESSION = (
    "SET time_zone = '+00:00', sql_mode = 'STRICT_ALL_TABLES', innodb_lock_wait_timeout = 1, sql_big_selects = 1, "
    "autocommit = 0, autocommit = 1, sql_safe_updates = 0, sql_select_limit = 18446744073709551615, "
    "completion_type = 0, unique_checks = 1/*!50708 , max_execution_time = 0*//*M!100101 , max_statement_time = 0*/"
)
# A worker waits in short turns for locks of whole tables (a backup's), too: to hang up instead would leave the
# statement waiting on the server, with a connection that counts. Producers and changes of tables wait as long as the
# server allows.
IN_A_RUN = "lock_wait_timeout = 1"
AFTER_A_RUN = "SET lock_wait_timeout = DEFAULT, autocommit = 1"
READ_COMMITTED = "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED"
REPEATABLE_READ = "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ"

# MariaDB says the same where an INSERT of many rows holds the counter for longer than is waited.
IS_NO_ID_LEFT = """
    SELECT VERSION() NOT LIKE '%%MariaDB%%' OR MAX(auto_increment) > 9223372036854775807
    FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name IN (%s, %s)
"""

ANY_BYTES = "taskserver_any_bytes"
"""UTF-8 that decodes each invalid byte to a lone surrogate: MariaDB keeps those that some programs make of emojis."""


class Abilities:
    """The abilities of a server, found out by its errors; all connections of a store share them."""

    isolation = READ_COMMITTED
    """REPEATABLE_READ where replication is by statements: it refuses writes in READ COMMITTED."""


class MySQLSession(Session):
    """One thread's connection of ours."""

    def __init__(
        self, dsn: MySQLDsn, table: str, abilities: Abilities, error_of: Callable[[Exception], DatabaseError]
    ) -> None:
        """`error_of` translates an error at login."""
        super().__init__()
        self._table = table
        self._dsn = dsn
        self._abilities = abilities
        self._error_of = error_of
        self._isolation = abilities.isolation
        self._packet_bytes = 0
        """The server's limit on a statement; 0 until a statement is long enough to ask for it."""

    # ---- the connection

    def connect(self, pace: Pace) -> None:
        connect = partial(
            Connection,
            autocommit=True,
            # Count matched rows, not changed ones: a write that changes nothing has found its claim all the same.
            client_flag=CLIENT.FOUND_ROWS | CLIENT.MULTI_STATEMENTS,
            init_command=f"{SESSION}, {IN_A_RUN}" if pace.is_in_run else SESSION,
        )
        self._isolation = self._abilities.isolation
        try:
            connection = log_in(self._dsn, connect, pace.answer_seconds)
            with connection.cursor() as cursor:
                cursor.execute(self._isolation)
        except Exception as error:  # a server that is none of MySQL's may make the driver raise anything
            raise self._error_of(error) from None
        connection.encoding = ANY_BYTES
        self._packet_bytes = 0
        self.cursor = connection.cursor()
        self.connection = connection
        self.is_in_run = pace.is_in_run

    def close(self) -> None:
        connection, self.connection, self.cursor = self.connection, None, None
        if connection is not None:
            try:
                connection.close()
            except DRIVER_ERRORS:
                pass

    def hasten(self, pace: Pace) -> None:
        wait_for_answers(self.connection, _read_seconds(pace))

    def suit(self, pace: Pace) -> None:
        # The connection may be from before the run, and be used after it.
        self.send(f"SET {IN_A_RUN}" if pace.is_in_run else AFTER_A_RUN)
        super().suit(pace)

    def is_alive(self) -> bool:
        try:
            self.connection.ping(reconnect=False)
        except DRIVER_ERRORS:
            return False
        return True

    # ---- statements

    @property
    def commits_by_itself(self) -> bool:
        autocommit: bool = self.connection.get_autocommit()
        return autocommit

    def begin(self) -> None:
        if self.commits_by_itself:
            super().begin()

    def send(self, sql: str, values: Sequence[Any] = ()) -> Any:
        self._send(filled(self.cursor, sql, values))
        return self.cursor

    def _send(self, text: str) -> None:
        """Send a text. Raises an error, as of the driver, where the server would hang up on it."""
        if len(text) * MAX_UTF8_BYTES > SHORT_BYTES:
            size = len(text.encode("utf-8", "surrogateescape"))
            if size > SHORT_BYTES:
                self._packet_bytes = self._packet_bytes or packet_bytes(self.cursor)
                if size >= self._packet_bytes - 1:
                    raise pymysql.OperationalError(TOO_LONG, f"a statement has more than {self._packet_bytes} bytes")
        self.cursor.execute(text)

    def send_joined(self, writes: Sequence[Write], are_apart: bool, least: Sequence[int]) -> list[int]:
        cursor = self.cursor
        texts = [filled(cursor, sql, values) for sql, values in writes]
        opening = [self._opening()] if self.commits_by_itself else []
        self._send("; ".join([*opening, *texts, "COMMIT"]))
        matched = [cursor.rowcount]
        while cursor.nextset():
            matched.append(cursor.rowcount)
        return matched[len(opening) : -1]

    def _opening(self) -> str:
        # In a run many transactions follow one another: without autocommit none of them needs a BEGIN.
        return "SET autocommit = 0" if self.is_in_run else "BEGIN"

    def mend(self, error: Exception) -> bool:
        if number_of(error) == NO_ID_LEFT and not self._is_no_id_left():
            error.args = (LOCK_WAIT_ENDED, "the counter of ids, which another program holds, did not come in time")
        if number_of(error) != STATEMENT_BINLOG or self._isolation != READ_COMMITTED:
            return False
        # Go on in REPEATABLE READ: else statement-based replication refuses even a transaction's first write.
        self._abilities.isolation = self._isolation = REPEATABLE_READ
        self.send("ROLLBACK")
        self.send(REPEATABLE_READ)
        if self.in_transaction:
            self.begin()
        return True

    def _is_no_id_left(self) -> bool:
        self.cursor.execute(filled(self.cursor, IS_NO_ID_LEFT, (self._table, f"{self._table}_done")))
        return bool(self.cursor.fetchall()[0][0])


def wait_for_answers(connection: Any, seconds: float | None) -> None:
    """Set how long a connection waits for each answer; None: for ever."""
    connection._read_timeout = connection._write_timeout = seconds  # the driver has no public setter for these


def packet_bytes(cursor: Any) -> int:
    """The server's max_allowed_packet, as a session began with it: a statement and one byte must be shorter."""
    cursor.execute("SELECT @@SESSION.max_allowed_packet LIMIT 1")
    return int(cursor.fetchall()[0][0])


def _read_seconds(pace: Pace) -> float | None:
    if pace.is_unhurried:  # unless somebody waits for the whole, as a visitor does
        return pace.answer_seconds if isfinite(pace.answer_seconds) else None
    return min(READ_SECONDS_IN_A_RUN if pace.is_in_run else READ_SECONDS, pace.answer_seconds)


def filled(cursor: Any, sql: str, values: Sequence[Any]) -> str:
    """A statement with its values filled in, in the driver's quotes: the driver's protocol has no parameters."""
    # The driver would do the same at a higher cost, which counts here: numbers need no quotes.
    escape = cursor.connection.escape
    return sql % tuple([value if type(value) is int else escape(value) for value in values])


def _decode(text: Any, errors: str = "strict") -> tuple[str, int]:
    return codecs.utf_8_decode(text, "surrogateescape", True)


_CODEC = codecs.CodecInfo(codecs.utf_8_encode, _decode, name=ANY_BYTES)
codecs.register({ANY_BYTES: _CODEC}.get)
