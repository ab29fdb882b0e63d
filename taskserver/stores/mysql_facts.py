"""Facts about a MySQL or MariaDB database, for `client.py doctor`. Changes nothing.

Rights are found out by doing: statements as a worker's that match no row. What GRANT says would have to be
understood, with its roles and patterns.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from ..errors import DatabaseError, Unavailable
from ..settings import MODES
from .facts import MySQLFacts, TableFault
from .views import Views

IDENTITY = "SELECT VERSION(), CURRENT_USER()"
SERVER_VARIABLES = "SHOW GLOBAL VARIABLES"
SESSION_VARIABLES = "SHOW SESSION VARIABLES"
CIPHER = "SHOW SESSION STATUS LIKE 'Ssl_cipher'"
CLOCK = "SELECT UNIX_TIMESTAMP(NOW(6))"
# MariaDB before 11.5 says 0 or NULL. MySQL knows later instants by now, but its columns hold none.
REACHES_2106 = "SELECT UNIX_TIMESTAMP('2100-01-01 00:00:00')"
# InnoDB tells these instants in the time zone of its host, whatever the session's.
IN_ITS_OWN_ZONE = "SET time_zone = 'SYSTEM'"
IN_OURS = "SET time_zone = '+00:00'"
OLDEST_TRANSACTION = "SELECT MAX(TIMESTAMPDIFF(SECOND, trx_started, NOW())) FROM information_schema.innodb_trx"
COLUMNS = """
    SELECT table_name, column_name, column_type, is_nullable FROM information_schema.columns
    WHERE table_schema = DATABASE() AND table_name IN ({ids})
"""
INDEXES = """
    SELECT table_name, index_name, column_name FROM information_schema.statistics
    WHERE table_schema = DATABASE() AND table_name IN ({ids}) ORDER BY table_name, index_name, seq_in_index
"""
TABLES = """
    SELECT table_name, engine, table_collation FROM information_schema.tables
    WHERE table_schema = DATABASE() AND table_name IN ({ids})
"""


class _Right(NamedTuple):
    """A right of workers on one of the tables, and a statement that takes it and changes nothing."""

    name: str
    statement: str
    needless_in: tuple[str, ...] = ()
    """Modes that do without it."""
    what_for: str = ""


RIGHTS = (
    _Right("SELECT on {queue}", "SELECT {columns} FROM {table} WHERE id = 0"),
    _Right("UPDATE on {queue}", "UPDATE {table} SET priority = priority WHERE id = 0"),
    _Right("DELETE on {queue}", "DELETE FROM {table} WHERE id = 0", ("mark",), "the modes delete and move"),
    _Right(
        "INSERT on {queue}",
        "INSERT INTO {table} (task) SELECT '' FROM DUAL WHERE 1 = 0",
        MODES,
        "tasks that add tasks",
    ),
    _Right(
        "INSERT on {queue}_done",
        "INSERT INTO {done} (id, task) SELECT 0, '' FROM DUAL WHERE 1 = 0",
        ("delete", "mark"),
        "the mode move",
    ),
    _Right("SELECT on {queue}_done", "SELECT id FROM {done} WHERE done_id = 0", MODES, "client.py show"),
    _Right("SELECT on {queue}_workers", "SELECT pid FROM {workers} WHERE host = ''"),
    _Right(
        "INSERT on {queue}_workers",
        "INSERT INTO {workers} (host, group_ids, pid) SELECT '', '', 0 FROM DUAL WHERE 1 = 0",
    ),
    _Right("UPDATE on {queue}_workers", "UPDATE {workers} SET pid = pid WHERE host = ''"),
    _Right("SELECT on {queue}_schema", "SELECT version FROM {schema} WHERE version = 0"),
)


class _Table(NamedTuple):
    """A table as information_schema tells it, or as the schema file would make it."""

    columns: dict[str, str]
    """Type and, where it may be NULL, that."""
    indexes: dict[str, tuple[str, ...]]
    engine: str = "InnoDB"
    collation: str = "utf8mb4_bin"


def read_facts(store: Views, skips_locked: bool, is_denied: Callable[[DatabaseError], bool]) -> MySQLFacts:
    """Ask for all of them; `is_denied` tells the error of a right that is missing. Raises DatabaseError."""
    version, user = store.look(IDENTITY)[0]
    denied = list(_denied(store, is_denied))
    variables = _by_name(store.look(SERVER_VARIABLES))
    is_mariadb = "mariadb" in f"{version} {variables.get('version_comment', '')}".lower()
    return MySQLFacts(
        version=version,
        is_mariadb=is_mariadb,
        user=user,
        cipher=next((value for _, value in store.look(CIPHER)), ""),
        variables=variables,
        session=_by_name(store.look(SESSION_VARIABLES)),
        clock_ahead_seconds=_clock_ahead(store),
        last_instant="2106-02-07" if is_mariadb and store.look(REACHES_2106)[0][0] else "2038-01-19",
        skips_locked=skips_locked,
        denied=tuple(right.name for right in denied if store.mode not in right.needless_in),
        spared=tuple(f"{right.name} (for {right.what_for})" for right in denied if store.mode in right.needless_in),
        faults=tuple(_faults(store)),
        claim_indexes=_claim_indexes(store),
        oldest_transaction_seconds=_oldest_transaction(store),
    )


def _by_name(rows: Sequence[Sequence[Any]]) -> dict[str, str]:
    return {name.lower(): str(value) for name, value in rows}


def _clock_ahead(store: Views) -> float:
    before = time.time()
    there = float(store.look(CLOCK)[0][0])
    return there - (before + time.time()) / 2


def _oldest_transaction(store: Views) -> float | None:
    try:
        store.look(IN_ITS_OWN_ZONE)
        seconds = store.look(OLDEST_TRANSACTION)[0][0]
    except DatabaseError:
        return None  # it takes the right PROCESS
    finally:
        store.look(IN_OURS)
    return float(seconds or 0)


def _denied(store: Views, is_denied: Callable[[DatabaseError], bool]) -> Iterator[_Right]:
    for right in RIGHTS:
        try:
            store.look(right.statement)
        except Unavailable:
            raise
        except DatabaseError as error:
            if is_denied(error):  # what else may be wrong with a table is told as its fault
                yield right._replace(name=right.name.format(queue=store.table))


def _claim_indexes(store: Views) -> tuple[str, ...]:
    used: list[str] = []
    for groups in ((1, 2), ()):
        with suppress(DatabaseError):  # without the right to UPDATE
            used += store.explain_claim(groups)
    return tuple(dict.fromkeys(used))


# ---- the tables beside the schema file


def _faults(store: Views) -> Iterator[TableFault]:
    wanted = dict(_tables_of_schema(store.schema_statements()))
    found = _tables_of_database(store, list(wanted))
    for name, table in wanted.items():
        if name not in found:
            yield TableFault(name, "is missing, or hidden from this account")
        else:
            yield from (TableFault(name, what) for what in _differences(table, found[name]))


def _differences(wanted: _Table, found: _Table) -> Iterator[str]:
    for name, kind in wanted.columns.items():
        if found.columns.get(name) != kind:
            yield f"column {name} is {found.columns.get(name, 'missing')}, not {kind}"
    for name, columns in wanted.indexes.items():
        if found.indexes.get(name) != columns:
            has = f"has ({', '.join(found.indexes[name])})" if name in found.indexes else "is missing"
            yield f"index {name} {has}, not ({', '.join(columns)})"
    if found.engine.lower() != wanted.engine.lower():
        yield f"its engine is {found.engine}, not {wanted.engine}"
    if found.collation != wanted.collation:
        yield f"its collation is {found.collation}, not {wanted.collation}"


def _tables_of_schema(statements: Iterator[str]) -> Iterator[tuple[str, _Table]]:
    for statement in statements:
        name = re.match(r"CREATE TABLE IF NOT EXISTS `(\w+)`", statement)
        if name:
            lines = [line.strip().rstrip(",") for line in statement.splitlines()[1:]]
            yield name[1], _Table(dict(_columns_of(lines)), dict(_indexes_of(lines)))


def _columns_of(lines: Sequence[str]) -> Iterator[tuple[str, str]]:
    for line in lines:
        column = re.match(r"([a-z_]+) +([A-Z]+(?:\(\d+\))?(?: UNSIGNED)?)(.*)", line)
        if column:
            yield column[1], _kind(column[2], "NOT NULL" not in column[3])


def _indexes_of(lines: Sequence[str]) -> Iterator[tuple[str, tuple[str, ...]]]:
    for line in lines:
        index = re.match(r"(PRIMARY|(?:UNIQUE )?KEY)(?: KEY)? ?(\w*) ?\((.+)\)$", line)
        if index:
            yield index[2] or "PRIMARY", tuple(index[3].split(", "))


def _kind(column_type: str, is_nullable: bool) -> str:
    # Newer servers leave out the width with which older ones show whole numbers.
    kind = re.sub(r"(int)\(\d+\)", r"\1", column_type.lower())
    return f"{kind} or NULL" if is_nullable else kind


def _tables_of_database(store: Views, names: list[str]) -> dict[str, _Table]:
    tables: dict[str, _Table] = {}
    for name, engine, collation in store.look(TABLES, names):
        tables[name] = _Table({}, {}, engine or "a view", collation or "")
    for name, column, column_type, nullable in store.look(COLUMNS, names):
        tables[name].columns[column] = _kind(_text(column_type), nullable == "YES")
    for name, index, column in store.look(INDEXES, names):
        tables[name].indexes[index] = (*tables[name].indexes.get(index, ()), column)
    return tables


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value  # some versions give bytes
