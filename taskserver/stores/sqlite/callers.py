"""Writing on a caller's own connection to SQLite, whose session differs from ours in the form of its rows alone."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import Conflict, DatabaseError
from ..callers import BEGIN_AGAIN, SAVEPOINT, CallersDatabase, CallersDialect, callers_error, no_transaction
from ..dialect import IDS_OF_KEYS, other_columns
from ..statements import Statements, words_of
from .errors import HINTS, error_of
from .inserts import SQLiteInserts
from .private_file import is_private_file
from .words import WORDS, upsert

if TYPE_CHECKING:
    from ..dialect import Rows

BEGIN_AGAIN_AT_ONCE = f"{BEGIN_AGAIN}; BEGIN IMMEDIATE waits for others at its begin"

_TABLE_INFO = 'PRAGMA "{schema}".table_info("{table}")'


class CallersInserts(SQLiteInserts):
    """Adding through a session whose rows may have any form."""

    def insert_keyed(self, database: Rows, sql: str, values: Sequence[Any], keys: Sequence[str]) -> Sequence[int]:
        database.execute(sql, values)
        # One key at a time, so that no key is read back: a connection may be set to return text in any form.
        return [_id_of_key(database, key) for key in keys]


def _id_of_key(database: Rows, key: str) -> int:
    rows = database.rows(IDS_OF_KEYS.replace("unique_key, id", "id").replace("{ids}", "?"), (key,))
    if not rows:
        raise DatabaseError(
            f"the task with the key {key!r} was added, and a worker has deleted its row since: this connection "
            "commits each statement by itself, so its id is not known; begin a transaction first"
        )
    return int(rows[0][0])


class SQLiteCallers(CallersDialect):
    """A queue in an SQLite file, on connections of others."""

    database = "SQLite"

    def __init__(self, path: Path, table: str) -> None:
        self._path = path
        if is_private_file(path):
            self.where_instead = "; in a test, open a task_queue (docs/testing.md)"
        self.table = table
        self.inserts = CallersInserts()
        self.statements = Statements(words_of(WORDS, table), str)

    def upsert(self, changes: Mapping[str, str], condition: str, key: str = "unique_key") -> str:
        return upsert(changes, condition, key)

    def suit(self, cursor: Any) -> None:
        if isinstance(cursor, sqlite3.Cursor):
            cursor.row_factory = None  # the factory of the caller's connection may make anything of a row

    def check_place(self, database: CallersDatabase) -> None:
        # Another file may have the tables of a queue, too: it would take the task, and no worker of ours would see it.
        attached = database.rows("PRAGMA database_list")
        if not all(isinstance(value, (str, bytes)) for row in attached for value in row[1:]):
            return  # the caller's text_factory made something else of the names
        # A table's name alone means that of temp, else of main, else of the first attached file that has one.
        schemas = sorted(((os.fsdecode(name), file) for _, name, file in attached), key=lambda row: row[0] != "temp")
        for schema, file in schemas:
            if _are_one(file, self._path):
                return
            if database.rows(_TABLE_INFO.format(schema=schema.replace('"', '""'), table=self.table)):
                raise self.wrong_place(f"{_named(file)} (as {schema})", self._path)
        raise self.wrong_place(_named(dict(schemas)["main"]), self._path)

    def set_savepoint(self, database: CallersDatabase) -> None:
        # The driver begins a transaction by itself before a write, unless it is told to leave that to its user.
        connection = database.connection
        begins = getattr(connection, "isolation_level", "") is not None and getattr(connection, "autocommit", 0) != 1
        if not (begins or connection.in_transaction):
            raise no_transaction()
        database.execute(f"SAVEPOINT {SAVEPOINT}")

    def error(self, error: Exception) -> DatabaseError:
        text = " ".join(str(error).split())
        if "no such table" in text:
            return self.no_tables(self._path)
        if "no such column" in text or "has no column" in text:
            return other_columns(self._path, self.table, text)
        kind = type(error_of(error, self._path, self.table))
        hint = (
            BEGIN_AGAIN_AT_ONCE
            if kind is Conflict
            else next((hint for words, hint in HINTS.items() if words in text), "")
        )
        return callers_error(kind, text, hint)


def _named(file: str | bytes) -> str:
    return os.fsdecode(file) or "a database in memory"


def _are_one(path: str | bytes, other: str | os.PathLike[str]) -> bool:
    try:
        return os.path.samefile(path, other)
    except OSError:  # there is no such file, or no longer
        return False
