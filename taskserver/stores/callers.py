"""Adding on a caller's own connection, whatever driver made it: a part of the caller's transaction.

Nothing but the statements of adding.py goes there: no COMMIT, no ROLLBACK, no savepoint, no SET. So nothing is done
again here, either: a deadlock undoes what the caller wrote, too, and only they can repeat that. What may differ from a
connection of ours (the session's time zone and character set, the form of its rows) is for the dialects to bear:
mysql_callers.py, sqlite_callers.py.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, ClassVar, NamedTuple, TypeVar

from ..errors import DatabaseError, InvalidTask, TablesMissing
from ..lifecycle import NewTask
from ..stopping import uninterrupted
from .adding import Adding
from .database import Row

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
"""What a driver speaks, by its package; others may be another driver for the same."""
DJANGO = "django"
DJANGOS_DATABASES: dict[str | None, str] = {"mysql": "MySQL", "sqlite": "SQLite", "postgresql": "PostgreSQL"}
"""Its connections say of themselves what they speak."""

ALLOWED = (
    "an open connection to the queue's database, as of PyMySQL, mysqlclient, sqlite3 or django.db; of SQLAlchemy's own "
    "connections the one beneath, as connection.connection"
)


def _for_format(sql: str) -> str:
    return sql.replace("%", "%%").replace("?", "%s")


MARKS: dict[str, Callable[[str], str]] = {"qmark": str, "format": _for_format, "pyformat": _for_format}
"""How a statement of ours, with `?` for each value, is written in a driver's paramstyle."""


class Caller(NamedTuple):
    """A caller's connection, as long as we use it."""

    cursor: Any
    """Of our own on it."""
    with_marks: Callable[[str], str]


class _Thread(threading.local):
    caller: Caller | None = None


class CallersAdding(Adding):
    """The verbs of producers, each on the connection that it is given."""

    database: ClassVar[str]
    """As in DATABASES."""
    what_now = "roll your transaction back, as its row is part of that"

    def __init__(self, *settings: Any) -> None:
        super().__init__(*settings)
        self._thread = _Thread()

    @uninterrupted
    def add_on(self, connection: object, task: NewTask) -> int:
        """→ new, or waiting, once the caller commits. The id of the row; of the one that has the key, if one stands."""
        return self._add_on(connection, [task])[0]

    @uninterrupted
    def add_many_on(self, connection: object, tasks: Iterable[NewTask]) -> list[int]:
        """The same for many; those of an iterator go to the database as they come."""
        return self._add_on(connection, tasks)

    def _add_on(self, connection: object, tasks: Iterable[NewTask]) -> list[int]:
        with self._using(connection):
            return [task_id for ids in self._insert_all(map(self._as_sent, tasks)) for task_id in ids]

    def _as_sent(self, task: NewTask) -> NewTask:
        """A task with its values in the form in which they come through any session."""
        return task

    def _ids_of_keys(self, keys: Sequence[str]) -> list[int]:
        # Each by itself, so that no key comes back: connections can be set to give text in many forms.
        return [self._id_of_key(key) for key in keys]

    def _id_of_key(self, key: str) -> int:
        row = self._first(self.IDS_OF_KEYS.replace("unique_key, id", "id").replace("{ids}", "?"), (key,))
        if row is None:
            raise DatabaseError(
                f"the task with the key {key!r} was added, and a worker has deleted its row since: this connection "
                "commits each statement by itself, so its id is not known; begin a transaction first"
            )
        return int(row[0])

    # ---- their connection

    @contextmanager
    def _using(self, connection: object) -> Iterator[None]:
        """In the `with`, statements of this thread go to a caller's connection; our cursor on it is closed after it."""
        outer = self._thread.caller  # of an iterator of tasks that adds some itself
        caller = self._thread.caller = self._caller(connection)
        try:
            self._check_place()
            yield
        except BaseException:
            with suppress(Exception):
                caller.cursor.close()
            raise
        else:
            self._ask(caller.cursor.close)
        finally:
            self._thread.caller = outer

    def _caller(self, connection: object) -> Caller:
        """Raises InvalidTask where it is no connection of which we know how to use it, before anything is sent."""
        open_cursor = getattr(connection, "cursor", None)
        if isinstance(connection, type) or not callable(open_cursor):
            # Never its text, which may hold a password, as an address does.
            what = f"the class {connection.__name__}" if isinstance(connection, type) else _kind_of(connection)
            raise InvalidTask(f"connection is {what}; allowed: {ALLOWED}")
        self._check_database(connection)
        cursor = self._ask(open_cursor)
        try:
            self._check_database(cursor)
            return Caller(cursor, _marks_of(connection, cursor))
        except InvalidTask:
            with suppress(Exception):
                cursor.close()
            raise

    def _check_database(self, part: object) -> None:
        """Of a connection, or of a cursor, which may tell more: that of a pool's connection is the driver's own."""
        database = _database_of(part)
        if database not in (None, self.database):
            raise elsewhere(database, self.database)

    def _check_place(self) -> None:
        """The same of what the session that is in use says of itself, where that costs next to nothing."""

    # ---- statements

    def _execute(self, sql: str, values: Sequence[Any] = ()) -> Any:
        caller = self._thread.caller
        assert caller is not None
        # Django takes marks as such only where there are values, be they none.
        self._ask(caller.cursor.execute, caller.with_marks(self._compose(sql)), list(values))
        return caller.cursor

    def _with_marks(self, sql: str) -> str:
        return sql  # what is kept is the same for all drivers

    def _all(self, sql: str, values: Sequence[Any] = ()) -> Sequence[Row]:
        rows = self._ask(self._execute(sql, values).fetchall)
        return [tuple(row.values() if isinstance(row, Mapping) else row) for row in rows]

    # ---- errors

    def _ask(self, work: Callable[..., T], *args: Any) -> T:
        """Have their driver do something. Raises DatabaseError."""
        try:
            return work(*args)
        except Exception as error:  # whatever a driver raises where its connection is closed, too
            raise self._error(error) from error

    def _no_tables(self, place: object) -> TablesMissing:
        return TablesMissing(
            f"the connection that was given reaches no tables of {self.table}: is it to the database of "
            f"TASKSERVER_DSN, {place}? there client.py init makes them"
        )


def told(kind: type[DatabaseError], text: str, hint: str) -> DatabaseError:
    """What their driver said, for a person."""
    what = f"on the connection that was given: {text}"
    return kind(f"{what}: {hint}" if hint else what)


def elsewhere(theirs: object, ours: object) -> InvalidTask:
    """What is wrong with a connection to theirs, where the queue lies in ours."""
    return InvalidTask(
        f"connection is one to {theirs}, and the queue of TASKSERVER_DSN lies in {ours}; allowed: a connection to the "
        "same database"
    )


def _kind_of(value: object) -> str:
    name = type(value).__name__
    return f"{'an' if name[0] in 'AEIOUaeiou' else 'a'} {name}"


def _modules_of(part: object) -> Iterator[str]:
    """Where its class, and those that it is made of, are defined: shop.db, pymysql.connections, builtins."""
    # As it says itself, since some wrap a cursor to measure it, and say the class of what they wrap.
    return (cls.__module__ for cls in part.__class__.__mro__)


def _database_of(part: object) -> str | None:
    """What a connection or a cursor speaks; None where it does not tell."""
    packages = [module.partition(".")[0] for module in _modules_of(part)]
    if DJANGO in packages:
        vendor = getattr(part, "vendor", None)  # of a connection; its cursors have none
        return DJANGOS_DATABASES.get(vendor, vendor)
    return next((DATABASES[package] for package in packages if package in DATABASES), None)


def _marks_of(connection: object, cursor: object) -> Callable[[str], str]:
    """How statements are written for a cursor. Raises InvalidTask."""
    styles = [style for part in (connection, cursor) for module in _modules_of(part) if (style := _style_of(module))]
    if not styles or styles[0] not in MARKS:
        has = f"one with the paramstyle {styles[0]}" if styles else f"{_kind_of(connection)} without a paramstyle"
        raise InvalidTask(f"connection is {has}; allowed: {ALLOWED}")
    return MARKS[styles[0]]


def _style_of(module: str) -> str | None:
    """The paramstyle of the driver that a module is a part of, as PEP 249 has the driver say it."""
    parts = module.split(".")
    if parts[0] == DJANGO:
        return "format"
    for count in range(len(parts), 0, -1):
        style = getattr(sys.modules.get(".".join(parts[:count])), "paramstyle", None)
        if isinstance(style, str):
            return style
    return None
