"""Creates and upgrades a queue's tables: only from `client.py init`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress

from ..errors import AlreadyThere, DatabaseError, TablesMissing, TablesOutdated, Unavailable
from ..messages.programs import CLIENT
from .database import Database
from .dialect import Dialect
from .retrying import RetryPolicy, Scope
from .schema import POSTGRESQL, SQLITE, script
from .table_faults import Fault, table_faults
from .words import SCHEMA_VERSION

FIRST_RELEASED = 7
"""The tables of taskserver 0.1.0."""
UPGRADE_SECONDS = 60.0
"""How long an upgrade is retried while others hold its rows."""


def create(database: Database, version: Callable[[], int | None]) -> None:
    """Create the tables, or upgrade older ones in one transaction; safe to repeat. Raises DatabaseError."""
    database.dialect.make_place(database)
    with database.without_timeout():
        found = _version_found(database, version)
        for statement in schema_statements(database.dialect):
            with suppress(AlreadyThere):  # another connection made it meanwhile
                database.change(statement)
        if found < SCHEMA_VERSION:
            database.run(RetryPolicy(Scope.TRANSACTION, UPGRADE_SECONDS), _upgrade, database, found)
        database.fetch(TABLES_ARE_OURS)


def repair(database: Database, create_tables: Callable[[], None]) -> list[Fault]:
    """Create or upgrade the tables and add missing indexes; the remaining faults. Raises DatabaseError."""
    try:
        create_tables()
    except (Unavailable, TablesOutdated):
        raise
    except DatabaseError:  # such as a lost column, or a table of another program
        with suppress(DatabaseError):
            faults = table_faults(database)
            if any(fault.fix or fault.is_of_other_program for fault in faults):
                return faults
        raise
    faults = table_faults(database)
    if any(fault.is_of_other_program for fault in faults):
        return faults
    if any(not fault.fix for fault in faults):
        dialect = database.dialect
        policy = RetryPolicy(Scope.TRANSACTION, UPGRADE_SECONDS)
        database.run(policy, dialect.rebuild_tables, database, list(schema_statements(dialect)))
        faults = table_faults(database)
    return [left for fault in faults if (left := _remaining(database, fault))]


def _remaining(database: Database, fault: Fault) -> Fault | None:
    """Add the index if it is missing; the fault if it remains."""
    if not fault.is_missing_index or not fault.fix:
        return fault
    try:
        with database.without_timeout():
            database.change(fault.fix)
    except DatabaseError as error:  # such as a duplicate key
        return fault._replace(what=f"{fault.what}, and it cannot be made: {error}")
    return None


TABLES_ARE_OURS = "SELECT {columns} FROM {table} WHERE id = 0"


def _version_found(database: Database, version: Callable[[], int | None]) -> int:
    """The version from which to upgrade: the newest if there are no tables yet.

    The first one if the version was lost, as after a partial restore.
    """
    try:
        found = version() or FIRST_RELEASED
    except TablesMissing:
        try:
            database.fetch(TABLES_ARE_OURS)
        except TablesMissing:
            return SCHEMA_VERSION
        return FIRST_RELEASED
    if found < FIRST_RELEASED:
        raise TablesOutdated(
            f"the tables of {database.dialect.table} have version {found}, of a taskserver before 0.1.0: run {CLIENT} "
            "init of version 0.1.0 first"
        )
    return found


SET_VERSION = "{insert_or_ignore} INTO {schema} (version) VALUES (?) {or_ignore}"


def _upgrade(database: Database, version: int) -> None:
    dialect = database.dialect
    for step in range(version, SCHEMA_VERSION):
        for statement in UPGRADES[step][dialect.kind]:
            database.execute(named(statement, dialect))
        dialect.rebuild_tables(database, schema_statements(dialect))
        database.execute(SET_VERSION, (step + 1,))


# Cancelled tasks were fatal ones with a text. The last group's number means all groups now.
CANCELLED_AND_LAST_GROUP = (
    """
    UPDATE jobs_queue
    SET status = CASE WHEN status = 4 AND error_text = 'cancelled' THEN 7 ELSE status END,
        group_id = CASE WHEN group_id > 4294967294 THEN 4294967294 ELSE group_id END, updated_at = updated_at
    WHERE status = 4 AND error_text = 'cancelled' OR group_id > 4294967294
    """,
    "UPDATE jobs_queue_schedules SET group_id = 4294967294 WHERE group_id > 4294967294",
    # A pause of all groups had an impossible instant; otherwise only the last group was paused.
    """
    {insert_or_ignore} INTO jobs_queue_paused (group_id, paused_at)
    SELECT 4294967294, paused_at FROM jobs_queue_paused
    WHERE group_id = 4294967295 AND paused_at >= '1980-01-01 00:00:00' {or_ignore}
    """,
    "DELETE FROM jobs_queue_paused WHERE group_id = 4294967295 AND paused_at >= '1980-01-01 00:00:00'",
    "UPDATE jobs_queue_paused SET paused_at = {now} WHERE group_id = 4294967295",
)
# Version 7 marked in due_at parents that had ended before their children were updated: check these children again.
PENDING_CHILDREN = (
    """
    UPDATE jobs_queue SET due_at = {now}, updated_at = updated_at
    WHERE status = 5 AND due_at IS NULL AND EXISTS (SELECT 1 FROM jobs_queue_dependencies WHERE child_id = id)
    """,
    "UPDATE jobs_queue SET due_at = NULL, updated_at = updated_at WHERE status IN (2, 4, 7) AND due_at IS NOT NULL",
)
# Invalid instants in SQLite: one with a time zone is converted; any other makes the task fatal rather than run at once.
IS_NO_INSTANT = "{c} IS NOT NULL AND (" + SQLITE.checks["time"] + ") IS NOT TRUE"
IN_UTC = "strftime('%Y-%m-%d %H:%M:%f', {c}, '0 days') || '000'"
INSTANTS_OF_SQLITE = tuple(
    sql.replace("NO_INSTANT", IS_NO_INSTANT).replace("IN_UTC", IN_UTC).replace("{c}", column)
    for column, sql in (
        (
            "due_at",
            """
            UPDATE jobs_queue
            SET status = 4, finished_at = {now}, updated_at = {now},
                error_text = 'due_at is no valid time (' || substr(due_at, 1, 100) || ')'
            WHERE NO_INSTANT AND IN_UTC IS NULL AND status IN (0, 3, 5)
            """,
        ),
        ("due_at", "UPDATE jobs_queue SET due_at = IN_UTC WHERE NO_INSTANT"),
        ("next_at", "UPDATE jobs_queue_schedules SET next_at = COALESCE(IN_UTC, {now}) WHERE NO_INSTANT"),
    )
)


def _checked_again(table: str, column: str, word: str) -> tuple[str, str]:
    name = f"{table}_{column}_check"
    check = POSTGRESQL.checks[word].format(c=column)
    return (
        f"ALTER TABLE {table} DROP CONSTRAINT IF EXISTS {name}",
        f"ALTER TABLE {table} ADD CONSTRAINT {name} CHECK ({check})",
    )


UPGRADES: dict[int, Mapping[str, tuple[str, ...]]] = {
    7: {
        "mysql": (*CANCELLED_AND_LAST_GROUP, *PENDING_CHILDREN),
        "postgresql": (
            *CANCELLED_AND_LAST_GROUP,
            *PENDING_CHILDREN,
            "DROP FUNCTION IF EXISTS jobs_queue_tell() CASCADE",
            "DROP TABLE IF EXISTS jobs_queue_waiting",
            *_checked_again("jobs_queue", "group_id", "group"),
            *_checked_again("jobs_queue_schedules", "group_id", "group"),
            *_checked_again("jobs_queue_schedules", "created_at", "instant"),
            *_checked_again("jobs_queue_paused", "paused_at", "instant"),
        ),
        "sqlite": (
            *CANCELLED_AND_LAST_GROUP,
            *PENDING_CHILDREN,
            *INSTANTS_OF_SQLITE,
            "DROP INDEX jobs_queue_claim_any_group",
            "CREATE INDEX jobs_queue_claim_any_group ON jobs_queue (priority, id) WHERE status = 0",
        ),
    }
}
"""From version n to n + 1, by kind of database: changes to existing tables. New tables are created before."""


# ---- SQL under the queue's name


def schema_statements(dialect: Dialect) -> Iterator[str]:
    """The statements that create the newest tables under the queue's name."""
    lines = (line.partition("-- ")[0].rstrip() for line in script(dialect.kind).splitlines() if line[:2] != "--")
    # All lines of a statement but its first are indented, also those of a function, which have semicolons too.
    for statement in re.split(r";\n+(?=\S)", named("\n".join(lines).strip(), dialect)):
        yield statement.removesuffix(";")


def named(text: str, dialect: Dialect) -> str:
    """SQL about jobs_queue, with the queue's name instead."""
    # In quotes: `order` is an allowed name.
    return re.sub(r"jobs_queue(\w*)", lambda found: dialect.own_words["quoted"].format(dialect.table + found[1]), text)
