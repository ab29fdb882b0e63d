"""The doctor's checks of an SQLite file, and its rebuild."""

from __future__ import annotations

import os
import sqlite3
from shutil import disk_usage

from ...errors import Conflict, DatabaseError, Unavailable
from ...messages.finding import Finding, Level, ok, unknown
from ...messages.programs import CLIENT
from ...messages.text import megabytes
from ..database import Database
from ..facts import OF_TABLES, Asked, Check, Facts, Rebuild, TableSize, ok_if
from ..retrying import RetryPolicy, Scope
from ..table_faults import TableLooks

PATH = "SELECT file FROM pragma_database_list WHERE name = 'main'"
MAX_CHECKED_BYTES = 200_000_000
"""SQLite's own check reads the whole file."""


def _damage(asked: Asked) -> str | None:
    path = asked.database.fetch_value(PATH)
    if os.path.getsize(path) > MAX_CHECKED_BYTES:
        return None
    return str(asked.database.fetch_value("PRAGMA quick_check(1)"))


def _judge_damage(found: str | None) -> Finding:
    if found is None:
        return unknown("the file is too large to be read through here", fix="run sqlite3 FILE 'PRAGMA quick_check'")
    return ok_if(found == "ok", f"SQLite's check of its file: {found[:200]}", Level.CRITICAL)


LOOKS = TableLooks(
    """
    SELECT name, '', 1, (SELECT group_concat(name, ', ') FROM (
        SELECT name FROM pragma_table_info(tables.name) WHERE pk > 0 ORDER BY pk))
    FROM sqlite_master AS tables WHERE type = 'table'
    UNION ALL
    SELECT tables.name, list.name, list."unique", (SELECT group_concat(name, ', ') FROM (
        SELECT name FROM pragma_index_info(list.name) ORDER BY seqno))
    FROM sqlite_master AS tables, pragma_index_list(tables.name) AS list WHERE tables.type = 'table'
    """,
    "SELECT 'the trigger ' || name FROM sqlite_master WHERE type = 'trigger' AND tbl_name = ?"
    " AND sql LIKE '% DELETE %'",
    primary="",
)
CHECKS = (
    Check("connection", lambda asked: asked.dsn.place, ok),
    Check("version", lambda asked: sqlite3.sqlite_version, lambda version: ok(f"SQLite {version}")),
    Check(
        "journal",
        "PRAGMA journal_mode",
        lambda rows: ok_if(rows[0][0] == "wal", f"the journal is {rows[0][0]}", Level.CRITICAL),
        "workers and producers would keep one another waiting",
        f"{CLIENT} init, with the file on a disk of this host",
    ),
    Check(
        "file",
        _damage,
        _judge_damage,
        "tasks may be lost already",
        "stop cron, keep a copy, and save what can be read: sqlite3 FILE .recover",
    ),
    *OF_TABLES,
)


# ---- the rebuild of the file

USED = (
    "SELECT (page_count - freelist_count) * page_size FROM pragma_page_count, pragma_freelist_count, pragma_page_size"
)


def _sizes(database: Database) -> list[TableSize]:
    path = str(database.fetch_value(PATH))
    size = sum(os.path.getsize(file) for file in (path, f"{path}-wal") if os.path.exists(file))
    return [TableSize(os.path.basename(path), size, database.fetch_value(USED))]


def _rebuild(database: Database, name: str) -> None:
    path = str(database.fetch_value(PATH))
    used, policy = database.fetch_value(USED), RetryPolicy(Scope.BARE, database.conflict_seconds)
    try:
        if disk_usage(os.path.dirname(path)).free < used:
            raise Unavailable("its disk is too full")
        database.run(policy, database.execute, "VACUUM")
    except Unavailable as error:
        space = f"{megabytes(used)} must be free on its disk, and as much for temporary files (SQLITE_TMPDIR)"
        raise DatabaseError(f"{path}: no space for the copy: {space}") from error
    is_busy, *_ = database.run(policy, database.rows, "PRAGMA wal_checkpoint(TRUNCATE)")[0]
    if is_busy:
        raise Conflict(f"{path}: the rows are copied, but another process reads the old ones: run compact again")


WORDS = "VACUUM copies the rows of the file, which needs free disk space"
REBUILD = Rebuild(
    _sizes, _rebuild, f"{WORDS}; nobody can add, claim or finish a task meanwhile", 50_000_000, locks_writers=True
)
FACTS = Facts(CHECKS, LOOKS, lambda database: [REBUILD])
