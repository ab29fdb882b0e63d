"""Facts about a MySQL or MariaDB database, for `client.py doctor`. Changes nothing.

Rights are found out by doing: statements as a worker's that match no row. What GRANT says would have to be
understood, with its roles and patterns.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from ..errors import DatabaseError, Unavailable
from ..settings import MODES
from .facts import MySQLFacts, TableFault
from .views import Views, claim_indexes

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
    SELECT table_name, column_name, column_type, collation_name, is_nullable, column_default, extra
    FROM information_schema.columns
    WHERE table_schema = DATABASE() AND table_name IN ({ids})
"""
INDEXES = """
    SELECT table_name, index_name, column_name, sub_part, non_unique FROM information_schema.statistics
    WHERE table_schema = DATABASE() AND table_name IN ({ids}) ORDER BY table_name, index_name, seq_in_index
"""
TABLES = """
    SELECT table_name, engine FROM information_schema.tables
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
        "tasks that add tasks, and periodic ones",
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
    _Right("SELECT on {queue}_paused", "SELECT group_id FROM {paused} WHERE group_id = 0"),
    _Right("SELECT on {queue}_schedules", "SELECT name FROM {schedules} WHERE name = ''"),
    _Right("UPDATE on {queue}_schedules", "UPDATE {schedules} SET next_at = next_at WHERE name = ''"),
    _Right("SELECT on {queue}_dependencies", "SELECT child_id FROM {dependencies} WHERE parent_id = 0"),
    _Right(
        "DELETE on {queue}_dependencies",
        "DELETE FROM {dependencies} WHERE parent_id = 0",
        MODES,
        "tasks that wait for others",
    ),
    _Right(
        "INSERT on {queue}_dependencies",
        "INSERT INTO {dependencies} (parent_id, child_id) SELECT 0, 0 FROM DUAL WHERE 1 = 0",
        MODES,
        "tasks that add some which wait for others",
    ),
    _Right("SELECT on {queue}_stats", "SELECT task FROM {stats} WHERE hour = NOW()", MODES, "figures"),
    _Right(
        "INSERT on {queue}_stats",
        "INSERT INTO {stats} (group_id, task) SELECT 0, '' FROM DUAL WHERE 1 = 0",
        MODES,
        "figures",
    ),
    _Right("UPDATE on {queue}_stats", "UPDATE {stats} SET done = done WHERE hour = NOW()", MODES, "figures"),
    _Right("SELECT on {queue}_schema", "SELECT version FROM {schema} WHERE version = 0"),
)


class _Table(NamedTuple):
    """A table as information_schema tells it, or as the schema file would make it."""

    columns: dict[str, str]
    """As `int unsigned default 0`, in the words of `_kind`."""
    indexes: dict[str, str]
    """As `unique (id)`, or `(status, due_at)`."""
    engine: str = "InnoDB"


def read_facts(store: Views, skips_locked: bool, is_denied: Callable[[DatabaseError], bool]) -> MySQLFacts:
    """Ask for all of them; `is_denied` tells the error of a right that is missing. Raises DatabaseError."""
    version, user = store.look(IDENTITY)[0]
    denied = list(_denied(store, is_denied))
    variables = _by_name(_told(store, SERVER_VARIABLES))
    is_mariadb = "mariadb" in f"{version} {variables.get('version_comment', '')}".lower()
    return MySQLFacts(
        version=version,
        is_mariadb=is_mariadb,
        user=user,
        cipher=next((value for _, value in _told(store, CIPHER)), ""),
        variables=variables,
        session=_by_name(_told(store, SESSION_VARIABLES)),
        clock_ahead_seconds=_clock_ahead(store),
        last_instant="2106-02-07" if is_mariadb and any(map(any, _told(store, REACHES_2106))) else "2038-01-19",
        skips_locked=skips_locked,
        denied=tuple(right.name for right in denied if store.mode not in right.needless_in),
        spared=tuple(f"{right.name} (for {right.what_for})" for right in denied if store.mode in right.needless_in),
        faults=tuple(_faults(store)),
        claim_indexes=claim_indexes(store),
        oldest_transaction_seconds=_oldest_transaction(store),
    )


def _told(store: Views, sql: str) -> Sequence[Sequence[Any]]:
    """What a server tells of itself; nothing where it refuses that."""
    try:
        return store.look(sql)
    except Unavailable:
        raise
    except DatabaseError:
        return ()


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


# ---- the tables beside the schema file


def _faults(store: Views) -> Iterator[TableFault]:
    wanted = dict(_tables_of_schema(store.schema_statements()))
    found = _tables_of_database(store, list(wanted))
    for name, table in wanted.items():
        # Some servers keep names in small letters, whatever they were given.
        stands = found.get(name) or found.get(name.lower())
        if stands is None:
            yield TableFault(name, "is missing, or hidden from this account")
        else:
            yield from (TableFault(name, what) for what in _differences(table, stands))


def _differences(wanted: _Table, found: _Table) -> Iterator[str]:
    for name, kind in wanted.columns.items():
        if found.columns.get(name) != kind:
            yield f"column {name} is {found.columns.get(name, 'missing')}, not {kind}"
    for name, kind in found.columns.items():
        if name not in wanted.columns and not kind.endswith(" or NULL") and " default " not in kind:
            yield f"column {name}, which is not ours, has no default: rows that leave it out are refused"
    for name, index in wanted.indexes.items():
        if found.indexes.get(name) != index:
            yield f"index {name} is {found.indexes.get(name, 'missing')}, not {index}"
    if found.engine.lower() != wanted.engine.lower():
        yield f"its engine is {found.engine}, not {wanted.engine}"


def _kind(column_type: str, collation: str | None, is_nullable: bool, default: str | None, counts_up: bool) -> str:
    # Newer servers leave out the width with which older ones show whole numbers.
    kind = re.sub(r"(int)\(\d+\)", r"\1", column_type.lower())
    kind += f" {collation}" if collation else ""
    if is_nullable:
        return f"{kind} or NULL"
    if counts_up:
        return f"{kind} auto_increment"
    # MariaDB writes the instant without a fraction with empty brackets, when it tells of it.
    # A text is in quotes in the file and where MariaDB tells it, not where MySQL does.
    return kind if default is None else f"{kind} default {default.lower().removesuffix('()').strip(chr(39))}"


# As the file has them: `  name  TYPE UNSIGNED [CHARACTER SET x COLLATE y] [NOT] NULL [DEFAULT x] …`
_COLUMN = re.compile(
    r"([a-z_]+) +([A-Z]+(?:\(\d+\))?(?: UNSIGNED)?)(?: +CHARACTER SET \w+ COLLATE (\w+))? +(NOT NULL|NULL)"
    r"(?: DEFAULT (\S+))?(?:.* (AUTO_INCREMENT))?"
)
_INDEX = re.compile(r"(PRIMARY|UNIQUE|) ?KEY ?(\w*) ?\((.+)\)$")
_TEXTS = ("VARCHAR", "TEXT", "MEDIUMTEXT")
_COLLATION = "utf8mb4_bin"


def _tables_of_schema(statements: Iterator[str]) -> Iterator[tuple[str, _Table]]:
    for statement in statements:
        name = re.match(r"CREATE TABLE IF NOT EXISTS `(\w+)`", statement)
        if name:
            lines = [line.strip().rstrip(",") for line in statement.splitlines()[1:]]
            yield name[1], _Table(dict(_columns_of(lines)), dict(_indexes_of(lines)))


def _columns_of(lines: Sequence[str]) -> Iterator[tuple[str, str]]:
    for column in filter(None, map(_COLUMN.match, lines)):
        name, column_type, collation, null, default, counts_up = column.groups()
        collation = collation or (_COLLATION if column_type.startswith(_TEXTS) else None)
        yield name, _kind(column_type, collation, null == "NULL", default, bool(counts_up))


def _indexes_of(lines: Sequence[str]) -> Iterator[tuple[str, str]]:
    for index in filter(None, map(_INDEX.match, lines)):
        unique = "unique " if index[1] else ""
        yield index[2] or "PRIMARY", f"{unique}({index[3]})"


def _tables_of_database(store: Views, names: list[str]) -> dict[str, _Table]:
    """By names as the server gives them."""
    tables: dict[str, _Table] = {}
    for name, engine in store.look(TABLES, names):
        tables[name] = _Table({}, {}, engine or "a view")
    for name, column, column_type, collation, nullable, default, more in store.look(COLUMNS, names):
        extra = more.lower()
        needs_no_value = nullable == "YES" or " generated" in extra
        kind = _kind(_text(column_type), collation, needs_no_value, _text(default), "auto_increment" in extra)
        tables[name].columns[column] = kind
    for (name, index), columns in _index_columns(store, names).items():
        tables[name].indexes[index] = columns
    return tables


def _index_columns(store: Views, names: list[str]) -> dict[tuple[str, str], str]:
    columns: dict[tuple[str, str], list[str]] = {}
    unique: dict[tuple[str, str], str] = {}
    for name, index, column, part, non_unique in store.look(INDEXES, names):
        key = (name, index)
        columns.setdefault(key, []).append(f"{column}({part})" if part else str(column))
        unique[key] = "" if non_unique else "unique "
    return {key: f"{unique[key]}({', '.join(parts)})" for key, parts in columns.items()}


def _text(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value  # some versions give bytes
