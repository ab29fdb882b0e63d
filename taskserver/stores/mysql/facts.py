"""Facts about a MySQL or MariaDB database, for `client.py doctor`. Changes nothing.

Rights are found out by trying: statements like a worker's that match no row. The server's grants would be harder to
read, with their roles and patterns.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from ...errors import DatabaseError, Unavailable
from ...model.task import MODES
from ..database.dialect import claim_indexes
from ..database.facts import MySQLFacts, TableFault
from ..database.free_rows import Lock
from ..database.statements import with_ids
from ..database.tables import schema_statements
from .errors import RIGHTS_MISSING, number_of

if TYPE_CHECKING:
    from ..database.dialect import Connected

IDENTITY = "SELECT VERSION(), CURRENT_USER()"
SERVER_VARIABLES = "SHOW GLOBAL VARIABLES"
SESSION_VARIABLES = "SHOW SESSION VARIABLES"
CIPHER = "SHOW SESSION STATUS LIKE 'Ssl_cipher'"
CLOCK = "SELECT UNIX_TIMESTAMP(NOW(6))"
# MariaDB before 11.5 answers 0 or NULL. New MySQL servers know later instants, but their columns hold none.
REACHES_2106 = "SELECT UNIX_TIMESTAMP('2100-01-01 00:00:00')"
# InnoDB gives trx_started in the time zone of its host, whatever the session's.
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
    """A worker's right on one of the tables, and a statement that needs the right and changes nothing."""

    name: str
    statement: str
    needless_in: tuple[str, ...] = ()
    """Modes whose workers do without the right."""
    what_for: str = ""
    """The use of the right in other modes, for a person."""


WORKER_RIGHTS = (
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
    """A table as information_schema describes it, or as the schema file makes it."""

    columns: dict[str, str]
    """Each column's kind, as `int unsigned default 0`, in the words of `_kind`."""
    indexes: dict[str, str]
    """Each index's columns, as `unique (id)` or `(status, due_at)`."""
    engine: str = "InnoDB"


def read_facts(database: Connected, mode: str) -> MySQLFacts:
    """All facts, each asked for by itself. Raises DatabaseError."""
    skips_locked = _skips_locked(database)
    version, user = database.fetch(IDENTITY)[0]
    denied = list(_denied(database))
    variables = _by_name(_allowed(database, SERVER_VARIABLES))
    is_mariadb = "mariadb" in f"{version} {variables.get('version_comment', '')}".lower()
    return MySQLFacts(
        version=version,
        is_mariadb=is_mariadb,
        user=user,
        cipher=next((value for _, value in _allowed(database, CIPHER)), ""),
        variables=variables,
        session=_by_name(_allowed(database, SESSION_VARIABLES)),
        clock_ahead_seconds=_clock_ahead(database),
        last_instant="2106-02-07" if is_mariadb and any(map(any, _allowed(database, REACHES_2106))) else "2038-01-19",
        skips_locked=skips_locked,
        denied=tuple(right.name for right in denied if mode not in right.needless_in),
        spared=tuple(f"{right.name} (for {right.what_for})" for right in denied if mode in right.needless_in),
        faults=tuple(_faults(database)),
        claim_indexes=claim_indexes(database),
        oldest_transaction_seconds=_oldest_transaction(database),
    )


def _skips_locked(database: Connected) -> bool:
    """Whether the server can pass over rows that others hold: found out by trying it on no row."""
    if database.dialect.skips_locked:
        with suppress(DatabaseError):  # this account may lack the right
            database.skipping_locked(lambda end: database.fetch(f"{Lock().select}{end}".replace("{ids}", "0")))
    return database.dialect.skips_locked


def _allowed(database: Connected, sql: str) -> Sequence[Sequence[Any]]:
    """The rows of a SELECT; none where the server refuses it. Raises Unavailable."""
    try:
        return database.fetch(sql)
    except Unavailable:
        raise
    except DatabaseError:
        return ()


def _by_name(rows: Sequence[Sequence[Any]]) -> dict[str, str]:
    return {name.lower(): str(value) for name, value in rows}


def _clock_ahead(database: Connected) -> float:
    before = time.time()
    there = float(database.fetch(CLOCK)[0][0])
    return there - (before + time.time()) / 2


def _oldest_transaction(database: Connected) -> float | None:
    try:
        database.fetch(IN_ITS_OWN_ZONE)
        seconds = database.fetch(OLDEST_TRANSACTION)[0][0]
    except DatabaseError:
        return None  # the account lacks the right PROCESS
    finally:
        database.fetch(IN_OURS)
    return float(seconds or 0)


def _denied(database: Connected) -> Iterator[_Right]:
    for right in WORKER_RIGHTS:
        try:
            database.fetch(right.statement)
        except Unavailable:
            raise
        except DatabaseError as error:
            if number_of(error.__cause__) in RIGHTS_MISSING:  # other errors are told as the table's faults
                yield right._replace(name=right.name.format(queue=database.dialect.table))


# ---- the tables beside the schema file


def _faults(database: Connected) -> Iterator[TableFault]:
    wanted = dict(_tables_of_schema(schema_statements(database.dialect)))
    found = _tables_of_database(database, list(wanted))
    for name, table in wanted.items():
        # Some servers keep the names of tables in small letters.
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
    # MariaDB's information_schema writes empty brackets behind an instant without a fraction. A text is in quotes
    # there, as in the file; in MySQL's it is not.
    return kind if default is None else f"{kind} default {default.lower().removesuffix('()').strip(chr(39))}"


# The lines of the schema file: `  name  TYPE UNSIGNED [CHARACTER SET x COLLATE y] [NOT] NULL [DEFAULT x] …`
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


def _tables_of_database(database: Connected, names: list[str]) -> dict[str, _Table]:
    """The tables by name, as the server writes it."""
    tables: dict[str, _Table] = {}
    for name, engine in database.fetch(with_ids(TABLES, names), names):
        tables[name] = _Table({}, {}, engine or "a view")
    for name, column, column_type, collation, nullable, default, more in database.fetch(
        with_ids(COLUMNS, names), names
    ):
        extra = more.lower()
        needs_no_value = nullable == "YES" or " generated" in extra
        kind = _kind(_text(column_type), collation, needs_no_value, _text(default), "auto_increment" in extra)
        tables[name].columns[column] = kind
    for (name, index), columns in _index_columns(database, names).items():
        tables[name].indexes[index] = columns
    return tables


def _index_columns(database: Connected, names: list[str]) -> dict[tuple[str, str], str]:
    columns: dict[tuple[str, str], list[str]] = {}
    unique: dict[tuple[str, str], str] = {}
    for name, index, column, part, non_unique in database.fetch(with_ids(INDEXES, names), names):
        key = (name, index)
        columns.setdefault(key, []).append(f"{column}({part})" if part else str(column))
        unique[key] = "" if non_unique else "unique "
    return {key: f"{unique[key]}({', '.join(parts)})" for key, parts in columns.items()}


def _text(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value  # some servers return bytes
