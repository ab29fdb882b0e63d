"""Checks of an SQLite file, from the facts that its store read."""

from __future__ import annotations

from collections.abc import Iterator

from ..messages.programs import CLIENT
from ..settings.load import Settings
from ..stores.facts import SQLiteFacts
from .findings import CheckResult, broken, ok, unknown
from .tables import check_claim_index, check_ids, check_tables


def findings(facts: SQLiteFacts, settings: Settings) -> Iterator[CheckResult]:
    """One finding for each check."""
    yield ok("connection", settings.dsn.place)
    yield ok("version", f"SQLite {facts.version}")
    yield _journal(facts)
    yield _damage(facts)
    yield check_tables(facts.faults)
    yield check_claim_index(facts.claim_indexes)
    yield check_ids(facts.forged_ids, "whoever may write the file")


def _journal(facts: SQLiteFacts) -> CheckResult:
    if facts.journal_mode == "wal":
        return ok("journal", "WAL: readers and the writer do not wait for one another")
    return broken(
        "journal",
        f"the journal is {facts.journal_mode}, not WAL",
        "workers and producers would keep one another waiting",
        f"{CLIENT} init, with the file on a disk of this host",
    )


def _damage(facts: SQLiteFacts) -> CheckResult:
    if facts.damage is None:
        return unknown(
            "file",
            "the file is too large to be read through here",
            "a damaged one loses tasks",
            "sqlite3 FILE 'PRAGMA quick_check'",
        )
    if facts.damage == "ok":
        return ok("file", "SQLite finds no damage in its file")
    return broken(
        "file",
        f"SQLite finds its file damaged: {facts.damage[:200]}",
        "tasks may be lost already",
        "stop cron, keep a copy, and save what can be read: sqlite3 FILE .recover",
    )
