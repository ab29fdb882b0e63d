"""How the queue's tables on PostgreSQL differ from those of the schema file.

The schema file's statements make temporary tables, which the server describes in the same words as ours; these go with
their transaction. Triggers are looked for by their names. CHECKs are not compared.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ...errors import DatabaseError
from ..database import Database
from ..facts import TableFault, TableShape, differences, kind_of_column
from ..retrying import AT_ONCE, RetryPolicy, Scope
from ..schema import schema_statements

OIDS = """
    SELECT name, CAST(to_regclass(quote_ident(name)) AS oid) FROM unnest(CAST(? AS text[])) AS name
"""
TEMPORARY = """
    SELECT CAST(relname AS text), oid FROM pg_class
    WHERE relnamespace = pg_my_temp_schema() AND relname = ANY (CAST(? AS text[]))
"""
WITH_THESE = "ANY (CAST(? AS oid[]))"
COLUMNS = f"""
    SELECT attrelid, CAST(attname AS text), format_type(atttypid, atttypmod), CAST(collname AS text), attnotnull,
        CAST(attidentity AS text) || CAST(attgenerated AS text), pg_get_expr(adbin, adrelid),
        CASE WHEN seqcycle THEN 'round and round ' ELSE '' END || 'up to ' || seqmax
    FROM pg_attribute
    JOIN pg_type ON pg_type.oid = atttypid
    LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
    LEFT JOIN pg_collation ON pg_collation.oid = attcollation AND attcollation <> typcollation
    LEFT JOIN pg_depend ON refclassid = CAST('pg_class' AS regclass) AND refobjid = attrelid AND refobjsubid = attnum
        AND classid = CAST('pg_class' AS regclass) AND deptype = 'i'
    LEFT JOIN pg_sequence ON seqrelid = objid
    WHERE attrelid = {WITH_THESE} AND attnum > 0 AND NOT attisdropped
    ORDER BY attrelid, attnum
"""
INDEXES = f"""
    SELECT indrelid, CAST(relname AS text), indisunique,
        pg_get_indexdef(indexrelid) || CASE WHEN indisvalid AND indisready THEN '' ELSE ', and is not finished' END
    FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid
    WHERE indrelid = {WITH_THESE}
"""
KINDS = f"""
    SELECT oid, CASE relkind WHEN 'r' THEN '' WHEN 'p' THEN 'partitioned, ' ELSE 'no table, ' END
        || CASE relpersistence WHEN 'u' THEN 'unlogged' ELSE 'logged' END
        || CASE WHEN row_security_active(oid) THEN ', with row level security' ELSE '' END
    FROM pg_class WHERE oid = {WITH_THESE}
"""
TRIGGERS = f"""
    SELECT CAST(relname AS text), CAST(tgname AS text)
    FROM pg_trigger JOIN pg_class ON pg_class.oid = tgrelid
    WHERE tgrelid = {WITH_THESE} AND tgenabled IN ('O', 'A')
"""
MAKES_TABLE = re.compile(r'CREATE (UNLOGGED )?TABLE IF NOT EXISTS "(\w+)"')
MAKES_INDEX = re.compile(r'(CREATE (?:UNIQUE )?INDEX IF NOT EXISTS "\w+" ON )(".*)', re.DOTALL)
MAKES_TRIGGER = re.compile(r'CREATE TRIGGER (\w+) AFTER \w+ ON "(\w+)"')
MAY_WRITE = "SET TRANSACTION READ WRITE"
"""Sessions of this account may begin otherwise."""


class Compared(NamedTuple):
    """The tables beside the schema file's."""

    oids: Mapping[str, int]
    """The server's number of each of our tables that is there, by name."""
    faults: tuple[TableFault, ...] | str
    """Or the reason why they cannot be compared."""
    lost_triggers: tuple[str, ...]
    """The triggers that are missing or switched off, as `notify_added on jobs_queue`."""


def compared(database: Database) -> Compared:
    """The tables beside the schema file's. Raises DatabaseError."""
    statements = list(schema_statements(database.dialect))
    unlogged = {found[2]: bool(found[1]) for found in map(MAKES_TABLE.match, statements) if found}
    oids: dict[str, int] = {name: oid for name, oid in database.fetch(OIDS, (list(unlogged),)) if oid is not None}
    numbers = list(oids.values())
    there = {(table, trigger) for table, trigger in database.fetch(TRIGGERS, (numbers,))}
    made = [(table, trigger) for sql in statements for trigger, table in MAKES_TRIGGER.findall(sql)]
    lost = tuple(f"{trigger} on {table}" for table, trigger in made if table in oids and (table, trigger) not in there)
    try:
        wanted = database.run(AS_A_WHOLE, _shapes_of_schema, database, statements, unlogged)
    except DatabaseError as error:
        return Compared(oids, str(error), lost)
    found = database.run(AT_ONCE, _shapes, database, oids)
    faults = (fault for name, shape in wanted.items() for fault in differences(name, shape, found.get(name, NONE)))
    return Compared(oids, tuple(faults), lost)


NONE = TableShape({}, {})
AS_A_WHOLE = RetryPolicy(Scope.TRANSACTION, 0)


def _shapes_of_schema(
    database: Database, statements: Sequence[str], unlogged: Mapping[str, bool]
) -> dict[str, TableShape]:
    """The tables that the schema file makes, for the length of a transaction."""
    database.execute(MAY_WRITE)
    for statement in statements:
        if sql := _as_temporary(statement):
            database.execute(sql)
    oids: dict[str, int] = dict(database.rows(TEMPORARY, (list(unlogged),)))
    shapes = _shapes(database, oids)
    return {name: shape._replace(engine="unlogged" if unlogged[name] else "logged") for name, shape in shapes.items()}


def _as_temporary(statement: str) -> str:
    """A statement of the schema file for temporary tables; empty for one that makes neither table nor index."""
    # Where the temporary schema stands last in the search_path, a name alone would mean our own table.
    if found := MAKES_TABLE.match(statement):
        return f'CREATE TEMPORARY TABLE "{found[2]}"{statement[found.end() :]} ON COMMIT DROP'
    if found := MAKES_INDEX.match(statement):
        return f"{found[1]}pg_temp.{found[2]}"
    return ""


def _shapes(database: Database, oids: Mapping[str, int]) -> dict[str, TableShape]:
    """Tables as the server's catalog tells of them, by name."""
    numbers = list(oids.values())
    columns: dict[int, dict[str, str]] = {number: {} for number in numbers}
    for number, name, kind, collation, not_null, own, default, counted in database.rows(COLUMNS, (numbers,)):
        words = f"{kind} {collation}" if collation else kind
        made = f"{'' if own == 'd' else 'always '}identity {counted}" if own else default
        columns[number][name] = kind_of_column(words, not not_null, made)
    indexes: dict[int, dict[str, str]] = {number: {} for number in numbers}
    for number, name, is_unique, definition in database.rows(INDEXES, (numbers,)):
        shape = definition.partition(" USING ")[2].removeprefix("btree ")
        indexes[number][name] = f"unique {shape}" if is_unique else shape
    kinds: dict[int, str] = dict(database.rows(KINDS, (numbers,)))
    return {
        name: TableShape(columns[number], indexes[number], kinds[number], "kind")
        for name, number in oids.items()
        if number in kinds
    }
