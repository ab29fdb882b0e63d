"""The workers at work now: one row for each process that has tasks, or waits for some.

A worker's number is the upper half of the claim tokens of its tasks: so a running task leads to its process.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

from ..database.database import MAX_IDS_PER_STATEMENT, Database
from ..database.free_rows import FreeRows
from ..database.records import WorkerProcess, worker_process
from ..database.retrying import HELD_PATIENCE_SECONDS, RetryPolicy, Scope
from .claims import tokens_of

FORGOTTEN_SECONDS = 86_400
"""A process that has written nothing for so long, on another host perhaps, is gone."""


class LeftTask(NamedTuple):
    """A task that was running in a process which is gone."""

    id: int
    task: str
    has_lease: bool


class Processes:
    """The rows of worker processes."""

    def __init__(self, database: Database, free_rows: FreeRows) -> None:
        self._database = database
        self._free_rows = free_rows

    BEGIN = "{insert_or_ignore} INTO {processes} (number, host, group_ids, pid, identity) VALUES (?, ?, ?, ?, ?)"
    FORGET = "DELETE FROM {processes} WHERE seen_at < {after}"
    TELL = """
        UPDATE {processes}
        SET seen_at = {now}, taken = ?, done = ?, failed = ?, fatal = ?, lost = ?, released = ?
        WHERE number = ?
    """
    END = "DELETE FROM {processes} WHERE number = ?"

    def begin(self, number: int, host: str, group_ids: str, identity: str) -> None:
        """Note that this process is at work, and forget those that ended without a word. Raises DatabaseError."""
        self._change(self.BEGIN, (number, host, group_ids, os.getpid(), identity))
        self._change(self.FORGET, (-FORGOTTEN_SECONDS,))

    def tell(self, number: int, counts: Sequence[int]) -> None:
        """Write the counts of the run so far (`RunResult.all_counts`). Raises DatabaseError."""
        self._change(self.TELL, (*counts, number))

    def end(self, number: int) -> None:
        """Note that a process is at work no more. Raises DatabaseError."""
        self._change(self.END, (number,))

    def _change(self, sql: str, values: Sequence[object]) -> int:
        # A row of a person's interest alone is worth no long wait for others.
        policy = RetryPolicy(Scope.STATEMENT, HELD_PATIENCE_SECONDS)
        return self._database.run(policy, self._database.write, sql, values)

    ALL = """
        SELECT number, host, group_ids, pid, identity, {started_at_text}, {started_at_age}, {seen_at_age},
            {ended_at_text}, taken, done, failed, fatal, lost, released
        FROM {processes} ORDER BY started_at, number
    """

    def all(self) -> list[WorkerProcess]:
        """The processes of all hosts, the oldest first. Raises DatabaseError."""
        return [worker_process(row) for row in self._database.fetch(self.ALL)]

    # ---- of a process that is gone

    MARK_ENDED = "UPDATE {processes} SET ended_at = {now} WHERE number = ? AND ended_at IS NULL"

    def mark_ended(self, number: int) -> bool:
        """Note that a process is gone. Whether nobody had noted that. Raises DatabaseError."""
        return self._change(self.MARK_ENDED, (number,)) == 1

    CLAIMED_BY = """
        SELECT id, task, started_at IS NOT NULL, CASE WHEN due_at > {now} THEN 1 ELSE 0 END FROM {table} {by_status}
        WHERE status = 1 AND id > ? AND claim >= ? AND claim <= ? ORDER BY id LIMIT ?
    """
    END_LEASES = """
        UPDATE {table} {by_key} SET due_at = {now}, updated_at = updated_at
        WHERE id IN ({ids}) AND status = 1 AND claim >= ? AND claim <= ?
    """

    def end_leases(self, number: int, with_started: bool) -> list[LeftTask]:
        """End the leases of what a process claimed, so that the next look takes it back; the tasks that it had started.

        Those keep their lease unless `with_started`. A row that others hold is left until its lease ends. Raises
        DatabaseError.
        """
        first, last = tokens_of(number)
        started, after = [], -1
        while rows := self._database.fetch(self.CLAIMED_BY, (after, first, last, MAX_IDS_PER_STATEMENT)):
            ids = [row[0] for row in rows if with_started or not row[2]]
            self._free_rows.write_ids(self.END_LEASES, ids, (first, last))
            started += [LeftTask(row[0], str(row[1]), bool(row[3])) for row in rows if row[2]]
            after = rows[-1][0]
        return started
