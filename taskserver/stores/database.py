"""How a store uses its database: a connection for each thread, transactions, statements, and what is tried again.

Beneath the verbs of store.py, which say what to do; here stands how it reaches the database, for all dialects.
"""

from __future__ import annotations

import os
import random
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, ParamSpec, TypeVar

from ..errors import Conflict, ConnectionLost, DatabaseError, ServerFull, Unavailable
from ..stopping import uninterrupted

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

    __slots__ = ("__weakref__", "connection", "cursor", "in_transaction", "in_use", "pid", "used_at")

    def __init__(self) -> None:
        self.connection: Any = None
        self.cursor: Any = None
        self.pid = os.getpid()
        self.in_transaction = False
        self.in_use = threading.RLock()
        """Held for the length of a verb."""
        self.used_at = 0.0


class Way(NamedTuple):
    """How a verb is done."""

    bracketed: bool | None
    """Whether BEGIN and COMMIT go around it; None where it is one statement, which needs them only on a connection
    that does not commit by itself."""
    conflict_seconds: float
    """For so long it is done again while others are in its way."""
    repeatable: bool = True
    """Whether doing it twice is as good as once, so that it may be done again where the database went away."""


class Patience:
    """For how long a thread waits for a database that is away."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.has_begun = False
        """Whether it was reached once: a wrong address is told at once."""
        self.is_over = False
        """Whether it was used up: what a run that ends still has to write is tried once, and not waited for again."""

    def bears(self, error: Unavailable) -> bool:
        return self.has_begun or isinstance(error, ServerFull)


class _Again:
    """Growing, random pauses before something is tried again, for so many seconds from the first one on."""

    def __init__(self, first_pause_seconds: float, longest_pause_seconds: float) -> None:
        self._pause = first_pause_seconds
        self._longest = longest_pause_seconds
        self._give_up_at: float | None = None

    def pause(self, seconds: float) -> bool:
        """False, without a pause, once the time is over."""
        now = time.monotonic()
        if self._give_up_at is None:
            self._give_up_at = now + seconds
        left = self._give_up_at - now
        if left <= 0:
            return False
        time.sleep(min(self._pause * random.uniform(0.5, 1.5), left))
        self._pause = min(self._pause * 2, self._longest)
        return True


class Database(ABC):
    """Connections to one database: every thread has its own, made when it is first needed."""

    def __init__(self, patience_seconds: float) -> None:
        self._patience_seconds = patience_seconds
        self._local = threading.local()
        self._sessions: weakref.WeakSet[Session] = weakref.WeakSet()
        self._words: dict[str, str] = {}
        self._composed: dict[str, str] = {}

    # ---- sessions and their connections

    def close(self) -> None:
        """Close the connections of all threads; the next use connects anew."""
        for session in self._sessions.copy():
            if session.pid == os.getpid():
                # Waits for a verb that another thread is in: SQLite's driver crashes otherwise.
                with session.in_use:
                    self._disconnect(session)

    def session(self) -> Session:
        """The way to the database of the thread that asks."""
        session: Session | None = getattr(self._local, "session", None)
        if session is None or session.pid != os.getpid():
            if session is not None:
                _inherited.append(session)
            session = self._local.session = Session()
            self._sessions.add(session)
        return session

    @contextmanager
    def borrowed(self, session: Session, wait_seconds: float) -> Iterator[None]:
        """In the `with`, use the session of a run's thread, to spare a connection; one's own if it stays in use."""
        own = getattr(self._local, "session", None)
        self._local.is_in_run = True
        # One try: while this thread waited, the other could not use its own session.
        self._local.patience = Patience(0)
        self._local.patience.is_over = True
        is_free = session.in_use.acquire(timeout=wait_seconds)
        try:
            if is_free:
                self._local.session = session
            yield
        finally:
            if is_free:
                self._local.session = own
                session.in_use.release()

    @contextmanager
    def patiently(self) -> Iterator[None]:
        """In the `with`, this thread waits for a database that is away: from the first verb that succeeded on."""
        self._local.patience = Patience(self._patience_seconds)
        self._local.is_in_run = True
        try:
            yield
        finally:
            self._local.patience = None
            self._local.is_in_run = False

    def _is_in_run(self) -> bool:
        """Whether the thread that asks is a run's, or its heartbeat."""
        return getattr(self._local, "is_in_run", False)

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
        self._disconnect(self._local.session)

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
        return self._do(Way(None, self._patience_seconds), work, *args, **kwargs)

    def _once(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The same for one that may not be repeated where the database went away."""
        return self._do(Way(None, self._patience_seconds, repeatable=False), work, *args, **kwargs)

    def _together(self, writes: Sequence[Write]) -> list[int]:
        """Several writes in one transaction. How many rows each matched."""
        return self._do(Way(True, self._patience_seconds), lambda: [self._write(sql, values) for sql, values in writes])

    def _do(self, way: Way, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Do work; again while others are in its way, and, in a patient thread, while the database is away."""
        self._local.broke_off = False
        conflicts = absences = None
        patience: Patience | None = getattr(self._local, "patience", None)
        while True:
            try:
                outcome = self._try(way.bracketed, work, *args, **kwargs)
                if patience is not None:
                    patience.has_begun = True
                return outcome
            except Conflict:
                conflicts = conflicts or _Again(0.002, 0.5)
                if not conflicts.pause(0 if patience is not None and patience.is_over else way.conflict_seconds):
                    if patience is not None and way.conflict_seconds >= patience.seconds:
                        patience.is_over = True
                    raise
            except Unavailable as error:
                self._local.broke_off = self._local.broke_off or isinstance(error, ConnectionLost)
                absences = absences or _Again(0.05, 2.0)
                if patience is None or not way.repeatable or not patience.bears(error):
                    raise
                if not absences.pause(0 if patience.is_over else patience.seconds):
                    patience.is_over = True
                    raise
                _log_absence(error)

    def _may_have_taken_effect(self) -> bool:
        """Whether the verb just done was done again after its connection broke, its first outcome being unknown."""
        broke_off: bool = self._local.broke_off
        return broke_off

    @uninterrupted
    def _try(self, bracketed: bool | None, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        session = self.session()
        with session.in_use:
            if session.in_transaction:
                if bracketed is None:
                    return work(*args, **kwargs)
                raise DatabaseError(
                    "tasks are being added in this thread: a generator of tasks cannot add_tasks or run itself"
                )
            self._make_ready(session)
            return self._use(session, bracketed, work, *args, **kwargs)

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
        cursor = self._local.session.cursor
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


def _log_absence(error: DatabaseError) -> None:
    from logging import getLogger  # here, as a producer has no need of it

    getLogger("taskserver").debug("trying again: %s", error)


def marks(count: int) -> str:
    """So many parameter marks."""
    return ", ".join("?" * count)


def with_ids(sql: str, ids: Sequence[int]) -> str:
    """A statement with a mark for each id in the place of `{ids}`."""
    return sql.replace("{ids}", marks(len(ids)))
