"""Facts about a MySQL or MariaDB database, for `client.py doctor`. Changes nothing.

The tables are compared with temporary ones, which the schema file's statements make.

Rights are found out by trying: statements like a worker's that match no row. The server's grants would be harder to
read, with their roles and patterns.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from ...errors import DatabaseError, Unavailable
from ..database import Database
from ..dialect import claim_indexes
from ..facts import (
    ForgedIds,
    MySQLFacts,
    TableFault,
    TableShape,
    differences,
    forged_ids,
    kind_of_column,
    shapes_of_indexes,
)
from ..free_rows import Lock
from ..schema import schema_statements
from ..server_facts import WORKER_RIGHTS, Right, allowed, clock_ahead, held_rows, lacking
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
TRIED = {
    "SELECT": "SELECT {column} FROM {{{table}}} WHERE 1 = 0",
    "INSERT": "INSERT INTO {{{table}}} ({column}) SELECT NULL FROM DUAL WHERE 1 = 0",
    "UPDATE": "UPDATE {{{table}}} SET {column} = {column} WHERE 1 = 0",
    "DELETE": "DELETE FROM {{{table}}} WHERE 1 = 0",
}
"""Statements that need a right and change nothing."""


def read_facts(database: Database, mode: str) -> MySQLFacts:
    """All facts, each asked for by itself. Raises DatabaseError."""
    skips_locked = _skips_locked(database)
    version, user = database.fetch(IDENTITY)[0]
    denied, spared = lacking(list(_denied(database)), database.dialect.table, mode)
    variables = _by_name(allowed(database, SERVER_VARIABLES))
    is_mariadb = "mariadb" in f"{version} {variables.get('version_comment', '')}".lower()
    return MySQLFacts(
        version=version,
        is_mariadb=is_mariadb,
        user=user,
        cipher=next((value for _, value in allowed(database, CIPHER)), ""),
        variables=variables,
        session=_by_name(allowed(database, SESSION_VARIABLES)),
        clock_ahead_seconds=clock_ahead(database, CLOCK),
        skips_locked=skips_locked,
        denied=denied,
        spared=spared,
        faults=_faults(database),
        claim_indexes=claim_indexes(database),
        oldest_transaction_seconds=_oldest_transaction(database),
        holds_new=not (denied or spared) and bool(held_rows(database)),
        forged_ids=_forged_ids(database),
    )


def _skips_locked(database: Database) -> bool:
    """Whether the server can pass over rows that others hold: found out by trying it on no row."""
    if database.dialect.skips_locked:
        with suppress(DatabaseError):  # this account may lack the right
            database.skipping_locked(lambda end: database.fetch(f"{Lock().select}{end}".replace("{ids}", "0")))
    return database.dialect.skips_locked


def _by_name(rows: Sequence[Sequence[Any]]) -> dict[str, str]:
    return {name.lower(): str(value) for name, value in rows}


def _oldest_transaction(database: Database) -> float | None:
    try:
        database.fetch(IN_ITS_OWN_ZONE)
        seconds = database.fetch(OLDEST_TRANSACTION)[0][0]
    except DatabaseError:
        return None  # the account lacks the right PROCESS
    finally:
        database.fetch(IN_OURS)
    return float(seconds or 0)


def _forged_ids(database: Database) -> tuple[ForgedIds, ...] | None:
    next_ids = {}
    for key, table in (("id", "table"), ("done_id", "done")):
        for _, made_by in allowed(database, MADE_BY.format(table=table)):
            # Without the words the next id is 1.
            found = re.search(r"^\) .*?\bAUTO_INCREMENT=(\d+)", str(made_by), re.MULTILINE)
            next_ids[key] = int(found[1]) if found else 1
    if "id" not in next_ids:
        return None  # of the archive few accounts need to know
    return forged_ids(database, next_ids, MAX_GIVEN_ID, SET_BACK)


def _denied(database: Database) -> Iterator[Right]:
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
    for row in allowed(database, COLUMNS + table):
        # Some servers return bytes.
        texts = (value.decode() if isinstance(value, bytes) else value for value in row)
        name, kind, collation, null, _, default, extra, *_ = texts
        # Newer servers leave out the width with which a table of an older one may have been made.
        words = [re.sub(r"int\(\d+\)", "int", kind), collation, "auto_increment" if "auto_increment" in extra else ""]
        needs_no_value = null == "YES" or " generated" in extra.lower()
        columns[name] = kind_of_column(" ".join(filter(None, words)), needs_no_value, default)
    rows = allowed(database, INDEXES + table)
    parts = ((row[2], not row[1], f"{row[4]}({row[7]})" if row[7] else row[4]) for row in rows)
    return TableShape(columns, shapes_of_indexes(parts), engine)
