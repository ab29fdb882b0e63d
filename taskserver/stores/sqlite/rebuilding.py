"""SQLite cannot alter a CHECK: an upgrade creates a changed table again and copies its rows."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ..database import Database

STANDING = "SELECT sql FROM sqlite_master WHERE name = ?"
OTHERS_OF_TABLE = "SELECT sql FROM sqlite_master WHERE tbl_name = ? AND type <> 'table' AND sql IS NOT NULL"
"""The table's indexes and triggers, including the site's own."""
LAST_ID = "SELECT seq FROM sqlite_sequence WHERE name = ?"


def rebuild_tables(database: Database, statements: Iterable[str]) -> None:
    """Rebuild tables that differ from those of `statements`, in the open transaction.

    Leaves a table with extra columns as it is. Raises DatabaseError.
    """
    database.execute("PRAGMA legacy_alter_table = ON")  # a view may use a table that is missing for a moment
    for sql in statements:
        if created := re.match(r'CREATE TABLE IF NOT EXISTS "(\w+)"', sql):
            _rebuild(database, created[1], sql.replace(" IF NOT EXISTS", ""))
    database.execute("PRAGMA legacy_alter_table = OFF")


def _rebuild(database: Database, table: str, sql: str) -> None:
    ((standing,),) = database.rows(STANDING, (table,))
    if "".join(standing.split()) == "".join(sql.split()):
        return
    others, last = database.rows(OTHERS_OF_TABLE, (table,)), database.rows(LAST_ID, (table,))
    columns = _columns(database, table)
    database.execute(sql.replace(f'"{table}"', f'"{table}_new"', 1))
    if columns == _columns(database, f"{table}_new"):
        names = ", ".join(columns)
        database.execute(f'INSERT INTO "{table}_new" ({names}) SELECT {names} FROM "{table}"')
        database.execute(f'DROP TABLE "{table}"')
        database.execute(f'ALTER TABLE "{table}_new" RENAME TO "{table}"')
        for (statement,) in others:
            database.execute(statement)
        for (seq,) in last:  # ids are not reused
            database.execute("DELETE FROM sqlite_sequence WHERE name = ?", (table,))
            database.execute("INSERT INTO sqlite_sequence (name, seq) VALUES (?, ?)", (table, seq))
    else:
        database.execute(f'DROP TABLE "{table}_new"')


def _columns(database: Database, table: str) -> list[str]:
    return [row[1] for row in database.rows(f'PRAGMA table_info("{table}")')]
