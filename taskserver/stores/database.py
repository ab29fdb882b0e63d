"""How a store uses its database: a connection for each thread, transactions, statements.

Beneath the verbs of store.py, which say what to do; here stands how it reaches the database, for all dialects.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar

from ..errors import Conflict, ConnectionLost, DatabaseError, Unavailable
from ..stopping import uninterrupted
from .tries import LEAST_CONFLICT_SECONDS, Patience, Tries, Way

T = TypeVar("T")
P = ParamSpec("P")
Row = tuple[Any, ...]
Write = tuple[str, Sequence[Any]]
"""A statement and its values."""

IDLE_SECONDS = 1.0
"""After so long a connection is asked whether it still stands: hosts drop idle ones."""

IDS_A_STATEMENT = 500
"""Old SQLite binds 999 values a statement."""

# Sessions that a fork left in a child: closing their connections there would disturb the parent, so they are kept.
_inherited: list[object] = []


class Session:
    """One thread's way to the database: a connection, made when it is first needed and again when it broke."""

    __slots__ = ("__weakref__", "connection", "cursor", "in_transaction", "in_use", "is_to_close", "pid", "used_at")

    def __init__(self) -> None:
        self.connection: Any = None
        self.cursor: Any = None
        self.pid = os.getpid()
        self.in_transaction = False
        self.in_use = threading.RLock()
        """Held for the length of a verb."""
        self.is_to_close = False
        self.used_at = 0.0


class _Thread(threading.local):
    """What is a thread's own."""

    session: Session | None = None
    patience: Patience | None = None
    """Those of a run, and its heartbeat, have it."""
    is_unhurried = False
    answer_seconds = float("inf")
    """So long it waits for an answer at most, where it usually waits for longer."""
    broke_off = False


class Database(ABC):
    """Connections to one database: every thread has its own, made when it is first needed."""

    def __init__(self, patience_seconds: float) -> None:
        self._patience_seconds = patience_seconds
        self._conflict_seconds = max(patience_seconds, LEAST_CONFLICT_SECONDS)
        self._local = _Thread()
        self._sessions: weakref.WeakSet[Session] = weakref.WeakSet()
        self._words: dict[str, str] = {}
        self._composed: dict[str, str] = {}

    # ---- sessions and their connections

    def close(self) -> None:
        """Close the connections of all threads, of one that is in a verb after that; the next use connects anew."""
        for session in self._sessions.copy():
            if session.pid == os.getpid():
                session.is_to_close = True
                self._close_if_free(session)

    def _close_if_free(self, session: Session) -> None:
        # SQLite's driver crashes where a connection is closed that another thread uses. Whoever lets go of a session
        # does this too, so that one which is not free now is closed then.
        if session.is_to_close and session.in_use.acquire(blocking=False):
            try:
                if session.is_to_close and not session.in_transaction:
                    session.is_to_close = False
                    self._disconnect(session)
            finally:
                session.in_use.release()

    def session(self) -> Session:
        """The way to the database of the thread that asks."""
        session = self._local.session
        if session is None or session.pid != os.getpid():
            if session is not None:
                _inherited.append(session)
            session = self._local.session = Session()
            self._sessions.add(session)
        return session

    @property
    def _session(self) -> Session:
        """The session of the verb that this thread is in."""
        assert self._local.session is not None
        return self._local.session

    @contextmanager
    def borrowed(self, session: Session, wait_seconds: float) -> Iterator[None]:
        """In the `with`, use the session of a run's thread, to spare a connection; one's own if it stays in use."""
        own = self._local.session
        # One try: while this thread waited, the other could not use its own session.
        with self.tried_once():
            is_free = session.in_use.acquire(timeout=wait_seconds)
            try:
                if is_free:
                    self._local.session = session
                yield
            finally:
                if is_free:
                    self._local.session = own
                    session.in_use.release()
                    self._close_if_free(session)

    @contextmanager
    def tried_once(self, answer_seconds: float = float("inf")) -> Iterator[None]:
        """In the `with`, whatever this thread does is tried once, and waits so long at most for each answer."""
        patience, longest = self._local.patience, self._local.answer_seconds
        self._local.patience = Patience(0)
        self._local.patience.is_over = True
        self._local.answer_seconds = min(answer_seconds, longest)
        try:
            yield
        finally:
            self._local.patience, self._local.answer_seconds = patience, longest

    @contextmanager
    def patiently(self) -> Iterator[None]:
        """In the `with`, this thread waits for a database that is away: from the first verb that succeeded on."""
        outer = self._local.patience  # that of a run, one of whose tasks runs a queue itself
        self._local.patience = Patience(self._patience_seconds)
        try:
            yield
        finally:
            self._local.patience = outer

    def _is_in_run(self) -> bool:
        """Whether the thread that asks is a run's, or its heartbeat."""
        return self._local.patience is not None

    @contextmanager
    def _unhurried(self) -> Iterator[None]:
        """In the `with`, a statement of this thread may take as long as it takes."""
        self._local.is_unhurried = True
        try:
            yield
        finally:
            self._local.is_unhurried = False

    @abstractmethod
    def _connect(self) -> Any:
        """A new connection, ready for use. Raises DatabaseError."""

    @abstractmethod
    def _is_alive(self, connection: Any) -> bool:
        """Ask an idle connection whether it still stands."""

    @abstractmethod
    def _error(self, error: Exception) -> DatabaseError:
        """What a driver's error means to us."""

    @abstractmethod
    def _is_driver_error(self, error: BaseException) -> bool: ...

    def _make_ready(self, session: Session) -> None:
        """Connect where there is no connection, or where the server dropped an idle one."""
        is_idle = session.connection is not None and time.monotonic() - session.used_at > IDLE_SECONDS
        if is_idle and not self._is_alive(session.connection):
            self._disconnect(session)
        if session.connection is None:
            connection = self._connect()
            session.cursor = connection.cursor()
            session.connection = connection
            session.used_at = time.monotonic()

    def _drop(self) -> None:
        """Let go of a connection that is of no use any more."""
        self._disconnect(self._session)

    def _disconnect(self, session: Session) -> None:
        connection, session.connection, session.cursor = session.connection, None, None
        if connection is None:
            return
        try:
            connection.close()
        except Exception as error:
            if not self._is_driver_error(error):
                raise

    # ---- statements and transactions

    def _alone(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Do a verb of one statement, which commits by itself."""
        return self._do(Way(None, self._conflict_seconds), work, *args, **kwargs)

    def _once(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The same for one that may not be repeated where the database went away."""
        return self._do(Way(None, self._conflict_seconds, repeatable=False), work, *args, **kwargs)

    def _together(self, writes: Sequence[Write], conflict_seconds: float) -> list[int]:
        """Several writes in one transaction. How many rows each matched."""
        return self._do(Way(True, conflict_seconds), lambda: [self._write(sql, values) for sql, values in writes])

    def _do(self, way: Way, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Do work; again while others are in its way, and, in a patient thread, while the database is away."""
        self._local.broke_off = False
        tries = Tries(way, self._local.patience)
        while True:
            try:
                outcome = self._try(way.bracketed, work, *args, **kwargs)
            except (Conflict, Unavailable) as error:
                self._local.broke_off = self._local.broke_off or isinstance(error, ConnectionLost)
                if not tries.go_on_after(error):
                    error.may_have_taken_effect = self._local.broke_off
                    raise
            else:
                tries.succeeded()
                return outcome

    def _may_have_taken_effect(self) -> bool:
        """Whether the verb just done was done again after its connection broke, its first outcome being unknown."""
        return self._local.broke_off

    @uninterrupted
    def _try(self, bracketed: bool | None, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        session = self.session()
        try:
            with session.in_use:
                if session.in_transaction:
                    if bracketed is None:
                        return work(*args, **kwargs)
                    raise DatabaseError(
                        "tasks are being added in this thread: a generator of tasks cannot add_tasks or run itself"
                    )
                self._make_ready(session)
                return self._use(session, bracketed, work, *args, **kwargs)
        finally:
            self._close_if_free(session)

    def _use(
        self, session: Session, bracketed: bool | None, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        try:
            if bracketed is None:
                bracketed = not self._commits_by_itself()
            if bracketed:
                self._begin()
                session.in_transaction = True
            outcome = work(*args, **kwargs)
            if bracketed:
                self._execute("COMMIT")
        except BaseException as error:
            self._undo(error)
            raise
        finally:
            session.in_transaction = False
        session.used_at = time.monotonic()
        return outcome

    def _commits_by_itself(self) -> bool:
        return True

    def _begin(self) -> None:
        self._execute("BEGIN")

    def _roll_back(self) -> None:
        self._execute("ROLLBACK")

    def _undo(self, error: BaseException) -> None:
        """Leave no transaction open behind an error."""
        rolled_back = False
        try:
            # Where a server refuses for now, another may have taken its place.
            if isinstance(error, Exception) and not isinstance(error, Unavailable):
                self._roll_back()
                rolled_back = True
        except DatabaseError:
            pass
        finally:
            if not rolled_back:
                # The answer to a statement may be under way still: this connection is of no use any more.
                self._drop()

    def _execute(self, sql: str, values: Sequence[Any] = ()) -> Any:
        """One statement on this thread's connection. The cursor."""
        cursor = self._session.cursor
        try:
            self._send(cursor, self._compose(sql), values)
        except Exception as error:
            if not self._is_driver_error(error):
                raise
            return self._failed(sql, values, error)
        return cursor

    def _failed(self, sql: str, values: Sequence[Any], error: Exception) -> Any:
        """A statement failed: raise what that means, or mend it and do it again."""
        raise self._error(error) from error

    def _send(self, cursor: Any, sql: str, values: Sequence[Any]) -> None:
        cursor.execute(sql, values)

    def _write(self, sql: str, values: Sequence[Any]) -> int:
        """How many rows it matched."""
        matched: int = self._execute(sql, values).rowcount
        return matched

    def _write_ids(self, sql: str, ids: Sequence[int], values: Sequence[Any] = ()) -> int:
        return self._write(with_ids(sql, ids), (*ids, *values))

    def _all(self, sql: str, values: Sequence[Any] = ()) -> Sequence[Row]:
        cursor = self._execute(sql, values)
        try:
            rows: Sequence[Row] = cursor.fetchall()
        except Exception as error:
            if not self._is_driver_error(error):
                raise
            raise self._error(error) from error
        return rows

    def _first(self, sql: str, values: Sequence[Any] = ()) -> Row | None:
        rows = self._all(sql, values)
        return rows[0] if rows else None

    def _one(self, sql: str) -> Row:
        return self._first(sql) or (None,)

    def _compose(self, sql: str) -> str:
        """Fill in the dialect's words; kept, as there are few statements and many uses."""
        composed = self._composed.get(sql)
        if composed is None:
            if len(self._composed) > 500:
                self._composed.clear()
            composed = self._composed[sql] = self._with_marks(" ".join(sql.format_map(self._words).split()))
        return composed

    def _with_marks(self, sql: str) -> str:
        """Put the driver's parameter marks for `?`."""
        return sql


def marks(count: int) -> str:
    """So many parameter marks."""
    return ", ".join("?" * count)


def with_ids(sql: str, ids: Sequence[object]) -> str:
    """A statement with a mark for each id in the place of `{ids}`."""
    return sql.replace("{ids}", marks(len(ids)))
