"""The record of runs: one row for each host and groups, so that anyone can see whether cron runs the worker."""

from __future__ import annotations

import os
from collections.abc import Sequence

from ..database.database import Database


class Runs:
    """The last run of each host and groups, as its worker records it."""

    def __init__(self, database: Database) -> None:
        self._database = database

    BEGIN = """
        UPDATE {workers} SET pid = ?, previous_started_at = started_at, started_at = {now},
            ended_at = NULL, reason = NULL, taken = 0, done = 0, fatal = 0, lost = 0, released = 0
        WHERE host = ? AND group_ids = ?
    """
    BEGIN_FIRST = "{insert_or_ignore} INTO {workers} (pid, host, group_ids, started_at) VALUES (?, ?, ?, {now})"
    END = """
        UPDATE {workers} SET pid = ?, started_at = {after}, ended_at = {now}, reason = ?,
            taken = ?, done = ?, fatal = ?, lost = ?, released = ?
        WHERE host = ? AND group_ids = ?
    """

    def begin(self, host: str, group_ids: str) -> None:
        """Record that a run begins in this process."""
        who = (os.getpid(), host, group_ids)
        if not self._database.change(self.BEGIN, who):
            self._database.change(self.BEGIN_FIRST, who)

    def end(self, host: str, group_ids: str, seconds: float, reason: str, counts: Sequence[int]) -> None:
        """Record how a run ended that began `seconds` ago.

        It writes the begin again, as a run beside this one may have written its own since. `counts` are the tasks
        taken, done, fatal, lost and released.
        """
        self._database.change(self.END, (os.getpid(), -seconds, reason, *counts, host, group_ids))
