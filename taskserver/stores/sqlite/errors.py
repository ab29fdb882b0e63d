"""What errors of SQLite and its driver mean: which deserve a retry, and what a person can do.

Differs from MySQL: errors are recognized by text, because older drivers do not pass on SQLite's numbers.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

from ...errors import AlreadyThere, Conflict, DatabaseError, Refused, Unavailable
from ...messages.programs import CLIENT
from ..dialect import no_tables, other_columns

# UnicodeDecodeError: SQLite's own message may quote a damaged file.
DRIVER_ERRORS = (sqlite3.Error, sqlite3.Warning, OverflowError, UnicodeDecodeError)

LOCKED = (
    Conflict,
    "for longer than was waited, by other processes, by a transaction that a task left open, or by your own: then add "
    "the task on its connection, add_task(…, connection=…), or connection=taskserver.connection() in a task",
)
MEANINGS: dict[str, tuple[type[DatabaseError], str]] = {
    "locked": LOCKED,
    "busy": LOCKED,
    "interrupted": (Conflict, "by a progress handler or interrupt() of the site's"),
    "readonly database": (DatabaseError, "let this user write the file and its folder"),
    "unable to open database file": (DatabaseError, "let this user read and write the file and its folder"),
    "not a database": (DatabaseError, "name another file in TASKSERVER_DSN"),
    "malformed": (
        DatabaseError,
        f"it is damaged: stop the workers, put back a copy, or move it away and run {CLIENT} init",
    ),
    "no such index": (DatabaseError, f"run {CLIENT} init"),
    "disk I/O error": (Unavailable, "is the disk full, or a quota used up?"),
    "is full": (Unavailable, "free some space, or ask your host to raise the quota"),
    "duplicate column name": (AlreadyThere, ""),
}
"""What an error's text contains, the class of our error, and the hint. The first that matches counts."""


NO_ID_LEFT = (
    "; if there is space, no id is left behind the greatest one: delete that row, then run "
    "UPDATE sqlite_sequence SET seq = 0 WHERE name = '{}'"
)
"""SQLite says "is full" for this too. A quota does not show in the free space."""
ROOM_BYTES = 1_000_000


def error_of(error: BaseException, path: Path | str, table: str) -> DatabaseError:
    """Our error for a driver's error."""
    text = " ".join(str(error).split())
    if isinstance(error, sqlite3.IntegrityError):
        return Refused(f"{path}: {text}")
    if "no such table" in text:
        return no_tables(path, table, text)
    if "no such column" in text or "has no column" in text:
        return other_columns(path, table, text)
    kind, hint = next((meaning for words, meaning in MEANINGS.items() if words in text), (DatabaseError, ""))
    if "is full" in text:
        from shutil import disk_usage  # imported late, to keep empty runs fast

        hint += NO_ID_LEFT if disk_usage(Path(path).parent).free > ROOM_BYTES else ""
    return kind(f"{path}: {text}: {hint.format(table)}" if hint else f"{path}: {text}")
