"""A worker's wait for new tasks on PostgreSQL: whoever adds one tells it (LISTEN, NOTIFY).

A worker that waits has a row in jobs_queue_waiting. The trigger of schema.sql tells the workers that have one of new
tasks of their groups, and of the seconds until tasks fall due; while nobody waits, producers pay for no notice.

Nothing is lost between a look and the wait: the worker listens, enters its row, commits, and only then looks a last
time. One notice can be lost all the same, of a transaction that inserted its task before the row was there, and commits
after that look. So the worker goes on looking, with pauses that grow from a short one: such a task waits about as long
again as its transaction was open, and never longer than the pause.

Each notice costs producers much: their commits then go one after the other. So a worker that was told deletes its row
before it works. After its work it rests for a moment and looks, and only where it finds nothing enters its row again:
of a stream of tasks it is told some fifty times a second at most.

A row counts until `waits_until`, which its worker moves on while it rests. So the row of a killed worker soon costs
producers nothing, and the next worker that waits deletes it.

Behind a pooler of transactions a notice goes to whichever session: there, as where the account may not write that
table, the worker sleeps, as on other databases.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from logging import getLogger
from typing import Any

import psycopg

from ...errors import Conflict, DatabaseError, Unavailable
from ..database import Database
from ..retrying import AT_ONCE, HELD_PATIENCE_SECONDS, RetryPolicy, Scope
from ..waiting import Waiting
from .errors import DRIVER_ERRORS

LOG = getLogger("taskserver")

VALID_SECONDS = 15
"""A row counts for so long after its worker has written it."""
RENEW_SECONDS = 5.0
MOMENT_SECONDS = 0.02
"""After work a worker rests for so long before it asks to be told again."""
MAX_NOTICE_SECONDS = 3600.0
"""Of tasks that are due later nobody tells: no pause is longer."""


class PostgreSQLWaiting(Waiting):
    """The rests of one run, which notices cut short."""

    def __init__(self, database: Database, number: int, groups: Sequence[int]) -> None:
        """`number` is the worker's; without `groups` it waits for tasks of all."""
        self._database = database
        self._number = number
        self._groups = list(groups) or None
        self._connection: Any = None
        """The connection that listens."""
        self._written_at = float("-inf")
        """By time.monotonic: when the row was written last; minus infinity: there is none."""
        self._forgotten_at = float("-inf")
        """By time.monotonic: when rows that count no more were deleted."""
        self._has_new = False
        """Whether a notice told of a new task."""
        self._was_woken = False
        """Whether a notice ended the last rest: then a task is there, and all else can wait."""
        self._is_ready = False
        """Whether the row was looked after, and the next instant read, since then."""
        self._due_at = float("inf")
        """By time.monotonic: when the next task falls due."""
        self._is_deaf = False
        """Whether nobody can tell it."""
        self.pause = 0.0  # it looks once it is told

    # ---- listen, enter the row, look when the next task is due

    CHANNEL = "SELECT CAST(CAST('{waiting}' AS regclass) AS oid)"
    ENTER = """
        INSERT INTO {waiting} (number, group_ids, waits_until) VALUES (?, CAST(? AS bigint[]), {after})
        ON CONFLICT (number) DO UPDATE SET waits_until = EXCLUDED.waits_until
    """
    FORGET = "DELETE FROM {waiting} WHERE waits_until < {now}"
    # What is due already, and is not done by a look, must not keep the worker from its rest.
    NEXT = """
        SELECT LEAST(
            (SELECT due_at FROM {table} WHERE {due_status} = 3 AND due_at > {now} ORDER BY due_at LIMIT 1),
            (SELECT due_at FROM {table} WHERE {due_status} = 5 AND due_at > {now} ORDER BY due_at LIMIT 1),
            (SELECT next_at FROM {schedules} WHERE next_at > {now} ORDER BY next_at LIMIT 1)
        )
    """
    NEXT_SECONDS = f"SELECT CAST(EXTRACT(EPOCH FROM ({NEXT}) - {{now}}) AS float8)"

    def prepare(self) -> None:
        is_after_work, was_woken = self.pause == MOMENT_SECONDS, self._was_woken
        self._was_woken = False
        if is_after_work:
            self.pause, self.has_due = 0.0, False
        elif was_woken or self._is_deaf:
            self.has_due, self._has_new, self._is_ready = self._is_due(), False, False
        else:
            self._run(self._enter)
            self.pause, self.has_due = None, True  # due since the look before, perhaps, which _enter does not tell

    def _run(self, work: Callable[[], None]) -> None:
        try:
            self._database.run(RetryPolicy(Scope.STATEMENT, HELD_PATIENCE_SECONDS), work)
        except Unavailable:
            raise
        except Conflict:  # somebody holds the table: the next look comes soon, and tries again
            LOG.debug("the row of a worker that waits cannot be written")
        except DatabaseError as error:
            self._be_deaf(error)

    def _enter(self) -> None:
        database = self._database
        if not self._is_told():
            session, now = database.session(), time.monotonic()
            if not session.commits_by_itself:
                self._be_deaf("a pooler stands before the server")
                return
            if session.connection is not self._connection:
                ((table,),) = database.rows(self.CHANNEL)
                database.execute(f"LISTEN taskserver_{table}")
                session.connection.add_notify_handler(self._hear)
                self._connection = session.connection
            if now >= self._forgotten_at + VALID_SECONDS:
                database.write(self.FORGET)
                self._forgotten_at = now
            self._write_row()
        self._is_ready, self._has_new, self._due_at = True, False, float("inf")
        ((seconds,),) = database.rows(self.NEXT_SECONDS)
        if seconds is not None:
            self._expect(seconds)

    def _write_row(self) -> None:
        now = time.monotonic()
        self._database.write(self.ENTER, (self._number, self._groups, VALID_SECONDS))
        self._written_at = now

    def _be_deaf(self, why: object) -> None:
        LOG.info("nobody tells this worker of new tasks, so it looks for them: %s", why)
        self._is_deaf, self._due_at = True, float("inf")

    def _is_due(self) -> bool:
        return time.monotonic() >= self._due_at

    @property
    def _has_row(self) -> bool:
        return self._written_at != float("-inf")

    def _is_told(self) -> bool:
        """Whether the row counts, and the connection is the one that listens."""
        is_valid = time.monotonic() < self._written_at + VALID_SECONDS
        return is_valid and self._connection is self._database.session().connection is not None

    # ---- rest

    def rest(self, seconds: float) -> bool:
        if self._is_deaf or not self._has_row:
            return super().rest(seconds)
        if not self._is_ready or not self._is_told():
            return True
        if time.monotonic() >= self._written_at + RENEW_SECONDS:
            self._run(self._write_row)
        self._listen(min(seconds, max(self._due_at - time.monotonic(), 0.0)))
        self._was_woken = self._has_new
        return self._has_new or self._is_due()

    def _listen(self, seconds: float) -> None:
        """Rest until something comes, or the time is over."""
        poll = select.poll()
        try:
            # What came right behind the answer to a statement is read already, so that no poll tells of it.
            self._read()
            if self._has_new:
                return
            poll.register(self._connection.fileno(), select.POLLIN)
            if poll.poll(seconds * 1000):
                self._read()
        except DRIVER_ERRORS:  # the connection is cut
            self._connection = None
            self._database.disconnect()

    def _read(self) -> None:
        connection = self._connection
        with self._database.session().in_use:
            connection.pgconn.consume_input()
            while notice := connection.pgconn.notifies():
                self._note(notice.extra.decode(errors="replace"))

    # ---- notices

    def _hear(self, notice: psycopg.Notify) -> None:
        """Note a notice that came with the answer to a statement."""
        self._note(notice.payload)

    def _note(self, text: str) -> None:
        """Note a notice, as `7 0`: for worker 7 there is a new task; or `7 1.5`: one falls due in so many seconds."""
        number, _, seconds = text.partition(" ")
        if number == str(self._number):
            with suppress(ValueError):  # anybody may send one
                self._expect(float(seconds))

    def _expect(self, seconds: float) -> None:
        if seconds <= 0:
            self._has_new = True
        elif seconds < MAX_NOTICE_SECONDS:
            self._due_at = min(self._due_at, time.monotonic() + seconds)

    # ---- end

    LEAVE = "DELETE FROM {waiting} WHERE number = ?"

    def end(self) -> None:
        if self._is_deaf:
            return
        self.pause = MOMENT_SECONDS
        if self._has_row:
            self._written_at = float("-inf")
            with suppress(DatabaseError):  # the row soon counts for nothing
                self._database.run(AT_ONCE, self._database.write, self.LEAVE, (self._number,))
        connection, self._connection = self._connection, None
        if connection is not None and connection is self._database.session().connection:
            # A program may keep its connection after the run, and read from it no more.
            with suppress(DatabaseError, ValueError):
                connection.remove_notify_handler(self._hear)
                self._database.run(AT_ONCE, self._database.execute, "UNLISTEN *")
