"""A database as the queue's verbs use it: connections by thread, transactions, tries, statements.

`fetch…`, `change` and `write_together` are whole pieces of work. They are retried after conflicts and, in a run, while
the database is unreachable. `run` does other work under a policy; that work uses `execute`, `rows` and `write`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import datetime, timezone
from typing import Any, ParamSpec, TypeVar

from ..errors import ConnectionLost, DatabaseError, NotUnderstood, TooLong, Unavailable
from ..host.files import fill_standard_descriptors
from .dialect import Dialect, Pace, Rows, Session
from .retrying import MIN_CONFLICT_SECONDS, Patience, RetryPolicy, Scope, Tries
from .words import Statements, Write, in_portions, with_ids, words_of

T = TypeVar("T")
P = ParamSpec("P")
Row = tuple[Any, ...]

IDLE_SECONDS = 1.0
"""A connection that was idle for longer is checked before use: hosts drop idle ones."""

# Sessions that a forked child inherited. They are kept: closing their connections would disturb the parent.
_inherited: list[object] = []


class RowsChanged(DatabaseError):
    """A write matched too few rows; its transaction is rolled back."""

    def __init__(self) -> None:
        super().__init__("rows were changed meanwhile")


class Database(Rows):
    """One queue's database. Each thread has its own connection, made on first use. Raises DatabaseError."""

    max_keyed_rows = 100  # more would lock too many existing rows until the transaction ends

    def __init__(self, dialect: Dialect, patience_seconds: float, max_pause_seconds: float) -> None:
        super().__init__(dialect, Statements(words_of(dialect.own_words, dialect.table), dialect.with_marks))
        self.conflict_seconds = max(patience_seconds, MIN_CONFLICT_SECONDS)
        """How long a verb is retried after conflicts."""
        self._one_statement = RetryPolicy(Scope.STATEMENT, self.conflict_seconds)
        self._patience_seconds = patience_seconds
        self._max_pause_seconds = max_pause_seconds
        self._pace = Pace()
        self._closed = 0
        """How often `close` was called."""

    # ---- the connection of this thread

    def session(self) -> Session:
        session = self._pace.session
        if session is None or session.pid != os.getpid():
            if session is not None:
                _inherited.append(session)
            session = self._pace.session = self.dialect.new_session()
            session.generation = self._generation
        return session

    @property
    def _generation(self) -> int:
        """Connections of an earlier generation are closed at their next use: `close`, or a move to another host."""
        return self._closed + self.dialect.hosts.moves

    @property
    def is_connected(self) -> bool:
        return self.session().connection is not None

    def disconnect(self) -> None:
        """Close this thread's connection; its next verb connects again."""
        session = self.session()
        if not session.in_transaction:
            session.close()

    def close(self) -> None:
        """Close this thread's connection; other threads close theirs at their next verb or when they end."""
        self._closed += 1
        if self._pace.session is not None:
            self.disconnect()

    def without_retries(self, answer_seconds: float) -> AbstractContextManager[None]:
        """In the `with`, this thread tries each verb once and waits at most `answer_seconds` for each answer."""
        none = Patience(0)
        none.is_over = True
        return self._paced(patience=none, answer_seconds=min(answer_seconds, self._pace.answer_seconds))

    def with_timeout(self, seconds: float) -> AbstractContextManager[None]:
        """In the `with`, this thread waits at most so long for each answer: a person is waiting."""
        return self._paced(answer_seconds=min(seconds, self._pace.answer_seconds))

    def with_patience(self) -> AbstractContextManager[None]:
        """In the `with`, this thread belongs to a run: once it reached the database, it waits for it to return."""
        return self._paced(patience=Patience(self._patience_seconds, self._max_pause_seconds))

    def without_timeout(self) -> AbstractContextManager[None]:
        """In the `with`, this thread's statements may take any time."""
        return self._paced(has_no_timeout=True)

    @contextmanager
    def with_statement_timeout(self, seconds: int) -> Iterator[None]:
        """In the `with`, the server ends each statement after `seconds`, which raises Conflict. Nothing is retried."""
        limit = self.words["limit_statements"]
        with self.without_retries(float("inf")):
            if limit:
                self.change(limit.format(seconds))
            try:
                yield
            finally:
                if limit and self.is_connected:
                    with suppress(DatabaseError):
                        self.change(limit.format(0))

    @contextmanager
    def _paced(self, **changes: Any) -> Iterator[None]:
        before = {name: getattr(self._pace, name) for name in changes}  # a task may run a queue itself
        vars(self._pace).update(changes)
        try:
            yield
        finally:
            vars(self._pace).update(before)

    def hosts_away(self) -> tuple[int, list[str]]:
        """How many hosts the DSN names, and what those answer that do not serve; of one host nothing."""
        each, away = self.dialect.hosts.one_by_one(), list[str]()
        for host in each:
            session = self.dialect.new_session(host)
            try:
                session.connect(self._pace)
            except DatabaseError as error:
                away.append(str(error))
            session.close()
        return max(len(each), 1), away

    def open_task_connection(self) -> Any:
        """A new connection for a task's own transaction."""
        fill_standard_descriptors()
        return self.dialect.open_task_connection(self._pace)

    def tries(self, policy: RetryPolicy) -> Tries:
        """Retries for work on another connection, with this thread's patience."""
        return Tries(policy, self._pace.patience)

    # ---- work

    def run(self, policy: RetryPolicy, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return self.run_in_doubt(policy, work, *args, **kwargs)[0]

    def run_in_doubt(
        self, policy: RetryPolicy, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> tuple[T, bool]:
        """Do work under a policy; its result, and whether an earlier try may have taken effect too.

        A try is in doubt if its connection broke before the answer came. An error carries the same as `in_doubt`.
        """
        in_doubt, tries, pace = False, None, self._pace
        while True:
            try:
                outcome = self._try(policy.scope, work, *args, **kwargs)
            except DatabaseError as error:
                in_doubt = in_doubt or isinstance(error, ConnectionLost)
                tries = tries or self.tries(policy)
                # Inside a transaction, now rolled back, only its owner can retry.
                if (pace.session is not None and pace.session.in_transaction) or not tries.wait_to_retry(error):
                    error.in_doubt = error.in_doubt or in_doubt
                    raise
            else:
                if pace.patience is not None:
                    pace.patience.has_begun = True
                return outcome, in_doubt

    def _try(self, scope: Scope, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Do work once on a live connection; an error leaves no transaction open."""
        session = self.session()
        if session.in_transaction:
            assert scope is Scope.STATEMENT, "a transaction within a transaction"
            return work(*args, **kwargs)
        with session.in_use:
            if session.was_interrupted:
                session.close()
            session.was_interrupted = True  # until the work ends: an interrupt may come at any instant
            try:
                self._make_ready(session)
                if scope is Scope.TRANSACTION or (scope is Scope.STATEMENT and not session.commits_by_itself):
                    self.execute(session.begin_sql)
                    session.in_transaction = True
                    outcome = work(*args, **kwargs)
                    self.execute("COMMIT")
                    session.in_transaction = False  # here too: an interrupt may come instead of the line below
                else:
                    outcome = work(*args, **kwargs)
            except Exception as error:
                self._undo(session, error)
                session.was_interrupted = False
                raise
            except BaseException:
                session.close()  # at once: it may hold locks
                raise
            finally:
                session.in_transaction = False
            session.was_interrupted = False
            session.used_at = time.monotonic()
            return outcome

    def _make_ready(self, session: Session) -> None:
        """Connect if there is no connection, or if an idle one is dead."""
        if session.connection is not None:
            session.make_ready(self._pace)
            is_idle = time.monotonic() - session.used_at > IDLE_SECONDS
            if session.generation != self._generation or (is_idle and not session.is_alive()):
                session.close()
        if session.connection is None:
            fill_standard_descriptors()  # a task may have closed some: a print would then reach the server
            session.connect(self._pace)
            session.generation = self._generation
            session.used_at = time.monotonic()
            session.make_ready(self._pace)

    def _undo(self, session: Session, error: Exception) -> None:
        """Roll back after an error, or close the connection."""
        # If the server is unavailable, another may have replaced it: a new connection finds that one.
        if session.connection is not None and not isinstance(error, Unavailable):
            with suppress(*self.dialect.driver_errors):
                session.roll_back()
                return
        session.close()

    # ---- one statement each, inside or outside a transaction

    def fetch(self, sql: str, values: Sequence[Any] = ()) -> Sequence[Row]:
        return self.run_in_doubt(self._one_statement, self.rows, sql, values)[0]

    def fetch_ids(self, sql: str, ids: Sequence[object], values: Sequence[Any] = ()) -> list[Row]:
        """The rows of a SELECT by ids, which fill `{ids}` in portions; the other values follow them."""
        return [row for some in in_portions(ids) for row in self.fetch(with_ids(sql, some), (*some, *values))]

    def fetch_first(self, sql: str, values: Sequence[Any] = ()) -> Row | None:
        rows = self.fetch(sql, values)
        return rows[0] if rows else None

    def fetch_value(self, sql: str, values: Sequence[Any] = ()) -> Any:
        """The first column of a SELECT's first row; None without a row."""
        rows = self.fetch(sql, values)
        return rows[0][0] if rows else None

    def now(self) -> datetime:
        """The database's clock."""
        return datetime.fromisoformat(self.fetch_value("SELECT {now_text}")).replace(tzinfo=timezone.utc)

    def change(self, sql: str, values: Sequence[Any] = ()) -> int:
        """Send one write; how many rows it matched."""
        return self.run_in_doubt(self._one_statement, self.write, sql, values)[0]

    def change_in_doubt(self, sql: str, values: Sequence[Any] = ()) -> tuple[int, bool]:
        """The same, and whether an earlier try may have taken effect."""
        return self.run_in_doubt(self._one_statement, self.write, sql, values)

    # ---- several writes in one commit

    def write_together(
        self, writes: Sequence[Write], conflict_seconds: float, are_apart: bool = False
    ) -> tuple[list[int], bool]:
        """Several writes in one commit; how many rows each matched, and whether an earlier try may have taken effect.

        `are_apart`: each write touches other rows, so their order does not matter. They share one round trip if the
        server allows it: a run has thousands of writes, and round trips cost most.
        """
        was_in_doubt = False
        if self.dialect.joins_statements:
            policy = RetryPolicy(Scope.BARE, conflict_seconds)
            try:
                return self.run_in_doubt(policy, self._send_joined, writes, are_apart)
            except NotUnderstood as error:  # a proxy takes one statement at a time; nothing was done
                self.dialect.joins_statements, was_in_doubt = False, error.in_doubt
            except TooLong as error:  # each by itself may be short enough
                was_in_doubt = error.in_doubt
        policy = RetryPolicy(Scope.TRANSACTION, conflict_seconds)
        matched, in_doubt = self.run_in_doubt(policy, self.write_each, writes)
        return matched, in_doubt or was_in_doubt

    def _send_joined(self, writes: Sequence[Write], are_apart: bool) -> list[int]:
        try:
            return self.session().send_joined([(self.compose(sql), values) for sql, values in writes], are_apart)
        except self.dialect.driver_errors as error:
            raise self.dialect.error(error) from error

    # ---- statements, for work

    def execute(self, sql: str, values: Sequence[Any] = ()) -> Any:
        session = self._pace.session
        assert session is not None  # `_try` made it
        try:
            return session.send(self.compose(sql), values)
        except self.dialect.driver_errors as error:
            raise self.dialect.error(error) from error

    def rows(self, sql: str, values: Sequence[Any] = ()) -> Sequence[Row]:
        cursor = self.execute(sql, values)
        try:
            rows: Sequence[Row] = cursor.fetchall()
        except self.dialect.driver_errors as error:
            raise self.dialect.error(error) from error
        return rows

    def write_each(self, writes: Sequence[Write], least: Sequence[int] = ()) -> list[int]:
        """Several writes; how many rows each matched. Raises RowsChanged if one matched fewer than its `least`."""
        matched: list[int] = []
        for sql, values in writes:
            matched.append(self.execute(sql, values).rowcount)
            if least and matched[-1] < least[len(matched) - 1]:
                raise RowsChanged()
        return matched

    def locking(self, end: str, work: Callable[[str], T]) -> T:
        """Do work with `end`, the end of its locking SELECT; the work's result.

        `end` is one of the dialect's and says how to treat held rows. Old servers do not know it: there the SELECT
        waits.
        """
        if self.dialect.skips_locked:
            try:
                return work(end)
            except NotUnderstood:
                self.dialect.skips_locked = False
        return work(self.dialect.for_update)
