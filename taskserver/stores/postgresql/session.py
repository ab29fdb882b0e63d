"""A session of PostgreSQL: one thread's connection, and the verbs on it.

Between us and the server may stand a pooler that gives each transaction another session of the server's (pgbouncer in
transaction mode). Nothing that belongs to a session can be relied on there: no setting, no prepared statement. Such a
session is known by the process id at login, which is not the server's. It has no statement outside of a transaction,
and each transaction sets what it needs for itself alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import count
from math import isfinite
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus

from ...errors import DatabaseError
from ...settings.dsn import PostgreSQLDsn
from ..session import Pace, RowsChanged, Session
from ..statements import Write
from .connection import connect_to, suit
from .errors import DRIVER_ERRORS

READ_SECONDS_IN_A_RUN = 10
"""A worker's statements are short: a server that is silent for so long is gone, though TCP may not know it yet."""
READ_SECONDS = 60
"""Producers wait longer: after a cut they would not know whether their task was added."""

# Locks of rows are waited for in short turns, between which a signal is heard and the patience ends. Hosts set some of
# the others otherwise; ours are short, or a person waits for them.
# The statistics of a queue are always old: they may say that no task is new, or that none is in progress. By them the
# planner would read all rows rather than an index, or compile a statement that takes a millisecond.
SETTINGS = {
    "timezone": "UTC",
    "lock_timeout": "1s",
    "statement_timeout": "0",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "jit": "off",
}
# The server finds out, within a minute, that the other end is no more, and rolls back what it left open: it would look
# once in two hours else.
OF_A_SESSION = {
    "default_transaction_isolation": "read committed",
    "tcp_keepalives_idle": "30",
    "tcp_keepalives_interval": "10",
    "tcp_keepalives_count": "3",
}
IN_A_RUN = {"statement_timeout": "10s"}
"""The longest statement of a worker: what it gave up waiting for is not to go on without it."""


def _set_all(settings: Mapping[str, str], is_local: bool) -> str:
    return "SELECT " + ", ".join(f"set_config('{name}', '{value}', {is_local})" for name, value in settings.items())


LOCALLY, LOCALLY_IN_A_RUN = _set_all(SETTINGS, True), _set_all(SETTINGS | IN_A_RUN, True)
IF_DIRECT = "WHERE pg_backend_pid() = $1"
"""A row comes only from a session of the server's own."""
BEGIN_POOLED = "BEGIN ISOLATION LEVEL READ COMMITTED"

PREPARES_WHAT_ASKS_FOR_IT = 2**62
"""The uses after which the driver prepares a statement by itself; with None it would prepare none at all."""
MAX_IN_ONE = 10
"""Writes that go as one statement. Of more, hardly two rounds have the same: each would be planned, and kept, anew."""
MAX_JOINED = 100
MARK = re.compile(r"\$\d+")
REPLACEMENT = "\ufffd"
MAX_NUMBER = 2**63


class PostgreSQLSession(Session):
    """One thread's connection of ours."""

    def __init__(self, dsn: PostgreSQLDsn, error_of: Callable[[BaseException], DatabaseError]) -> None:
        """`error_of` translates an error at login."""
        super().__init__()
        self._dsn = dsn
        self._error_of = error_of
        self.is_direct = False
        """Whether the server's own session is ours: no pooler of transactions stands between."""
        self._joined: dict[tuple[tuple[str, ...], bool], str] = {}

    # ---- the connection

    def connect(self, pace: Pace) -> None:
        try:
            self.connection = connect_to(
                self._dsn,
                pace.answer_seconds,
                autocommit=True,
                prepare_threshold=None,
                cursor_factory=psycopg.RawCursor,
            )
            suit(self.connection)
            self.cursor = self.connection.cursor()
            self.hasten(pace)
            settings = SETTINGS | OF_A_SESSION | (IN_A_RUN if pace.is_in_run else {})
            found = self.send(f"{_set_all(settings, False)} {IF_DIRECT}", (self.connection.info.backend_pid,))
            self.is_direct = bool(found.fetchall())
            if self.is_direct:
                self.connection.prepare_threshold = PREPARES_WHAT_ASKS_FOR_IT
        except Exception as error:  # a server that is none of PostgreSQL's may make the driver raise anything
            self.close()
            raise self._error_of(error) from None
        self.is_in_run = pace.is_in_run

    def close(self) -> None:
        connection, self.connection, self.cursor = self.connection, None, None
        if connection is not None:
            with suppress(*DRIVER_ERRORS):
                connection.close()

    def hasten(self, pace: Pace) -> None:
        self.connection.answer_seconds = _read_seconds(pace)

    def suit(self, pace: Pace) -> None:
        if self.is_direct:
            self.send(_set_all(IN_A_RUN if pace.is_in_run else {"statement_timeout": "0"}, False))
        super().suit(pace)

    def is_alive(self) -> bool:
        try:
            self.send("SELECT 1")
        except DRIVER_ERRORS:
            return False
        return True

    # ---- statements

    @property
    def commits_by_itself(self) -> bool:
        return self.is_direct

    def begin(self) -> None:
        if self.is_direct:
            self.send("BEGIN")
        else:
            self.send(f"{BEGIN_POOLED}; {self._set_locally}")

    @property
    def _set_locally(self) -> str:
        return LOCALLY_IN_A_RUN if self.is_in_run else LOCALLY

    def roll_back(self) -> None:
        if self.connection.info.transaction_status != TransactionStatus.IDLE:
            self.send("ROLLBACK")

    def send(self, sql: str, values: Sequence[Any] = ()) -> Any:
        self.cursor.execute(sql, bindable(values) if values else None)
        if sql == "COMMIT" and self.cursor.statusmessage != "COMMIT":
            # The server answers so where an error went before, and says nothing of it.
            raise psycopg.errors.InFailedSqlTransaction("the transaction was rolled back")
        return self.cursor

    def send_joined(self, writes: Sequence[Write], are_apart: bool, least: Sequence[int]) -> list[int]:
        if are_apart and (least or 1 < len(writes) <= MAX_IN_ONE):
            # One statement takes less time than several in one round trip.
            values = [value for _, several in writes for value in several]
            one = self._as_one(tuple(sql for sql, _ in writes), bool(least))
            try:
                *matched, _ = self._send_in_transaction([(one, (*values, *least))])[0].fetchone()
            except psycopg.errors.DivisionByZero:
                raise RowsChanged() from None
            return list(matched)
        return [cursor.rowcount for cursor in self._send_in_transaction(writes)]

    def _send_in_transaction(self, statements: Sequence[Write]) -> list[Any]:
        """Send statements as one transaction in one round trip; the cursor of each."""
        bound = [(sql, bindable(values)) for sql, values in statements]
        if self.is_direct and len(bound) == 1:
            return [self.cursor.execute(*bound[0], prepare=True)]
        # All statements of a pipeline are one transaction, as if BEGIN and COMMIT stood around them.
        failure: psycopg.Error | None = None
        cursors: list[Any] = []
        try:
            with self.connection.pipeline():
                # An error that comes before the last statement is sent ends the sending. Raised in here, psycopg would
                # log beside it what the pipeline raises at its end.
                try:
                    if not self.is_direct:
                        self.connection.execute(BEGIN_POOLED)
                        self.connection.execute(self._set_locally)
                    cursors += [self.connection.execute(*one, prepare=self.is_direct) for one in bound]
                    if not self.is_direct:
                        self.connection.execute("COMMIT")
                except psycopg.Error as error:
                    failure = error
        except psycopg.Error as error:
            failure = failure or error
        if failure is not None:
            raise failure
        return cursors

    def _as_one(self, writes: tuple[str, ...], is_checked: bool) -> str:
        joined = self._joined.get((writes, is_checked))
        if joined is None:
            if len(self._joined) > MAX_JOINED:
                self._joined.clear()
            joined = self._joined[writes, is_checked] = joined_writes(writes, is_checked)
        return joined


def joined_writes(writes: Sequence[str], is_checked: bool) -> str:
    """One statement of several that write and return nothing, each with marks from $1 on; they see the same rows.

    It returns how many rows each matched, and a last column. `is_checked`: the last values say how many rows each has
    to match; where one matches fewer, the statement ends in a division by zero.
    """
    parts: list[str] = []
    numbers = count(1)
    for number, sql in enumerate(writes):
        # Each mark stands once.
        parts.append(f"w{number} AS ({re.sub(MARK, lambda _: f'${next(numbers)}', sql)} RETURNING 1)")
    counts = [f"(SELECT COUNT(*) FROM w{number})" for number in range(len(writes))]
    enough = " AND ".join(f"{matched} >= ${next(numbers)}" for matched in counts) if is_checked else "TRUE"
    return f"WITH {', '.join(parts)} SELECT {', '.join(counts)}, 1 / CASE WHEN {enough} THEN 1 ELSE 0 END"


def _read_seconds(pace: Pace) -> float | None:
    if pace.is_unhurried:  # unless somebody waits for the whole, as a visitor does
        return pace.answer_seconds if isfinite(pace.answer_seconds) else None
    return min(READ_SECONDS_IN_A_RUN if pace.is_in_run else READ_SECONDS, pace.answer_seconds)


def bindable(values: Sequence[Any]) -> list[Any]:
    """The values in forms that the server takes."""
    return [_bindable(value) for value in values]


def _bindable(value: Any) -> Any:
    """The value in a form that the server takes.

    A text has no NUL and no half of a character there. In place of a whole number beyond 64 bits, as an id of MySQL may
    be, a float is sent that equals no id.
    """
    if type(value) is str:
        if "\0" in value:
            value = value.replace("\0", REPLACEMENT)
        return value if value.isascii() else value.encode(errors="replace").decode()
    if type(value) is int and not -MAX_NUMBER <= value < MAX_NUMBER:
        return float(value)
    return value
