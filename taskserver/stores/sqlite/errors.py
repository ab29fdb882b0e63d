"""The meaning of the errors of SQLite and its driver: which are worth another try, and what a person can do.

Errors are recognised by their texts: SQLite's own numbers are many, and older drivers do not pass them on.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

from ...errors import AlreadyThere, Conflict, DatabaseError, Refused, Unavailable
from ...messages.programs import CLIENT
from ..dialect import no_tables, other_columns

# UnicodeDecodeError: SQLite's own message may quote a damaged file.
DRIVER_ERRORS = (sqlite3.Error, sqlite3.Warning, OverflowError, UnicodeDecodeError)

INTERRUPTED = "interrupted"
"""All of the text, if a progress handler or interrupt() of the site's ended a statement."""
LOCKED = (
    "for longer than was waited, by other processes, by a transaction that a task left open, or by your own: then add "
    "the task on its connection, as in add_task(…, connection=taskserver.connection())"
)
FULL = (
    "free some space, or have your host raise the quota; if there is space, no id is left behind the greatest one: "
    "delete that row, then run UPDATE sqlite_sequence SET seq = 0 WHERE name = '{}'"
)
HINTS = {
    "readonly database": "let this user write the file and its folder",
    "unable to open database file": "let this user read and write the file and its folder",
    "not a database": "name another file in TASKSERVER_DSN",
    "malformed": f"it is damaged: stop the workers, put back a copy, or move it away and run {CLIENT} init",
    "no such index": f"run {CLIENT} init",
    "is full": FULL,
    "disk I/O error": "is the disk full, or a quota used up?",
    "locked": LOCKED,
    "busy": LOCKED,
}
KINDS = {
    "is full": Unavailable,
    "disk I/O error": Unavailable,
    "duplicate column name": AlreadyThere,
    "locked": Conflict,
    "busy": Conflict,
}


def error_of(error: BaseException, path: Path | str, table: str) -> DatabaseError:
    """Our error for an error of the driver."""
    text = " ".join(str(error).split())
    if isinstance(error, sqlite3.IntegrityError):
        return Refused(f"{path}: {text}")
    if "no such table" in text:
        return no_tables(path, table)
    if "no such column" in text or "has no column" in text:
        return other_columns(path, table, text)
    if text == INTERRUPTED:
        return Conflict(f"{path}: a statement was {INTERRUPTED}")
    kind = next((kind for words, kind in KINDS.items() if words in text), DatabaseError)
    hint = next((f": {hint.format(table)}" for words, hint in HINTS.items() if words in text), "")
    return kind(f"{path}: {text}{hint}")
