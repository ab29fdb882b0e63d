"""A caller's own connection, whatever driver made it: rows are written there, as a part of the caller's transaction.

Only the statements of queue/adding.py and of a completion go there: no COMMIT, no ROLLBACK, no SET. No statement is
tried again: a deadlock undoes the caller's writes, too, and only the caller can repeat those. A caller's session may
differ in its time zone, its character set and the form of its rows; the callers.py of each dialect deals with that.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple, TypeVar

from ..errors import DatabaseError, InvalidTask, TablesMissing, TooLong
from ..messages.programs import CLIENT
from ..model.arguments import MAX_ARGS_BYTES, in_ascii
from ..model.attempt import Finish
from ..model.new_task import NewTask
from ..model.pipeline import MAX_STAGES_BYTES
from .dialect import Inserts
from .statements import SHORT_BYTES, Statements

T = TypeVar("T")

DATABASES = {
    "pymysql": "MySQL",
    "MySQLdb": "MySQL",
    "mysql": "MySQL",
    "mariadb": "MySQL",
    "sqlite3": "SQLite",
    "psycopg": "PostgreSQL",
    "psycopg2": "PostgreSQL",
}
"""The database that a driver's package is for; a package that is not here may be another driver for one of them."""
DJANGO = "django"
SAVEPOINT = "taskserver_completes"
"""It stands from before a completion's writes on, in the caller's transaction."""
MAX_NUMBER_BYTES = 24
QUOTED = "\\'\""
"""The characters before which drivers put a backslash; JSON has no other."""
DJANGOS_DATABASES: dict[str | None, str] = {"mysql": "MySQL", "sqlite": "SQLite", "postgresql": "PostgreSQL"}
"""The database of a Django connection, by its `vendor`."""

ALLOWED = (
    "an open connection to the queue's database, as of PyMySQL, mysqlclient, sqlite3, psycopg, psycopg2 or django.db; "
    "of SQLAlchemy's own connections the one beneath, as connection.connection"
)

BEGIN_AGAIN = "roll your transaction back, and do all of it again"
OPEN_ANOTHER = "open another, and do all of your transaction again"
CALLERS_RIGHTS_HINT = "give the account of that connection the rights that docs/security.md names for what was added"


def _for_format(sql: str) -> str:
    return sql.replace("%", "%%").replace("?", "%s")


MARKS: dict[str, Callable[[str], str]] = {"qmark": str, "format": _for_format, "pyformat": _for_format}
"""The function that writes a statement of ours, with `?` for each value, in a driver's paramstyle."""


class CallersDialect(ABC):
    """The parts of a dialect for writing on a caller's connection."""

    database: str
    """One of the names in DATABASES."""
    inserts: Inserts
    table: str
    statements: Statements

    @abstractmethod
    def upsert(self, changes: Mapping[str, str], condition: str, key: str = "unique_key") -> str:
        """See Dialect.upsert."""

    @abstractmethod
    def error(self, error: Exception) -> DatabaseError:
        """The error of ours that an error of the caller's driver means."""

    def check_connection(self, connection: object) -> None:  # noqa: B027
        """Raises InvalidTask where the connection is of a kind that our calls cannot use."""

    def suit(self, cursor: Any) -> Callable[[str], str] | None:
        """Have our cursor return plain rows.

        The function that writes our statements for this cursor; None: that of the driver's paramstyle.
        """
        return None

    def finish_as_sent(self, finish: Finish) -> Finish:
        """The finish with its texts in a form that any session passes on unchanged."""
        return finish

    @abstractmethod
    def set_savepoint(self, database: CallersDatabase) -> None:
        """Set SAVEPOINT. Raises InvalidTask where the connection would commit each of our statements by itself."""

    where_else = ""
    """More than the right database that a connection needs for the queue's tables."""
    where_instead = ""
    """The end of the error that a connection leads elsewhere: what a person may have forgotten."""
    how_to_shorten = ""
    """The way out for a person whose statement is longer than the connection takes."""

    def most_bytes(self, database: CallersDatabase) -> float:
        """The longest statement that the connection takes."""
        return float("inf")

    def check_place(self, database: CallersDatabase) -> None:  # noqa: B027
        """Raises InvalidTask where the session is in another database, if asking costs next to nothing."""

    def wrong_place(self, theirs: object, ours: object) -> InvalidTask:
        """The error of a connection to `theirs`, where the queue lies in `ours`."""
        return InvalidTask(
            f"connection is one to {theirs}, and the queue of TASKSERVER_DSN lies in {ours}; allowed: a connection to "
            f"the same database{self.where_instead}"
        )

    def no_tables(self, place: object) -> TablesMissing:
        """The queue's tables are not in the database of the caller's connection."""
        return TablesMissing(
            f"the connection that was given reaches no tables of {self.table}: is it to the database of "
            f"TASKSERVER_DSN, {place}{self.where_else}? there {CLIENT} init makes them"
        )


class _Cursor(NamedTuple):
    cursor: Any
    """Our own cursor on the caller's connection."""
    with_marks: Callable[[str], str]


class CallersDatabase:
    """A caller's connection, for as long as rows are written there."""

    def __init__(self, dialect: CallersDialect, cursor: _Cursor) -> None:
        self._dialect = dialect
        self._cursor, self._with_marks = cursor
        self._most_bytes = 0.0
        """The longest statement that the connection takes; 0 until a statement is long enough to ask for it."""

    @property
    def connection(self) -> Any:
        """The driver's own connection, beneath that of a framework; None where the driver does not tell."""
        return getattr(self._cursor, "connection", None)

    @property
    def words(self) -> dict[str, str]:
        return self._dialect.statements.words

    @property
    def inserts(self) -> Inserts:
        return self._dialect.inserts

    def upsert(self, changes: Mapping[str, str], condition: str, key: str = "unique_key") -> str:
        return self._dialect.upsert(changes, condition, key)

    def compose(self, sql: str) -> str:
        """A statement with its words filled in and the marks of the caller's driver."""
        return self._with_marks(self._dialect.statements.compose(sql))

    def execute(self, sql: str, values: Sequence[Any] = ()) -> Any:
        """Send one statement; our cursor. Raises TooLong, with nothing sent, and DatabaseError."""
        composed = self.compose(sql)
        size = len(composed) + sum(map(_bytes_as_sent, values))
        if size > SHORT_BYTES:
            # A server hangs up on a statement that is too long, and so undoes the caller's writes.
            self._most_bytes = self._most_bytes or self._dialect.most_bytes(self)
            if size > self._most_bytes:
                what = f"a statement would have more than {self._most_bytes:.0f} bytes"
                raise callers_error(TooLong, what, self._dialect.how_to_shorten)
        # Django replaces marks only where it gets a list of values, even an empty one.
        ask_driver(self._dialect, self._cursor.execute, composed, list(values))
        return self._cursor

    def rows(self, sql: str, values: Sequence[Any] = ()) -> Sequence[tuple[Any, ...]]:
        """The rows of a SELECT, as tuples, whatever form the caller's connection gives them."""
        rows = ask_driver(self._dialect, self.execute(sql, values).fetchall)
        return [tuple(row.values() if isinstance(row, Mapping) else row) for row in rows]


def _bytes_as_sent(value: object) -> int:
    """The most bytes that a value takes in a statement, and the quotes around it."""
    if not isinstance(value, str):
        return MAX_NUMBER_BYTES
    return MAX_NUMBER_BYTES + len(value.encode(errors="surrogatepass")) + sum(map(value.count, QUOTED))


@contextmanager
def on_connection(dialect: CallersDialect, connection: object) -> Iterator[CallersDatabase]:
    """In the `with`, a caller's connection; at the end our cursor on it is closed.

    Raises InvalidTask where it is no connection to the queue's database, and DatabaseError.
    """
    opened = _open_cursor(dialect, connection)
    try:
        database = CallersDatabase(dialect, opened)
        dialect.check_place(database)
        yield database
    except BaseException:
        with suppress(Exception):
            opened.cursor.close()
        raise
    else:
        ask_driver(dialect, opened.cursor.close)


def _open_cursor(dialect: CallersDialect, connection: object) -> _Cursor:
    """Our cursor on the connection; nothing is sent yet. Raises InvalidTask where we cannot use this connection."""
    open_cursor = getattr(connection, "cursor", None)
    if isinstance(connection, type) or not callable(open_cursor):
        # Its text is never shown: it may hold a password, as an address does.
        what = f"the class {connection.__name__}" if isinstance(connection, type) else _kind_of(connection)
        raise InvalidTask(f"connection is {what}; allowed: {ALLOWED}")
    _check_database(dialect, connection)
    dialect.check_connection(connection)
    cursor = ask_driver(dialect, open_cursor)
    try:
        _check_database(dialect, cursor)
        with_marks = _marks_of(connection, cursor)
    except InvalidTask:
        with suppress(Exception):
            cursor.close()
        raise
    return _Cursor(cursor, dialect.suit(cursor) or with_marks)


def _check_database(dialect: CallersDialect, part: object) -> None:
    """Raises InvalidTask where a connection or its cursor is for another kind of database.

    A cursor may tell more than its connection: the cursor of a pool's connection is the driver's own.
    """
    database = _database_of(part)
    if database not in (None, dialect.database):
        raise dialect.wrong_place(database, dialect.database)


def ask_driver(dialect: CallersDialect, work: Callable[..., T], *args: Any) -> T:
    """Have the caller's driver do something. Raises DatabaseError."""
    try:
        return work(*args)
    except Exception as error:  # whatever a driver raises where its connection is closed, too
        raise dialect.error(error) from error


def callers_error(kind: type[DatabaseError], text: str, hint: str) -> DatabaseError:
    """An error with the caller's driver's text, for a person."""
    what = f"on the connection that was given: {text}"
    return kind(f"{what}: {hint}" if hint else what)


def task_in_ascii(task: NewTask) -> NewTask:
    """The task with its texts in ASCII, which is the same in all character sets; its key in hexadecimal."""
    return task._replace(
        args=in_ascii(task.args, MAX_ARGS_BYTES),
        stages=in_ascii(task.stages, MAX_STAGES_BYTES),
        unique_key=None if task.unique_key is None else task.unique_key.encode().hex(),
    )


def finish_in_ascii(finish: Finish) -> Finish:
    """The finish with its texts in ASCII; its result in hexadecimal."""
    result, following = finish.result, finish.next_stage
    if following is not None:
        following = following._replace(args=in_ascii(following.args, MAX_ARGS_BYTES))
    return finish._replace(result=None if result is None else result.encode().hex(), next_stage=following)


def no_transaction() -> InvalidTask:
    """The error of a completion on a connection that commits each statement by itself."""
    return InvalidTask(
        "connection is in no transaction, and commits each statement by itself; allowed: one on which a transaction "
        "has begun, whose commit is to complete the task"
    )


def _kind_of(value: object) -> str:
    name = type(value).__name__
    return f"{'an' if name[0] in 'AEIOUaeiou' else 'a'} {name}"


def _modules_of(part: object) -> Iterator[str]:
    """The modules that define the part's class and its base classes: shop.db, pymysql.connections, builtins."""
    # `__class__`, not type(): a wrapper that measures a cursor names the class of the wrapped cursor there.
    return (cls.__module__ for cls in part.__class__.__mro__)


def _database_of(part: object) -> str | None:
    """The kind of database that a connection or a cursor is for; None where it does not tell."""
    packages = [module.partition(".")[0] for module in _modules_of(part)]
    if DJANGO in packages:
        vendor = getattr(part, "vendor", None)  # only connections have one, not cursors
        return DJANGOS_DATABASES.get(vendor, vendor)
    return next((DATABASES[package] for package in packages if package in DATABASES), None)


def _marks_of(connection: object, cursor: object) -> Callable[[str], str]:
    """The function that writes our statements for a cursor. Raises InvalidTask."""
    styles = [style for part in (connection, cursor) for module in _modules_of(part) if (style := _style_of(module))]
    if not styles or styles[0] not in MARKS:
        has = f"one with the paramstyle {styles[0]}" if styles else f"{_kind_of(connection)} without a paramstyle"
        raise InvalidTask(f"connection is {has}; allowed: {ALLOWED}")
    return MARKS[styles[0]]


def _style_of(module: str) -> str | None:
    """The paramstyle of the driver that a module belongs to, found as PEP 249 has it."""
    parts = module.split(".")
    if parts[0] == DJANGO:
        return "format"
    for count in range(len(parts), 0, -1):
        style = getattr(sys.modules.get(".".join(parts[:count])), "paramstyle", None)
        if isinstance(style, str):
            return style
    return None
