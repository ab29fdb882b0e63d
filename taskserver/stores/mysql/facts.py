"""Facts about a MySQL or MariaDB database, for `client.py doctor`. Changes nothing.

The tables are compared with temporary ones, which the schema file's statements make.

Rights are found out by trying: statements like a worker's that match no row. The server's grants would be harder to
read, with their roles and patterns.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from ...errors import DatabaseError, Unavailable
from ...model.task import MODES
from ..database.database import Database
from ..database.dialect import claim_indexes
from ..database.facts import MySQLFacts, TableFault, TableShape, differences, kind_of_column, shapes_of_indexes
from ..database.free_rows import Lock
from ..database.tables import schema_statements
from .errors import RIGHTS_MISSING, number_of

IDENTITY = "SELECT VERSION(), CURRENT_USER()"
SERVER_VARIABLES = "SHOW GLOBAL VARIABLES"
SESSION_VARIABLES = "SHOW SESSION VARIABLES"
CIPHER = "SHOW SESSION STATUS LIKE 'Ssl_cipher'"
CLOCK = "SELECT UNIX_TIMESTAMP(NOW(6))"
# InnoDB gives trx_started in the time zone of its host, whatever the session's.
IN_ITS_OWN_ZONE = "SET time_zone = 'SYSTEM'"
IN_OURS = "SET time_zone = '+00:00'"
OLDEST_TRANSACTION = "SELECT MAX(TIMESTAMPDIFF(SECOND, trx_started, NOW())) FROM information_schema.innodb_trx"
ENGINES = """
    SELECT table_name, engine FROM information_schema.tables
    WHERE table_schema = DATABASE() AND table_name IN ({ids})
"""
COLUMNS = "SHOW FULL COLUMNS FROM "
INDEXES = "SHOW INDEX FROM "
COMPARED_WITH = "`taskserver_doctor`"
"""A temporary table, which the server describes in the same words as ours."""
UNSEEN = (
    "it may make temporary tables, and MySQL shows their columns to those alone who may SELECT in the whole database"
)
DROP = f"DROP TEMPORARY TABLE {COMPARED_WITH}"


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


def read_facts(database: Database, mode: str) -> MySQLFacts:
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
        skips_locked=skips_locked,
        denied=tuple(right.name for right in denied if mode not in right.needless_in),
        spared=tuple(f"{right.name} (for {right.what_for})" for right in denied if mode in right.needless_in),
        faults=_faults(database),
        claim_indexes=claim_indexes(database),
        oldest_transaction_seconds=_oldest_transaction(database),
    )


def _skips_locked(database: Database) -> bool:
    """Whether the server can pass over rows that others hold: found out by trying it on no row."""
    if database.dialect.skips_locked:
        with suppress(DatabaseError):  # this account may lack the right
            database.skipping_locked(lambda end: database.fetch(f"{Lock().select}{end}".replace("{ids}", "0")))
    return database.dialect.skips_locked


def _allowed(database: Database, sql: str) -> Sequence[Sequence[Any]]:
    """The rows of a SELECT; none where the server refuses it. Raises Unavailable."""
    try:
        return database.fetch(sql)
    except Unavailable:
        raise
    except DatabaseError:
        return ()


def _by_name(rows: Sequence[Sequence[Any]]) -> dict[str, str]:
    return {name.lower(): str(value) for name, value in rows}


def _clock_ahead(database: Database) -> float:
    before = time.time()
    there = float(database.fetch(CLOCK)[0][0])
    return there - (before + time.time()) / 2


def _oldest_transaction(database: Database) -> float | None:
    try:
        database.fetch(IN_ITS_OWN_ZONE)
        seconds = database.fetch(OLDEST_TRANSACTION)[0][0]
    except DatabaseError:
        return None  # the account lacks the right PROCESS
    finally:
        database.fetch(IN_OURS)
    return float(seconds or 0)


def _denied(database: Database) -> Iterator[_Right]:
    for right in WORKER_RIGHTS:
        try:
            database.fetch(right.statement)
        except Unavailable:
            raise
        except DatabaseError as error:
            if number_of(error.__cause__) in RIGHTS_MISSING:  # other errors are told as the table's faults
                yield right._replace(name=right.name.format(queue=database.dialect.table))


# ---- the tables beside the schema file


def _faults(database: Database) -> tuple[TableFault, ...] | str:
    """The tables' faults, or the reason why they cannot be compared."""
    wanted = {}
    for statement in schema_statements(database.dialect):
        if statement.startswith("CREATE TABLE"):
            name = statement.split("`")[1]
            as_temporary = statement.replace(f"TABLE IF NOT EXISTS `{name}`", f"TEMPORARY TABLE {COMPARED_WITH}", 1)
            try:
                database.fetch(as_temporary)
            except Unavailable:
                raise
            except DatabaseError as error:
                return str(error)
            wanted[name] = _shape(database, COMPARED_WITH, "InnoDB")
            database.fetch(DROP)
            if not wanted[name].columns:
                return UNSEEN
    engines: dict[str, str] = dict(database.fetch_ids(ENGINES, list(wanted)))
    faults: list[TableFault] = []
    for name, shape in wanted.items():
        # Some servers keep the names of tables in small letters.
        found = _shape(database, f"`{name}`", engines.get(name) or engines.get(name.lower()) or "none")
        faults += differences(name, shape, found)
    return tuple(faults)


def _shape(database: Database, table: str, engine: str) -> TableShape:
    """A table as SHOW tells of it; without columns where the account sees none."""
    columns = {}
    for row in _allowed(database, COLUMNS + table):
        # Some servers return bytes.
        texts = (value.decode() if isinstance(value, bytes) else value for value in row)
        name, kind, collation, null, _, default, extra, *_ = texts
        # Newer servers leave out the width with which a table of an older one may have been made.
        words = [re.sub(r"int\(\d+\)", "int", kind), collation, "auto_increment" if "auto_increment" in extra else ""]
        needs_no_value = null == "YES" or " generated" in extra.lower()
        columns[name] = kind_of_column(" ".join(filter(None, words)), needs_no_value, default)
    rows = _allowed(database, INDEXES + table)
    parts = ((row[2], not row[1], f"{row[4]}({row[7]})" if row[7] else row[4]) for row in rows)
    return TableShape(columns, shapes_of_indexes(parts), engine)
