"""Adding on a caller's own connection to SQLite: there a session has nothing that could be in the way but its rows."""

from __future__ import annotations

import os
import sqlite3

from ..dsn import MEMORY
from ..errors import Conflict, DatabaseError
from .callers import Caller, CallersAdding, elsewhere, told
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

    def _check_place(self) -> None:
        # Another file with the tables of a queue would take the task, and no worker of ours would ever see it.
        files = [row[-1] for row in self._all("PRAGMA database_list")]
        if not all(isinstance(file, (str, bytes)) for file in files):
            return  # their text_factory made of the names what it makes of texts
        is_ours = not files[0] if self._path == MEMORY else any(_are_one(file, self._path) for file in files)
        if not is_ours:
            raise elsewhere(os.fsdecode(files[0]) or "a database in memory", self._path)

    def _error(self, error: Exception) -> DatabaseError:
        text = " ".join(str(error).split())
        if "no such table" in text:
            return self._no_tables(self._path)
        if "no such column" in text or "has no column" in text:
            return self._other_columns(self._path, text)
        kind = type(super()._error(error))
        hint = AGAIN if kind is Conflict else next((hint for words, hint in HINTS.items() if words in text), "")
        return told(kind, text, hint)


def _are_one(path: str | bytes, other: str | os.PathLike[str]) -> bool:
    try:
        return os.path.samefile(path, other)
    except OSError:  # there is none, or no longer
        return False
