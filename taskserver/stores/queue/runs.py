"""The record of runs: one row for each host and groups, so that anyone can see whether cron runs the worker."""

from __future__ import annotations

import os
from collections.abc import Sequence

from ..database import Database
from ..retrying import HELD_PATIENCE_SECONDS, MIN_CONFLICT_SECONDS, RetryPolicy, Scope


class Runs:
    """The last run of each host and groups, as its worker records it."""

    def __init__(self, database: Database) -> None:
        self._database = database

    BEGIN = """
        UPDATE {workers} SET pid = ?, previous_started_at = started_at, started_at = {now},
            ended_at = NULL, reason = NULL, taken = 0, done = 0, fatal = 0, lost = 0, released = 0
        WHERE host = ? AND group_ids = ?
    """
    BEGIN_FIRST = """
        {insert_or_ignore} INTO {workers} (pid, host, group_ids, started_at) VALUES (?, ?, ?, {now}) {or_ignore}
    """
    END = """
        UPDATE {workers} SET pid = ?, started_at = {after}, ended_at = {now}, reason = ?,
            taken = ?, done = ?, fatal = ?, lost = ?, released = ?
        WHERE host = ? AND group_ids = ?
    """

    BEGIN_OF_LINE = BEGIN.replace(
        "previous_started_at = started_at",
        "previous_started_at = CASE WHEN started_at >= {after} THEN previous_started_at ELSE started_at END",
    )

    def begin(
        self, host: str, group_ids: str, seconds: float = HELD_PATIENCE_SECONDS, line_seconds: float | None = None
    ) -> None:
        """Record that a run begins in this process. Raises Conflict where others hold the record for so long.

        `line_seconds` is the age of a line of several workers: what began since is of the same line, and does not tell
        how often cron starts it.
        """
        who = (os.getpid(), host, group_ids)
        sql, ages = (self.BEGIN, ()) if line_seconds is None else (self.BEGIN_OF_LINE, (-line_seconds,))
        if not self._change(seconds, sql, (who[0], *ages, *who[1:])):
            self._change(seconds, self.BEGIN_FIRST, who)

    def end(
        self,
        host: str,
        group_ids: str,
        seconds: float,
        reason: str,
        counts: Sequence[int],
        has_begun: bool = True,
    ) -> None:
        """Record how a run ended that began `seconds` ago. Raises Conflict where others hold the record.

        It writes the begin again, as a run beside this one may have written its own since; `has_begun` tells whether
        this run's own was recorded. `counts` are the tasks taken, done, fatal, lost and released.
        """
        if not has_begun:
            self.begin(host, group_ids, MIN_CONFLICT_SECONDS)
        values = (os.getpid(), -seconds, reason, *counts, host, group_ids)
        self._change(MIN_CONFLICT_SECONDS, self.END, values)

    AT_WORK = "SELECT number, pid, identity FROM {processes} WHERE host = ?"

    def at_work(self, host: str) -> list[tuple[int, int, str]]:
        """Number, process id and identity of each worker at work on a host (processes.py). Raises DatabaseError."""
        # SQLite's may hold anything.
        return [row for row in self._database.fetch(self.AT_WORK, (host,)) if tuple(map(type, row)) == (int, int, str)]

    def _change(self, seconds: float, sql: str, values: Sequence[object]) -> int:
        if self._database.dialect.has_one_writer:
            seconds = self._database.conflict_seconds
        policy = RetryPolicy(Scope.STATEMENT, seconds)
        return self._database.run(policy, self._database.write, sql, values)
