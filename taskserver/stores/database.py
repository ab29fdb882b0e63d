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
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar

from ..errors import Conflict, ConnectionLost, DatabaseError

T = TypeVar("T")
P = ParamSpec("P")
Row = tuple[Any, ...]
Write = tuple[str, Sequence[Any]]
"""A statement and its values."""

IDLE_SECONDS = 1.0
"""After so long a connection is asked whether it still stands: hosts drop idle ones."""

# Connections that a fork left in a child: closing them there would disturb the parent, so they are kept.
_inherited: list[object] = []


class Held:
    """One thread's connection, and whose it is."""

    __slots__ = ("__weakref__", "connection", "cursor", "in_transaction", "in_use", "is_open", "pid", "used_at")

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self.cursor = connection.cursor()
        self.pid = os.getpid()
        self.in_transaction = False
        self.in_use = threading.RLock()
        self.is_open = True
        self.used_at = time.monotonic()


class Database(ABC):
    """Connections to one database: every thread has its own, made when it is first needed."""

    def __init__(self, patience_seconds: float) -> None:
        self._patience_seconds = patience_seconds
        self._local = threading.local()
        self._all_held: weakref.WeakSet[Held] = weakref.WeakSet()
        self._words: dict[str, str] = {}
        self._composed: dict[str, str] = {}

    # ---- connections

    def close(self) -> None:
        """Close the connections of all threads; the next use connects anew."""
        for held in self._all_held.copy():
            if held.pid == os.getpid():
                # Waits for a verb that another thread is in: SQLite's driver crashes otherwise.
                with held.in_use:
                    held.is_open = False
                    self._disconnect(held)

    @abstractmethod
    def _connect(self) -> Any:
        """A new connection, ready for use. Raises DatabaseError."""

    @abstractmethod
    def _is_alive(self, held: Held) -> bool:
        """Ask an idle connection whether it still stands."""

    @abstractmethod
    def _error(self, error: Exception) -> DatabaseError:
        """What a driver's error means to us."""

    @abstractmethod
    def _is_driver_error(self, error: BaseException) -> bool: ...

    def _hold(self) -> Held:
        """The connection of this thread: made, or made anew after a fork or where the server dropped an idle one."""
        held: Held | None = getattr(self._local, "held", None)
        if held is not None and held.pid != os.getpid():
            _inherited.append(held)
            held = None
        if held is not None and not held.is_open:
            held = None
        if held is not None and time.monotonic() - held.used_at > IDLE_SECONDS and not self._is_alive(held):
            self._drop()
            held = None
        if held is None:
            held = self._local.held = Held(self._connect())
            self._all_held.add(held)
        return held

    def _drop(self) -> None:
        held = getattr(self._local, "held", None)
        self._local.held = None
        if held is not None:
            self._disconnect(held)

    def _disconnect(self, held: Held) -> None:
        try:
            held.connection.close()
        except Exception as error:
            if not self._is_driver_error(error):
                raise

    # ---- statements and transactions

    def _alone(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Do a verb of one statement, which commits by itself."""
        return self._retry_conflicts(self._patience_seconds, None, work, *args, **kwargs)

    def _in_transaction(self, work: Callable[[], T], patience_seconds: float | None = None) -> T:
        """Do a verb of several statements: all of it or nothing."""
        patience = self._patience_seconds if patience_seconds is None else patience_seconds
        return self._retry_conflicts(patience, True, work)

    def _together(self, writes: Sequence[Write]) -> list[int]:
        """Several writes in one transaction. How many rows each matched."""
        return self._in_transaction(lambda: [self._write(sql, values) for sql, values in writes])

    def _retry_conflicts(
        self, patience_seconds: float, bracketed: bool | None, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Do work, and while others are in its way do it again, for so long from the first time on.

        `bracketed`: whether BEGIN and COMMIT go around it; None where it is one statement, which needs them only on
        a connection that does not commit by itself.
        """
        give_up_at = None
        pause = 0.002
        while True:
            try:
                return self._try(bracketed, work, *args, **kwargs)
            except Conflict:
                give_up_at = give_up_at or time.monotonic() + patience_seconds
                if time.monotonic() + pause > give_up_at:
                    raise
            time.sleep(pause * random.uniform(0.5, 1.5))
            pause = min(pause * 2, 0.5)

    def _try(self, bracketed: bool | None, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        held = self._hold()
        with held.in_use:
            if not held.is_open:  # another thread closed all just now
                return self._try(bracketed, work, *args, **kwargs)
            return self._use(held, bracketed, work, *args, **kwargs)

    def _use(self, held: Held, bracketed: bool | None, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        if held.in_transaction:
            if bracketed is None:
                return work(*args, **kwargs)
            raise DatabaseError(
                "tasks are being added in this thread: a generator of tasks cannot add_tasks or run itself"
            )
        try:
            if bracketed is None:
                bracketed = not self._commits_by_itself()
            if bracketed:
                self._begin()
                held.in_transaction = True
            outcome = work(*args, **kwargs)
            if bracketed:
                self._execute("COMMIT")
        except BaseException as error:
            self._undo(error)
            raise
        finally:
            held.in_transaction = False
        held.used_at = time.monotonic()
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
            if isinstance(error, Exception) and not isinstance(error, ConnectionLost):
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
        cursor = self._local.held.cursor
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
        rows: Sequence[Row] = self._execute(sql, values).fetchall()
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


def with_ids(sql: str, ids: Sequence[int]) -> str:
    """A statement with a mark for each id in the place of `{ids}`."""
    return sql.replace("{ids}", marks(len(ids)))
