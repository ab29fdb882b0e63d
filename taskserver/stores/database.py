"""A database as the queue's verbs use it: connections by thread, transactions, tries, statements.

There are two ways to use it. `fetch`, `fetch_first` and `change` are one statement each, tried again while others are
in its way and, in a run, while the database is away. For several statements, `run` does a piece of work under a policy;
the work uses `execute`, `rows` and `write`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, ParamSpec, TypeVar

from ..errors import ConnectionLost, DatabaseError, NotUnderstood, TooLong, Unavailable
from ..host.standard_descriptors import fill_standard_descriptors
from ..interrupts.stopping import uninterrupted
from .dialect import Dialect, Inserts
from .retrying import MIN_CONFLICT_SECONDS, Patience, RetryPolicy, Scope, Tries
from .session import Pace, RowsChanged, Session
from .words import Statements, Write, with_ids, words_of

T = TypeVar("T")
P = ParamSpec("P")
Row = tuple[Any, ...]

IDLE_SECONDS = 1.0
"""A connection that was idle for longer is asked whether it still stands: hosts drop idle ones."""

MAX_IDS_PER_STATEMENT = 500
"""Old SQLite binds 999 values a statement."""

# Sessions that a fork left in a child: closing their connections there would disturb the parent, so they are kept.
_inherited: list[object] = []


class Database:
    """One queue's database: every thread has its own connection, made when it is first needed."""

    max_keyed_rows = 100
    """New rows with keys a statement, as it locks the rows that stand already until its transaction's end."""

    def __init__(self, dialect: Dialect, patience_seconds: float, max_pause_seconds: float) -> None:
        self.dialect = dialect
        self.conflict_seconds = max(patience_seconds, MIN_CONFLICT_SECONDS)
        """A verb is tried again for so long while others are in its way."""
        self._one_statement = RetryPolicy(Scope.STATEMENT, self.conflict_seconds)
        self._patience_seconds = patience_seconds
        self._max_pause_seconds = max_pause_seconds
        self._pace = Pace()
        self._generation = 0
        """Raised by `close`: connections of an earlier one are closed at their next use."""
        self._statements = Statements(words_of(dialect.own_words, dialect.table), dialect.with_marks)
        self.compose = self._statements.compose
        self.upsert = dialect.upsert

    @property
    def words(self) -> dict[str, str]:
        return self._statements.words

    @property
    def inserts(self) -> Inserts:
        return self.dialect.inserts

    # ---- sessions

    def close(self) -> None:
        """Close this thread's connection; other threads close theirs at their next verb, or at their end."""
        self._generation += 1
        session = self._pace.session
        if session is not None and session.pid == os.getpid() and not session.in_transaction:
            session.close()

    def disconnect(self) -> None:
        """Close this thread's connection; its next verb connects again."""
        session = self.session()
        if not session.in_transaction:
            session.close()

    @property
    def is_connected(self) -> bool:
        """Whether this thread has a connection."""
        return self.session().connection is not None

    def session(self) -> Session:
        """The session of this thread."""
        session = self._pace.session
        if session is None or session.pid != os.getpid():
            if session is not None:
                _inherited.append(session)
            session = self._pace.session = self.dialect.new_session()
            session.generation = self._generation
        return session

    def tried_once(self, answer_seconds: float) -> AbstractContextManager[None]:
        """In the `with`, this thread tries each verb once, and waits `answer_seconds` at most for each answer."""
        none = Patience(0)
        none.is_over = True
        return self._paced(patience=none, answer_seconds=min(answer_seconds, self._pace.answer_seconds))

    def answered_within(self, seconds: float) -> AbstractContextManager[None]:
        """In the `with`, this thread waits so long at most for each answer, because somebody waits for it."""
        return self._paced(answer_seconds=min(seconds, self._pace.answer_seconds))

    def patiently(self) -> AbstractContextManager[None]:
        """In the `with`, this thread is a run's: it waits for an absent database once it has reached it."""
        return self._paced(patience=Patience(self._patience_seconds, self._max_pause_seconds))

    def unhurried(self) -> AbstractContextManager[None]:
        """In the `with`, a statement of this thread may take any time."""
        return self._paced(is_unhurried=True)

    @contextmanager
    def statements_limited(self, seconds: int) -> Iterator[None]:
        """In the `with`, the server ends each statement of this thread after so long: Conflict. None is tried again."""
        limit = self.words["limit_statements"]
        with self.tried_once(float("inf")):
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
        before = {name: getattr(self._pace, name) for name in changes}  # a task of an outer run may run a queue itself
        vars(self._pace).update(changes)
        try:
            yield
        finally:
            vars(self._pace).update(before)

    def open_task_connection(self) -> Any:
        """A new connection for a task's own transaction."""
        fill_standard_descriptors()
        return self.dialect.open_task_connection(self._pace)

    def tries(self, policy: RetryPolicy) -> Tries:
        """The tries of work on another connection, with this thread's patience."""
        return Tries(policy, self._pace.patience)

    # ---- work

    def run(self, policy: RetryPolicy, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Do work under a policy; the work's result."""
        return self.run_in_doubt(policy, work, *args, **kwargs)[0]

    def run_in_doubt(
        self, policy: RetryPolicy, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> tuple[T, bool]:
        """Do work under a policy; the work's result, and whether an earlier try may have taken effect as well.

        An earlier try is in doubt if its connection broke before the answer came. An error says the same by its
        `may_have_taken_effect`.
        """
        in_doubt = False
        tries = Tries(policy, self._pace.patience)
        while True:
            try:
                outcome = self._try(policy.scope, work, *args, **kwargs)
            except DatabaseError as error:
                in_doubt = in_doubt or isinstance(error, ConnectionLost)
                # Within a transaction, which is undone now, only its owner can do the work again.
                session = self._pace.session
                if (session is not None and session.in_transaction) or not tries.go_on_after(error):
                    error.may_have_taken_effect = error.may_have_taken_effect or in_doubt
                    raise
            else:
                tries.succeeded()
                return outcome, in_doubt

    @uninterrupted
    def _try(self, scope: Scope, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Do work once, on a connection that stands, and leave no transaction open behind an error."""
        session = self.session()
        if session.in_transaction:
            assert scope is Scope.STATEMENT, "a transaction within a transaction"
            return work(*args, **kwargs)
        with session.in_use:
            self._make_ready(session)
            try:
                if scope is Scope.TRANSACTION or (scope is Scope.STATEMENT and not session.commits_by_itself):
                    self._translated(session.begin)
                    session.in_transaction = True
                    outcome = work(*args, **kwargs)
                    self.execute("COMMIT")
                else:
                    outcome = work(*args, **kwargs)
            except BaseException as error:
                self._undo(session, error)
                raise
            finally:
                session.in_transaction = False
            session.used_at = time.monotonic()
            return outcome

    def _make_ready(self, session: Session) -> None:
        """Connect if there is no connection, or an idle one that no longer stands."""
        if session.connection is not None:
            session.hasten(self._pace)
            is_idle = time.monotonic() - session.used_at > IDLE_SECONDS
            if session.generation != self._generation or (is_idle and not session.is_alive()):
                session.close()
        if session.connection is None:
            fill_standard_descriptors()  # a task may have closed some, and a print would go to the server then
            session.connect(self._pace)
            session.generation = self._generation
            session.used_at = time.monotonic()
            session.hasten(self._pace)

    def _undo(self, session: Session, error: BaseException) -> None:
        """Roll back after an error; close the connection if that is not sure to work."""
        # A server that refuses for now may have been replaced by another: a new connection finds that one. After an
        # interrupt the answer to a statement may still be under way.
        if isinstance(error, Exception) and not isinstance(error, Unavailable):
            with suppress(DatabaseError):
                self._translated(session.roll_back)
                return
        session.close()

    # ---- one statement each, outside of a transaction or within one

    def fetch(self, sql: str, values: Sequence[Any] = ()) -> Sequence[Row]:
        """The rows of a SELECT."""
        return self.run(self._one_statement, self.rows, sql, values)

    def fetch_ids(self, sql: str, ids: Sequence[object], values: Sequence[Any] = ()) -> list[Row]:
        """The rows of a SELECT by ids, a portion of which fills `{ids}` each time. Other values stand behind them."""
        portions = (ids[first : first + MAX_IDS_PER_STATEMENT] for first in range(0, len(ids), MAX_IDS_PER_STATEMENT))
        return [row for some in portions for row in self.fetch(with_ids(sql, some), (*some, *values))]

    def fetch_first(self, sql: str, values: Sequence[Any] = ()) -> Row | None:
        """The first row of a SELECT, if there is one."""
        rows = self.fetch(sql, values)
        return rows[0] if rows else None

    def fetch_value(self, sql: str, values: Sequence[Any] = ()) -> Any:
        """The first column of a SELECT's first row; None without a row."""
        row = self.fetch_first(sql, values)
        return row[0] if row else None

    def change(self, sql: str, values: Sequence[Any] = ()) -> int:
        """Write by one statement; how many rows it matched. Raises DatabaseError."""
        return self.run(self._one_statement, self.write, sql, values)

    def change_in_doubt(self, sql: str, values: Sequence[Any] = ()) -> tuple[int, bool]:
        """Write by one statement; how many rows it matched, and whether an earlier try may have taken effect."""
        return self.run_in_doubt(self._one_statement, self.write, sql, values)

    # ---- several writes in one transaction

    def write_together(
        self, writes: Sequence[Write], conflict_seconds: float, are_apart: bool = False, least: Sequence[int] = ()
    ) -> tuple[list[int], bool]:
        """Several writes in one commit; how many rows each matched, and whether an earlier try may have taken effect.

        `are_apart` says that no write touches the row of another, so that their order means nothing. `least` is how
        many rows each write has to match, where that matters: RowsChanged is raised if one matches fewer, and nothing
        is written. Others go in one round trip if the server joins statements: a run's writes come by the thousand,
        and their round trips cost most.
        """
        was_in_doubt = False
        if self.dialect.joins_statements and not least:
            try:
                return self.run_in_doubt(
                    RetryPolicy(Scope.BARE, conflict_seconds), self._send_joined, writes, are_apart
                )
            except NotUnderstood as error:  # a proxy takes one statement at a time; this try did nothing
                self.dialect.joins_statements, was_in_doubt = False, error.may_have_taken_effect
            except TooLong as error:  # each by itself may be short enough
                was_in_doubt = error.may_have_taken_effect
        policy = RetryPolicy(Scope.TRANSACTION, conflict_seconds)
        matched, in_doubt = self.run_in_doubt(policy, self._write_each, writes, least)
        return matched, in_doubt or was_in_doubt

    def _write_each(self, writes: Sequence[Write], least: Sequence[int]) -> list[int]:
        matched: list[int] = []
        for (sql, values), few in zip(writes, least or [0] * len(writes), strict=True):
            matched.append(self.write(sql, values))
            if matched[-1] < few:
                raise RowsChanged()
        return matched

    def _send_joined(self, writes: Sequence[Write], are_apart: bool) -> list[int]:
        try:
            return self.session().send_joined([(self.compose(sql), values) for sql, values in writes], are_apart)
        except self.dialect.driver_errors as error:
            raise self.dialect.error(error) from error

    def skipping_locked(self, work: Callable[[str], T]) -> T:
        """Do work with the end of its locking SELECT; the work's result.

        The SELECT passes over rows that others hold. On a server that cannot do that, it waits for these rows.
        """
        return self._locking(self.dialect.skip_locked, work)

    def locking_at_once(self, work: Callable[[str], T]) -> T:
        """The same with a SELECT that raises Conflict at once where others hold one of its rows."""
        return self._locking(self.dialect.for_update_at_once, work)

    def _locking(self, end: str, work: Callable[[str], T]) -> T:
        if self.dialect.skips_locked:  # a server that can do the one can do the other
            try:
                return work(end)
            except NotUnderstood:
                self.dialect.skips_locked = False
        return work(self.dialect.for_update)

    # ---- statements, for work

    def execute(self, sql: str, values: Sequence[Any] = ()) -> Any:
        """Send one statement on this thread's connection; the driver's cursor."""
        session = self._pace.session
        assert session is not None  # `_try` made it
        try:
            return session.send(self.compose(sql), values)
        except self.dialect.driver_errors as error:
            raise self.dialect.error(error) from error

    def write(self, sql: str, values: Sequence[Any] = ()) -> int:
        """Send a statement that writes; how many rows it matched."""
        matched: int = self.execute(sql, values).rowcount
        return matched

    def write_ids(self, sql: str, ids: Sequence[int], values: Sequence[Any] = ()) -> int:
        """Write to rows by their ids, which fill `{ids}`; how many rows matched. Other values stand behind the ids."""
        return self.write(with_ids(sql, ids), (*ids, *values))

    def rows(self, sql: str, values: Sequence[Any] = ()) -> Sequence[Row]:
        """The rows of a SELECT."""
        cursor = self.execute(sql, values)
        try:
            rows: Sequence[Row] = cursor.fetchall()
        except self.dialect.driver_errors as error:
            raise self.dialect.error(error) from error
        return rows

    def _translated(self, do: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Do something with the driver; raise its errors as ours."""
        try:
            return do(*args, **kwargs)
        except self.dialect.driver_errors as error:
            raise self.dialect.error(error) from error
