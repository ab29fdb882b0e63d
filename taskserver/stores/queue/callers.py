"""Adding and completing on a caller's own connection, of any driver, inside the caller's transaction.

It sends only INSERTs, SELECTs and the writes of a completion: no COMMIT, no ROLLBACK, no SET. It retries nothing: a
deadlock rolls back the caller's writes too, and only the caller can repeat them.

The caller's session may have any time zone, character set and form of rows. So texts are sent in ASCII, and keys in
hexadecimal. The SQL for instants is right in each time zone (Dialect.callers_words). Only ids are read.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from ...errors import Conflict, ConnectionLost, DatabaseError, InvalidTask, NoTransaction, TablesMissing, is_refusal
from ...messages.programs import CLIENT
from ...model.attempt import Finish, Outcome
from ...model.new_task import LAST_INSTANT, NewTask
from ..dialect import Dialect, Rows
from ..words import Statements, words_of
from .adding import Adding
from .finishes import FinishWrites

T = TypeVar("T")

ALLOWED = (
    "an open connection to the queue's database, of PyMySQL, mysqlclient, sqlite3, psycopg 2 or 3, django.db, or "
    "SQLAlchemy's Connection or Session"
)
NO_TRANSACTION = (
    "connection is in no transaction, and commits each statement by itself; allowed: one on which a transaction has "
    "begun, whose commit is to complete the task"
)
DRIVERS = {
    **dict.fromkeys(("pymysql", "MySQLdb", "mysql"), ("mysql", "%s")),
    "mariadb": ("mysql", "?"),
    "sqlite3": ("sqlite", "?"),
    **dict.fromkeys(("psycopg", "psycopg2"), ("postgresql", "%s")),
    "django": ("", "%s"),
}
"""The kind of database and the parameter mark of each driver, by its package."""
NAMES = {"mysql": "MySQL", "sqlite": "SQLite", "postgresql": "PostgreSQL"}
WHAT_NOW = "roll your transaction back, as its row is part of that"
COMPLETION = "taskserver_completes"
"""Set before a completion's writes."""
CLOCKS_DIFFER_SECONDS = 86_400
"""The database's clock, which decides when a delay ends, may differ from this host's."""


class Callers:
    """The verbs on a caller's connection. Raises InvalidTask, DatabaseError."""

    def __init__(self, dialect: Dialect, mode: str, lease_seconds: int) -> None:
        self._dialect = dialect
        self._writes = FinishWrites(mode, lease_seconds)
        words = words_of({**dialect.own_words, **dialect.callers_words}, dialect.table, dialect.callers_quoted)
        self._statements = {"?": Statements(words, str), "%s": Statements(words, _with_percent_marks)}

    # ---- producers

    def add(self, connection: object, task: NewTask) -> int:
        """→ new, or waiting, once the caller commits; the id of the new row, or of the existing row with the key."""
        with self.on(connection) as rows:
            return Adding(rows, WHAT_NOW).insert([_checked(task)])[0]

    def add_many(self, connection: object, tasks: Iterable[NewTask]) -> list[int]:
        """→ new, or waiting, once the caller commits; the ids, in order."""
        with self.on(connection) as rows:
            adding = Adding(rows, WHAT_NOW)
            return [task_id for ids in adding.insert_all(map(_checked, tasks)) for task_id in ids]

    REACHES = "SELECT id FROM {table} WHERE id = 0"

    def check(self, connection: object) -> None:
        """Raises InvalidTask or DatabaseError if the connection does not reach the queue's table."""
        with self.on(connection) as rows:
            rows.rows(self.REACHES)

    # ---- a task that completes itself

    def complete(self, connection: object, finish: Finish) -> Outcome:
        """In progress, started → gone, archived, done, or new as the next stage, once the caller commits.

        LOST: the row no longer has our claim. Raises InvalidTask if there is no transaction, and Conflict if the
        database rolled it back.
        """
        with self.on(connection) as rows:
            self._set_savepoint(rows)
            try:
                return self._complete(rows, finish)
            except BaseException as error:
                try:  # otherwise the caller could commit a part of the writes
                    rows.execute(f"ROLLBACK TO {COMPLETION}")
                except DatabaseError:
                    # The caller's writes are gone too: a trigger may roll back everything.
                    if isinstance(error, DatabaseError) and is_refusal(error):
                        raise Conflict(f"{error}; it rolled the whole transaction back") from error
                raise

    def _set_savepoint(self, rows: CallersRows) -> None:
        if not self._dialect.keeps_transaction(rows.cursor):
            raise InvalidTask(NO_TRANSACTION)
        try:
            rows.execute(f"SAVEPOINT {COMPLETION}")
            rows.execute(f"ROLLBACK TO {COMPLETION}")  # without a transaction the savepoint is already gone
        except NoTransaction:
            raise InvalidTask(NO_TRANSACTION) from None

    def _complete(self, rows: CallersRows, finish: Finish) -> Outcome:
        matched = [rows.write(sql, values) for sql, values in self._writes.of(finish)]
        if matched[0]:
            return Outcome.AS_ASKED if all(matched) else self._writes.keep(rows, finish)
        outcome, _ = self._writes.finish_changed(rows, finish)
        return self._writes.complete_late(rows, finish) if outcome is Outcome.LOST else outcome

    # ---- the connection

    @contextmanager
    def on(self, connection: object) -> Iterator[CallersRows]:
        """In the `with`, statements on a caller's connection, with a cursor of ours."""
        connection = ask(self._dialect, unwrapped, connection)
        cursor = ask(self._dialect, self._dialect.callers_cursor, connection)
        try:
            kind, mark = _driver_of(connection, cursor)
            if kind != self._dialect.kind:
                raise InvalidTask(
                    f"connection leads to {NAMES.get(kind, kind)}, and the queue of TASKSERVER_DSN is in "
                    f"{NAMES[self._dialect.kind]}; allowed: a connection to the same database"
                )
            yield CallersRows(self._dialect, self._statements[mark], cursor)
        except BaseException:
            with suppress(Exception):
                cursor.close()
            raise
        ask(self._dialect, cursor.close)


class CallersRows(Rows):
    """The statements of one call on a caller's connection."""

    max_keyed_rows = 1
    """Finds the id of a row without reading its key."""

    def __init__(self, dialect: Dialect, statements: Statements, cursor: Any) -> None:
        super().__init__(dialect, statements)
        self.cursor = cursor

    def execute(self, sql: str, values: Sequence[Any] = ()) -> Any:
        # Django replaces marks only if it gets a list, even an empty one.
        ask(self.dialect, self.cursor.execute, self.compose(sql), list(values))
        return self.cursor

    def rows(self, sql: str, values: Sequence[Any] = ()) -> Sequence[tuple[Any, ...]]:
        """The rows of a SELECT as tuples, even if the connection returns another form."""
        rows = ask(self.dialect, self.execute(sql, values).fetchall)
        return [tuple(row.values() if isinstance(row, Mapping) else row) for row in rows]


def ask(dialect: Dialect, work: Callable[..., T], *args: Any) -> T:
    """Do work in the caller's driver, and translate its errors."""
    try:
        return work(*args)
    except InvalidTask:
        raise
    except Exception as error:  # drivers raise anything on a closed connection
        raise _error_of(dialect, error) from error


def _error_of(dialect: Dialect, error: Exception) -> DatabaseError:
    drivers = error.__cause__ if {"django", "sqlalchemy"}.intersection(_packages(error)) else None
    found = dialect.error(drivers or error, "on the connection that was given")
    if isinstance(found, TablesMissing):
        return TablesMissing(
            f"the connection that was given reaches no tables of {dialect.table}: is it to the database of "
            f"TASKSERVER_DSN, {dialect.callers_place}? {CLIENT} init makes them there"
        )
    if isinstance(found, Conflict):
        return type(found)(f"{found}: roll your transaction back, and do all of it again")
    if isinstance(found, ConnectionLost):
        return type(found)(f"{found}: open another, and do all of your transaction again")
    return found


def unwrapped(connection: object) -> Any:
    """The connection, or the driver's connection inside SQLAlchemy's. Raises InvalidTask."""
    found: Any = connection
    if any("Async" in cls.__name__ for cls in type(found).__mro__) or getattr(found, "async_", 0) == 1:
        raise InvalidTask("connection is for asyncio; allowed: one that waits for its answers")
    while "sqlalchemy" in _packages(found) and not hasattr(found, "cursor") and hasattr(found, "connection"):
        found = found.connection() if callable(found.connection) else found.connection  # of a Session; of a Connection
    if isinstance(found, type) or not callable(getattr(found, "cursor", None)):
        raise _not_allowed(connection)
    return found


def _driver_of(connection: object, cursor: object) -> tuple[str, str]:
    """The kind of database and the parameter mark. Raises InvalidTask."""
    # From the cursor: a pool wraps only the connection, and Django wraps both.
    for name in _packages(cursor):
        if name in DRIVERS:
            kind, mark = DRIVERS[name]
            return kind or getattr(connection, "vendor", ""), mark
    raise _not_allowed(connection)


def _not_allowed(connection: object) -> InvalidTask:
    # Its text is never shown: an address may hold a password.
    return InvalidTask(f"connection is of the type {type(connection).__name__}; allowed: {ALLOWED}")


def _packages(part: object) -> list[str]:
    """The packages of an object's class and base classes, such as shop, pymysql, builtins."""
    # Not type(): a tool that wraps cursors to measure them sets `__class__` to the cursor's.
    return [cls.__module__.partition(".")[0] for cls in part.__class__.__mro__]


def _with_percent_marks(sql: str) -> str:
    return sql.replace("%", "%%").replace("?", "%s")


def _checked(task: NewTask) -> NewTask:
    """The task. Raises InvalidTask if its delay ends after the greatest instant, which we cannot ask this database."""
    seconds = task.delay_seconds
    if seconds is not None and time.time() + seconds > LAST_INSTANT.timestamp() - CLOCKS_DIFFER_SECONDS:
        # MySQL would store NULL, and the task would wait for ever.
        raise InvalidTask(f"delay is {seconds:.0f} seconds, which ends after 2038-01-18")
    return task
