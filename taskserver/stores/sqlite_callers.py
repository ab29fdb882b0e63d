"""Adding on a caller's own connection to SQLite: there a session has nothing that could be in the way but its rows."""

from __future__ import annotations

import sqlite3

from ..errors import Conflict, DatabaseError
from .callers import Caller, CallersAdding, told
from .sqlite import HINTS, SQLiteStore

AGAIN = "roll your transaction back, and do all of it again; BEGIN IMMEDIATE waits for others at its begin"


class SQLiteCallers(CallersAdding, SQLiteStore):
    """A queue in an SQLite file, on connections of others."""

    database = "SQLite"

    def _caller(self, connection: object) -> Caller:
        caller = super()._caller(connection)
        if isinstance(caller.cursor, sqlite3.Cursor):
            caller.cursor.row_factory = None  # that of their connection may make anything of a row
        return caller

    def _error(self, error: Exception) -> DatabaseError:
        text = " ".join(str(error).split())
        if "no such table" in text:
            return self._no_tables(self._path)
        if "no such column" in text or "has no column" in text:
            return self._other_columns(self._path, text)
        kind = type(super()._error(error))
        hint = AGAIN if kind is Conflict else next((hint for words, hint in HINTS.items() if words in text), "")
        return told(kind, text, hint)
