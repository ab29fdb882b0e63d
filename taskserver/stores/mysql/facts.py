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
from ...messages.programs import CLIENT
from ...model.task import MODES
from ..database.database import Database
from ..database.dialect import claim_indexes
from ..database.facts import (
    ForgedIds,
    MySQLFacts,
    TableFault,
    TableShape,
    differences,
    forged_ids,
    kind_of_column,
    shapes_of_indexes,
)
from ..database.free_rows import FreeRows, Lock
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
FIRST_NEW = "SELECT id FROM {table} WHERE status = 0 ORDER BY priority, id LIMIT 100"
STILL_NEW = "SELECT id FROM {table} WHERE id IN ({ids}) AND status = 0"
LOOKS_AT_HELD = 3
SECONDS_BETWEEN_LOOKS = 0.5
ENGINES = """
    SELECT table_name, engine FROM information_schema.tables
    WHERE table_schema = DATABASE() AND table_name IN ({ids})
"""
MADE_BY = "SHOW CREATE TABLE {{{table}}}"
"""Tells the next id as it is; MySQL from 8.0 on keeps that of information_schema for a day."""
SET_BACK = "ALTER TABLE {table} AUTO_INCREMENT = 1"
"""InnoDB never sets the next id below one that is there."""
MAX_GIVEN_ID = 2**64 - 2
"""InnoDB gives no greater id."""
COLUMNS = "SHOW FULL COLUMNS FROM "
INDEXES = "SHOW INDEX FROM "
COMPARED_WITH = "`taskserver_doctor`"
"""A temporary table, which the server describes in the same words as ours."""
UNSEEN = (
    "it may make temporary tables, and MySQL shows their columns to those alone who may SELECT in the whole database"
)
DROP = f"DROP TEMPORARY TABLE {COMPARED_WITH}"


class _Right(NamedTuple):
    """A worker's right on one of the tables, and what takes it."""

    verb: str
    table: str
    """As statements name it: `done`, for one."""
    column: str = ""
    needless_in: tuple[str, ...] = ()
    """Modes whose workers do without the right."""
    what_for: str = ""
    """The use of the right in other modes, for a person."""

    def named(self, queue: str) -> str:
        """The right in words, as `DELETE on jobs_queue`."""
        return f"{self.verb} on {queue}{'' if self.table == 'table' else f'_{self.table}'}"


TRIED = {
    "SELECT": "SELECT {column} FROM {{{table}}} WHERE 1 = 0",
    "INSERT": "INSERT INTO {{{table}}} ({column}) SELECT NULL FROM DUAL WHERE 1 = 0",
    "UPDATE": "UPDATE {{{table}}} SET {column} = {column} WHERE 1 = 0",
    "DELETE": "DELETE FROM {{{table}}} WHERE 1 = 0",
}
"""Statements that need a right and change nothing."""
WORKER_RIGHTS = (
    _Right("SELECT", "table", "{columns}"),
    _Right("UPDATE", "table", "priority"),
    _Right("DELETE", "table", "", ("mark",), "the modes delete and move"),
    _Right("INSERT", "table", "task", MODES, "tasks that add tasks, and periodic ones"),
    _Right("INSERT", "done", "id", ("delete", "mark"), "the mode move"),
    _Right("SELECT", "done", "id", MODES, f"{CLIENT} show"),
    _Right("SELECT", "workers", "pid"),
    _Right("INSERT", "workers", "pid"),
    _Right("UPDATE", "workers", "pid"),
    *(
        _Right(verb, "processes", column, MODES, "what runs now, and quick returns of a killed worker's tasks")
        for verb, column in {"SELECT": "pid", "INSERT": "pid", "UPDATE": "taken", "DELETE": ""}.items()
    ),
    _Right("SELECT", "paused", "group_id, paused_at"),
    _Right("SELECT", "schedules", "name"),
    _Right("UPDATE", "schedules", "next_at"),
    _Right("SELECT", "dependencies", "child_id"),
    _Right("DELETE", "dependencies", "", MODES, "tasks that wait for others"),
    _Right("INSERT", "dependencies", "parent_id", MODES, "tasks that add some which wait for others"),
    _Right("SELECT", "stats", "task", MODES, "figures"),
    _Right("INSERT", "stats", "task", MODES, "figures"),
    _Right("UPDATE", "stats", "done", MODES, "figures"),
    *(
        _Right(verb, "notes", column, MODES, what_for)
        for verb, column, what_for in (
            ("SELECT", "name", "what doctor and check accept"),
            ("INSERT", "name", f"{CLIENT} check --mail and --accept"),
            ("UPDATE", "value", f"{CLIENT} check --mail and --accept"),
            ("DELETE", "", f"{CLIENT} check --mail and --withdraw"),
        )
    ),
    _Right("SELECT", "schema", "version"),
)


def read_facts(database: Database, mode: str) -> MySQLFacts:
    """All facts, each asked for by itself. Raises DatabaseError."""
    skips_locked = _skips_locked(database)
    version, user = database.fetch(IDENTITY)[0]
    denied, queue = list(_denied(database)), database.dialect.table
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
        denied=tuple(right.named(queue) for right in denied if mode not in right.needless_in),
        spared=tuple(f"{one.named(queue)} (for {one.what_for})" for one in denied if mode in one.needless_in),
        faults=_faults(database),
        claim_indexes=claim_indexes(database),
        oldest_transaction_seconds=_oldest_transaction(database),
        holds_new=_holds_new(database, bool(denied)),
        forged_ids=_forged_ids(database),
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


def _holds_new(database: Database, denied: bool) -> bool:
    """Whether others hold the same new rows, of the first ones, at each look: a claim holds them for an instant.

    `denied` says that the account lacks a right of a worker's.
    """
    held = [] if denied else [row[0] for row in database.fetch(FIRST_NEW)]
    for number in range(LOOKS_AT_HELD):
        if held:
            time.sleep(number and SECONDS_BETWEEN_LOOKS)
            free = FreeRows(database).work(held, len).ids
            held = [row[0] for row in database.fetch_ids(STILL_NEW, sorted(set(held).difference(free)))]
    return bool(held)


def _forged_ids(database: Database) -> tuple[ForgedIds, ...] | None:
    next_ids = {}
    for key, table in (("id", "table"), ("done_id", "done")):
        for _, made_by in _allowed(database, MADE_BY.format(table=table)):
            # Without the words the next id is 1.
            found = re.search(r"^\) .*?\bAUTO_INCREMENT=(\d+)", str(made_by), re.MULTILINE)
            next_ids[key] = int(found[1]) if found else 1
    if "id" not in next_ids:
        return None  # of the archive few accounts need to know
    return forged_ids(database, next_ids, MAX_GIVEN_ID, SET_BACK)


def _denied(database: Database) -> Iterator[_Right]:
    for right in WORKER_RIGHTS:
        try:
            database.fetch(TRIED[right.verb].format(table=right.table, column=right.column))
        except Unavailable:
            raise
        except DatabaseError as error:
            if number_of(error.__cause__) in RIGHTS_MISSING:  # other errors are told as the table's faults
                yield right


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
