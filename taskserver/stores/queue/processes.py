"""The workers at work now: one row for each process that has tasks, or waits for some.

A worker's number is the upper half of the claim tokens of its tasks: so a running task leads to its process.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from typing import NamedTuple

from ...model.task import MAX_SECONDS
from ..database import MAX_IDS_PER_STATEMENT, Database
from ..free_rows import write_free
from ..records import WorkerProcess, worker_process
from ..retrying import HELD_PATIENCE_SECONDS, RetryPolicy, Scope
from .claims import number_of, tokens_of

FORGOTTEN_SECONDS = MAX_SECONDS + 86_400
"""A process that has written nothing for so long, on another host perhaps, is gone: no task may run for longer."""


class LeftTask(NamedTuple):
    """A task that a process which is gone had claimed."""

    id: int
    task: str
    is_started: bool
    has_lease: bool


class Processes:
    """The rows of worker processes."""

    def __init__(self, database: Database) -> None:
        self._database = database

    BEGIN = """
        {insert_or_ignore} INTO {processes} (number, host, group_ids, pid, identity) VALUES (?, ?, ?, ?, ?) {or_ignore}
    """
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

    CLAIMED = """
        SELECT id, task, started_at IS NOT NULL, CASE WHEN due_at > {now} THEN 1 ELSE 0 END, claim
        FROM {table} {by_status} WHERE {group_status} = 1 AND id > ? ORDER BY id LIMIT ?
    """
    END_LEASES = """
        UPDATE {table} {by_key} SET due_at = {now}, updated_at = updated_at
        WHERE id IN ({ids}) AND status = 1 AND claim >= ? AND claim <= ?
    """

    def claimed_by(self, numbers: Collection[int]) -> dict[int, list[LeftTask]]:
        """The tasks that these processes have claimed, by the number of each. Raises DatabaseError."""
        tasks: dict[int, list[LeftTask]] = {number: [] for number in numbers}
        after, portion = -1, 1
        while portion:
            rows = self._database.fetch(self.CLAIMED, (after, MAX_IDS_PER_STATEMENT))
            for task_id, task, is_started, has_lease, claim in rows:
                if isinstance(claim, int) and number_of(claim) in tasks:
                    tasks[number_of(claim)].append(LeftTask(task_id, str(task), bool(is_started), bool(has_lease)))
            portion = len(rows)
            after = rows[-1][0] if rows else after
        return tasks

    def end_leases(self, number: int, tasks: Sequence[LeftTask]) -> None:
        """End the leases of tasks that a process has claimed, so that the next look takes them back.

        A row that others hold is left until its lease ends. Raises DatabaseError.
        """
        ids = [task.id for task in tasks]
        for first in range(0, len(ids), MAX_IDS_PER_STATEMENT):
            write_free(self._database, self.END_LEASES, ids[first : first + MAX_IDS_PER_STATEMENT], tokens_of(number))
