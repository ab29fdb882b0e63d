"""Facts about an SQLite file, for `client.py doctor`. Changes nothing.

The tables are compared with the schema file's, which are made in another database, in memory.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

from ..database.dialect import claim_indexes
from ..database.facts import SQLiteFacts, TableFault
from ..database.tables import schema_statements

if TYPE_CHECKING:
    from ..database.dialect import Connected

JOURNAL_MODE = "PRAGMA journal_mode"
QUICK_CHECK = "PRAGMA quick_check(1)"
TABLE_NAMES = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite%'"
COLUMNS = 'SELECT name, type, "notnull", dflt_value, pk FROM pragma_table_info(?)'
INDEX_COLUMNS = """
    SELECT list.name, list."unique", info.name FROM pragma_index_list(?) AS list, pragma_index_info(list.name) AS info
    ORDER BY list.name, info.seqno
"""
MAX_CHECKED_BYTES = 200_000_000
"""SQLite's own check reads the whole file."""

Look = Callable[[str, Sequence[Any]], Sequence[Sequence[Any]]]


def read_facts(database: Connected, size_bytes: int) -> SQLiteFacts:
    """All facts about a file of this size. Raises DatabaseError."""
    return SQLiteFacts(
        version=sqlite3.sqlite_version,
        journal_mode=str(database.fetch(JOURNAL_MODE)[0][0]),
        damage=_damage(database, size_bytes),
        faults=tuple(_faults(database)),
        claim_indexes=claim_indexes(database),
    )


def _damage(database: Connected, size_bytes: int) -> str | None:
    return None if size_bytes > MAX_CHECKED_BYTES else str(database.fetch(QUICK_CHECK)[0][0])


def _faults(database: Connected) -> Iterator[TableFault]:
    with closing(sqlite3.connect(":memory:")) as fresh:
        for statement in schema_statements(database.dialect):
            fresh.execute(statement)
        wanted: Look = lambda sql, values: fresh.execute(sql, values).fetchall()  # noqa: E731
        names = [name for (name,) in wanted(TABLE_NAMES, ())]
        for name in names:
            yield from _faults_of(name, wanted, database.fetch)


def _faults_of(table: str, wanted: Look, found: Look) -> Iterator[TableFault]:
    stands = {name: kind for name, *kind in found(COLUMNS, (table,))}
    if not stands:
        yield TableFault(table, "is missing")
        return
    ours = {name: kind for name, *kind in wanted(COLUMNS, (table,))}
    for name, kind in ours.items():
        if stands.get(name) != kind:
            yield TableFault(table, f"column {name} {'is of another kind' if name in stands else 'is missing'}")
    for name, (_, not_null, default, key) in stands.items():
        if name not in ours and not_null and default is None and not key:
            yield TableFault(
                table, f"column {name}, which is not ours, has no default: rows that leave it out are refused"
            )
    indexes = _indexes(found, table)
    for name, index in _indexes(wanted, table).items():
        if indexes.get(name) != index:
            yield TableFault(table, f"index {name} is {indexes.get(name, 'missing')}, not {index}")


def _indexes(look: Look, table: str) -> dict[str, str]:
    columns: dict[str, list[str]] = {}
    unique: dict[str, str] = {}
    for index, is_unique, column in look(INDEX_COLUMNS, (table,)):
        columns.setdefault(index, []).append(str(column))
        unique[index] = "unique " if is_unique else ""
    return {index: f"{unique[index]}({', '.join(parts)})" for index, parts in columns.items()}
