"""A worker's verbs on a task while its code runs: the lease, a cancel, the progress.

Three rules hold for every write to a claimed row: it names the row by its primary key, it names the claim token, and
it counts the rows that it matched. The token decides who may write, never the clock.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...model.task import ClaimedTask
from ..database import Database
from ..retrying import RetryPolicy, Scope
from ..words import with_ids

START = """
    UPDATE {table} {by_key}
    SET attempts = attempts + 1, max_attempts = COALESCE(max_attempts, ?), started_at = {now}, due_at = {after},
        error_text = NULLIF(error_text, {cancelled}), result = NULL, progress = NULL, updated_at = {now}
    WHERE id = ? AND status = 1 AND claim = ? AND started_at IS NULL
"""
"""In progress, unstarted → in progress, started; written together with finishes (finishes.py, batches.py)."""
RENEW = "UPDATE {table} {by_key} SET due_at = {after}, updated_at = {now} WHERE id = ? AND status = 1 AND claim = ?"


class Leases:
    """The verbs of a worker while a task runs."""

    def __init__(self, database: Database, lease_seconds: int) -> None:
        self._database = database
        self._lease_seconds = lease_seconds

    # A row that a rerun changed meanwhile gets no limit: it may name another callable.
    LIMIT_ATTEMPTS = """
        UPDATE {table} {by_key}
        SET max_attempts = COALESCE(max_attempts, CASE WHEN attempts > 0 THEN ? END), due_at = {after},
            updated_at = {now}
        WHERE id = ? AND status = 1 AND claim = ?
    """

    def limit_attempts(self, task: ClaimedTask, max_attempts: int) -> bool:
        """Record a started task's limit that was not known at its start, and renew its lease.

        Whether the claim still stands.
        """
        values = (max_attempts, self._lease_seconds, task.id, task.claim)
        return self._database.change(self.LIMIT_ATTEMPTS, values) == 1

    def renew(self, task: ClaimedTask) -> bool:
        """Let the lease of a started task begin anew. Whether the claim still stands. Raises DatabaseError."""
        return self._database.change(RENEW, (self._lease_seconds, task.id, task.claim)) == 1

    LOOK_WHETHER_CHANGED = """
        SELECT 1 FROM {table} WHERE id = ? AND status = 1 AND claim = ? AND attempts = 0 AND {is_cancelled} = 0
    """

    def is_to_run_again(self, task: ClaimedTask) -> bool:
        """Whether a rerun came while the task ran."""
        return bool(self._database.fetch(self.LOOK_WHETHER_CHANGED, (task.id, task.claim)))

    # A lost task that may start once only keeps its token: it counts as claimed still, as it can be completed late. A
    # person's UPDATE may have made a cancelled task new again, and have left its token there, too.
    CLAIMED_STILL = """
        SELECT id, CASE WHEN status = 1 THEN {is_cancelled} ELSE 0 END FROM {table} {by_key}
        WHERE id IN ({ids}) AND claim = ?
    """
    WRITE_PROGRESS = """
        UPDATE {table} {by_key} SET progress = ?, updated_at = {now} WHERE id IN ({ids}) AND status = 1 AND claim = ?
    """

    def claimed_still(self, tasks: Sequence[ClaimedTask]) -> dict[int, bool]:
        """The running tasks of one call that still carry their claim, by id; whether a person cancelled each."""
        rows = self._database.fetch_ids(self.CLAIMED_STILL, [task.id for task in tasks], (tasks[0].claim,))
        return {row[0]: bool(row[1]) for row in rows}

    def write_progress(self, tasks: Sequence[ClaimedTask], progress: str, conflict_seconds: float) -> int:
        """Store how far the running tasks of one call have come; how many of them still carried their claim.

        Raises Conflict where others hold one of the rows for `conflict_seconds`.
        """
        database, ids = self._database, sorted([task.id for task in tasks])
        # Not repeatable: a progress is not worth a wait for an absent database.
        policy = RetryPolicy(Scope.STATEMENT, conflict_seconds, is_repeatable=False)
        sql = with_ids(self.WRITE_PROGRESS, ids)
        return database.run(policy, database.write, sql, (progress, *ids, tasks[0].claim))
