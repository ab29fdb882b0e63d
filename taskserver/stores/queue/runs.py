"""The record of runs, and the workers at work now.

One row for each host and groups shows whether cron runs the worker. One row for each process that has or waits for
tasks shows who runs what: a worker's number is the upper half of its claim tokens.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from ...errors import Conflict
from ...model.task import MAX_SECONDS
from ..database import Database
from ..retrying import HELD_PATIENCE_SECONDS, MIN_CONFLICT_SECONDS, RetryPolicy, Scope
from .claims import number_of, tokens_of

if TYPE_CHECKING:
    from ..records import WorkerProcess

GONE_SECONDS = MAX_SECONDS + 86_400
"""A process that wrote nothing for so long is gone, even on another host: no task may run longer."""
RUN_KEPT_SECONDS = 30 * 86_400
"""How long the record of a host and groups is kept after its last run: each container has a new host name."""


class LeftTask(NamedTuple):
    """A task that a dead process had claimed."""

    id: int
    task: str
    is_started: bool


class Runs:
    """The last run of each host and groups. Raises DatabaseError, and Conflict if the record is held."""

    def __init__(self, database: Database) -> None:
        self._database = database

    # A run that began since `after` is another worker of the same line, not an earlier start by cron.
    BEGIN = """
        UPDATE {workers}
        SET pid = ?, previous_started_at = CASE WHEN started_at >= {after} THEN previous_started_at ELSE started_at END,
            started_at = {now}, ended_at = NULL, reason = NULL, taken = 0, done = 0, fatal = 0, lost = 0, released = 0
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

    def begin(
        self, host: str, group_ids: str, seconds: float = HELD_PATIENCE_SECONDS, line_seconds: float = 0.0
    ) -> None:
        """Record that a run begins in this process; waits up to `seconds` for a held record.

        `line_seconds` is the age of a line of several workers.
        """
        pid = os.getpid()
        if not self._change(seconds, self.BEGIN, (pid, -line_seconds, host, group_ids)):
            self._change(seconds, self.BEGIN_FIRST, (pid, host, group_ids))

    def end(
        self, host: str, group_ids: str, seconds: float, reason: str, counts: Sequence[int], has_begun: bool = True
    ) -> None:
        """Record the end of a run that began `seconds` ago; `counts`: taken, done, fatal, lost, released.

        Writes the start again, because another run may have overwritten it. `has_begun`: the start was recorded.
        """
        if not has_begun:
            self.begin(host, group_ids, MIN_CONFLICT_SECONDS)
        values = (os.getpid(), -seconds, reason, *counts, host, group_ids)
        self._change(MIN_CONFLICT_SECONDS, self.END, values)

    OLD = "SELECT host, group_ids FROM {workers} WHERE started_at < {after}"
    DELETE_OLD = "DELETE FROM {workers} WHERE host = ? AND group_ids = ? AND started_at < {after}"

    def delete_old(self) -> None:
        """Delete the records of hosts and groups without a run for RUN_KEPT_SECONDS; skips held ones."""
        for host, group_ids in self._database.fetch(self.OLD, (-RUN_KEPT_SECONDS,)):
            with suppress(Conflict):
                self._change(HELD_PATIENCE_SECONDS, self.DELETE_OLD, (host, group_ids, -RUN_KEPT_SECONDS))

    AT_WORK = "SELECT number, pid, identity FROM {processes} WHERE host = ?"

    def at_work(self, host: str) -> list[tuple[int, int, str]]:
        """Number, process id and identity of each worker on a host."""
        # SQLite may store any type.
        return [row for row in self._database.fetch(self.AT_WORK, (host,)) if tuple(map(type, row)) == (int, int, str)]

    def _change(self, seconds: float, sql: str, values: Sequence[object]) -> int:
        if self._database.dialect.has_one_writer:
            seconds = self._database.conflict_seconds
        policy = RetryPolicy(Scope.STATEMENT, seconds)
        return self._database.run(policy, self._database.write, sql, values)


class Processes:
    """The rows of worker processes. Raises DatabaseError."""

    def __init__(self, database: Database) -> None:
        self._database = database

    BEGIN = """
        {insert_or_ignore} INTO {processes} (number, host, group_ids, pid, identity) VALUES (?, ?, ?, ?, ?) {or_ignore}
    """
    DELETE_OLD = "DELETE FROM {processes} WHERE seen_at < {after}"
    WRITE_COUNTS = """
        UPDATE {processes}
        SET seen_at = {now}, taken = ?, done = ?, failed = ?, fatal = ?, lost = ?, released = ?
        WHERE number = ?
    """
    END = "DELETE FROM {processes} WHERE number = ?"
    MARK_ENDED = "UPDATE {processes} SET ended_at = {now} WHERE number = ? AND ended_at IS NULL"
    ALL = """
        SELECT number, host, group_ids, pid, identity, {started_at_text}, {started_at_age}, {seen_at_age},
            {ended_at_text}, taken, done, failed, fatal, lost, released
        FROM {processes} ORDER BY started_at, number
    """

    def begin(self, number: int, host: str, group_ids: str, identity: str) -> None:
        """Record that this process is at work; delete the rows of processes that are long gone."""
        self._change(self.BEGIN, (number, host, group_ids, os.getpid(), identity))
        self._change(self.DELETE_OLD, (-GONE_SECONDS,))

    def write_counts(self, number: int, counts: Sequence[int]) -> None:
        """Write the counts of the run so far (`RunResult.all_counts`)."""
        self._change(self.WRITE_COUNTS, (*counts, number))

    def end(self, number: int) -> None:
        self._change(self.END, (number,))

    def mark_ended(self, number: int) -> bool:
        """Record that a process is gone. False if that was already recorded."""
        return self._change(self.MARK_ENDED, (number,)) == 1

    def _change(self, sql: str, values: Sequence[object]) -> int:
        policy = RetryPolicy(Scope.STATEMENT, HELD_PATIENCE_SECONDS)  # not important: only people read these rows
        return self._database.run(policy, self._database.write, sql, values)

    def all(self) -> list[WorkerProcess]:
        """The processes of all hosts, the oldest first."""
        from ...model.results import by_name  # only for people
        from ..records import WorkerProcess

        rows = self._database.fetch(self.ALL)
        return [WorkerProcess(**by_name(WorkerProcess._fields, row)) for row in rows]

    # ---- the tasks of dead processes

    CLAIMED = """
        SELECT id, task, started_at IS NOT NULL, claim
        FROM {table} {by_status} WHERE {group_status} = 1 ORDER BY id
    """
    END_LEASES = """
        UPDATE {table} {by_key} SET due_at = {now}, updated_at = updated_at
        WHERE id IN ({ids}) AND status = 1 AND claim >= ? AND claim <= ?
    """

    def claimed_by(self, numbers: Collection[int]) -> dict[int, list[LeftTask]]:
        """The tasks that these processes have claimed, by process number."""
        tasks: dict[int, list[LeftTask]] = {number: [] for number in numbers}
        for task_id, task, is_started, claim in self._database.fetch(self.CLAIMED):
            if isinstance(claim, int) and number_of(claim) in tasks:
                tasks[number_of(claim)].append(LeftTask(task_id, str(task), bool(is_started)))
        return tasks

    def end_leases(self, number: int, tasks: Sequence[LeftTask]) -> None:
        """End the leases of a process's tasks, so that the next look reclaims them; skips held rows."""
        from ..free_rows import write_free  # few workers die

        write = partial(self._database.write_ids, self.END_LEASES, after=tokens_of(number))
        with suppress(Conflict):
            write_free(self._database, [task.id for task in tasks], write)
