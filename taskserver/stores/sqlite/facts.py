"""The doctor's checks of an SQLite file."""

from __future__ import annotations

import os
import sqlite3

from ...messages.finding import Finding, Level, ok, unknown
from ...messages.programs import CLIENT
from ..facts import OF_TABLES, Asked, Check, Facts, ok_if
from ..table_faults import TableLooks

MAX_CHECKED_BYTES = 200_000_000
"""SQLite's own check reads the whole file."""


def _damage(asked: Asked) -> str | None:
    path = asked.database.fetch_value("SELECT file FROM pragma_database_list WHERE name = 'main'")
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
FACTS = Facts(CHECKS, LOOKS)
