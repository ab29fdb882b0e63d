"""Facts about an SQLite file, for `client.py doctor`. Changes nothing.

The tables are compared with the schema file's, which are made in another database, in memory.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Any

from ..database import Database
from ..dialect import claim_indexes
from ..facts import (
    SQLiteFacts,
    TableFault,
    TableShape,
    differences,
    forged_ids,
    kind_of_column,
    shapes_of_indexes,
)
from ..schema import schema_statements

JOURNAL_MODE = "PRAGMA journal_mode"
QUICK_CHECK = "PRAGMA quick_check(1)"
TABLE_NAMES = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite%'"
COLUMNS = 'SELECT name, type, "notnull", dflt_value, pk FROM pragma_table_info(?)'
INDEX_COLUMNS = """
    SELECT list.name, list."unique", info.name FROM pragma_index_list(?) AS list, pragma_index_info(list.name) AS info
    ORDER BY list.name, info.seqno
"""
LAST_ID = "SELECT seq FROM sqlite_sequence WHERE name = ?"
SET_BACK = "UPDATE sqlite_sequence SET seq = (SELECT COALESCE(MAX({key}), 0) FROM {table}) WHERE name = '{table}'"
MAX_GIVEN_ID = 2**63 - 1
MAX_CHECKED_BYTES = 200_000_000
"""SQLite's own check reads the whole file."""

Look = Callable[[str, Sequence[Any]], Sequence[Sequence[Any]]]


def read_facts(database: Database, size_bytes: int) -> SQLiteFacts:
    """All facts about a file of this size. Raises DatabaseError."""
    return SQLiteFacts(
        version=sqlite3.sqlite_version,
        journal_mode=str(database.fetch(JOURNAL_MODE)[0][0]),
        damage=_damage(database, size_bytes),
        faults=tuple(_faults(database)),
        claim_indexes=claim_indexes(database),
        forged_ids=forged_ids(database, _next_ids(database), MAX_GIVEN_ID, SET_BACK),
    )


def _next_ids(database: Database) -> dict[str, int]:
    table = database.dialect.table
    tables = {"id": table, "done_id": f"{table}_done"}
    return {key: _whole(database.fetch_value(LAST_ID, (name,))) + 1 for key, name in tables.items()}


def _whole(value: object) -> int:
    # Any program may write the table, too, which has no types; without a row no id was given yet.
    return value if isinstance(value, int) else 0


def _damage(database: Database, size_bytes: int) -> str | None:
    return None if size_bytes > MAX_CHECKED_BYTES else str(database.fetch(QUICK_CHECK)[0][0])


def _faults(database: Database) -> Iterator[TableFault]:
    with closing(sqlite3.connect(":memory:")) as fresh:
        for statement in schema_statements(database.dialect):
            fresh.execute(statement)
        wanted: Look = lambda sql, values: fresh.execute(sql, values).fetchall()  # noqa: E731
        for (name,) in wanted(TABLE_NAMES, ()):
            yield from differences(name, _shape(wanted, name), _shape(database.fetch, name))


def _shape(look: Look, table: str) -> TableShape:
    columns = {
        name: kind_of_column(f"{kind}{' key' if key else ''}", not (not_null or key), default)
        for name, kind, not_null, default, key in look(COLUMNS, (table,))
    }
    return TableShape(columns, shapes_of_indexes(look(INDEX_COLUMNS, (table,))))
