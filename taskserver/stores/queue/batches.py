"""Starts, renewals and completions of several tasks in one write: the tasks of one call or of one round.

A verb takes tasks of one claim, at most as many as one statement takes ids. If a row is held, the free rows are locked
and written without it. The verbs for single tasks, which handle every special case, complete what fails here.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from ...errors import Conflict
from ...model.task import ClaimedTask
from ..database import RowsChanged
from ..free_rows import work_free, write_free
from ..retrying import RetryPolicy, Scope
from ..words import Write, with_ids
from .finishes import COMPLETE, RENEW, START
from .store import Store


def _of_many(sql: str) -> str:
    return sql.replace("id = ?", "id IN ({ids})", 1)


def _while_ready(sql: str) -> str:
    """Keep updated_at: the task may be released, and a new row has been ready since its updated_at."""
    return sql.replace("updated_at = {now}", "updated_at = updated_at")


class Batches:
    """Verbs for several tasks. Raises DatabaseError."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._database = store.database
        # With one writer, others hold all rows or none.
        self._writer_seconds = store.database.conflict_seconds if store.has_one_writer else 0

    # ---- start: in progress, unstarted → in progress, started

    START_SEVERAL = _while_ready(_of_many(START))
    CLAIMED = "SELECT id FROM {table} {by_key} WHERE id IN ({ids}) AND status = 1 AND claim = ?"
    SELECT_STARTED = f"{CLAIMED} AND started_at IS NOT NULL"
    SELECT_UNSTARTED = f"{CLAIMED} AND started_at IS NULL"

    def start(self, tasks: Sequence[ClaimedTask], max_attempts: int) -> set[int]:
        """In progress, unstarted → in progress, started; the ids of the started tasks.

        The other rows are held or reclaimed. `max_attempts` is the limit for rows without one.
        """
        claim, ids = tasks[0].claim, _ids_of(tasks)
        try:
            # One round trip for the write and its commit, if the server joins statements.
            [matched], _ = self._database.write_together(
                [self._starting(claim, max_attempts, ids)], self._writer_seconds
            )
        except Conflict:
            if self._store.has_one_writer:
                raise

            def start(free: Sequence[int]) -> int:
                return self._database.write(*self._starting(claim, max_attempts, free))

            matched = work_free(self._database, ids, start).changed
        # An earlier try may have started the others before its connection broke.
        return set(ids) if matched == len(ids) else self.started(tasks)

    def _starting(self, claim: int, max_attempts: int, ids: Sequence[int]) -> Write:
        return with_ids(self.START_SEVERAL, ids), (max_attempts, self._store.lease_seconds, *ids, claim)

    def unstarted(self, tasks: Sequence[ClaimedTask]) -> set[int]:
        """The ids of tasks that this worker still has and did not start."""
        return self._ids(self.SELECT_UNSTARTED, tasks)

    def started(self, tasks: Sequence[ClaimedTask]) -> set[int]:
        """The ids of tasks that this worker started and still has."""
        return self._ids(self.SELECT_STARTED, tasks)

    # ---- unstart: in progress, started → new, if none of the task's code ran

    UNSTART = """
        UPDATE {table} {by_key}
        SET status = 0, attempts = CASE WHEN attempts > 0 THEN attempts - 1 ELSE 0 END, claim = NULL, due_at = NULL,
            started_at = NULL, updated_at = updated_at
        WHERE id IN ({ids}) AND status = 1 AND claim = ? AND started_at IS NOT NULL AND {is_cancelled} = 0
    """

    def unstart(self, tasks: Sequence[ClaimedTask]) -> int:
        """In progress, started → new, with the attempt uncounted; how many.

        Also a task that was rerun since its start. A cancelled task, or a held row, stays until its lease ends.
        """
        return self._write(self.UNSTART, (), tasks)

    # ---- while they run

    RENEW_SEVERAL = _while_ready(_of_many(RENEW))

    def renew(self, tasks: Sequence[ClaimedTask]) -> bool:
        """Renew the leases of started tasks, except held rows. Whether any claim still holds."""
        return bool(self._write(self.RENEW_SEVERAL, (self._store.lease_seconds,), tasks) or self.started(tasks))

    # ---- finish: in progress, started → done

    COMPLETABLE = f"{CLAIMED} AND attempts > 0 AND awaited = 0"

    def complete(self, tasks: Sequence[ClaimedTask]) -> tuple[set[int], bool]:
        """In progress, started → gone, archived or done; the ids of the completed tasks.

        `advance` handles the others: lost claims, changed or awaited tasks, held rows. The flag says whether they are
        in doubt: a connection broke before its answer came.
        """
        claim, ids = tasks[0].claim, _ids_of(tasks)
        writes = self._completing(claim, ids)
        are_done, in_doubt = self._write_all(writes, [len(ids)] * len(writes))
        if are_done:
            return set(ids), False

        def complete(free: Sequence[int]) -> int:
            return self._database.write_each(self._completing(claim, free), [len(free)] * len(writes))[0]

        seconds = self._database.conflict_seconds
        freed = work_free(self._database, ids, complete, self.COMPLETABLE, (claim,), seconds)
        return set(freed.ids), in_doubt or freed.in_doubt

    def _completing(self, claim: int, ids: Sequence[int]) -> list[Write]:
        return [(with_ids(_of_many(sql), ids), (*ids, claim)) for sql in COMPLETE[self._store.mode]]

    def complete_and_start(
        self, ended: Sequence[ClaimedTask], tasks: Sequence[ClaimedTask], max_attempts: int
    ) -> tuple[bool, bool]:
        """In one commit, `ended` → gone, archived or done, and `tasks` → started. Whether all were written.

        Nothing is written if a row was changed or is held: then use `complete` and `start`. The second flag says
        whether that is in doubt: a connection broke before its answer came.
        """
        claim = tasks[0].claim
        writes = self._completing(claim, _ids_of(ended))
        starting = self._starting(claim, max_attempts, _ids_of(tasks))
        return self._write_all([*writes, starting], [*[len(ended)] * len(writes), len(tasks)])

    # ---- start again: in progress, started → in progress, started once more

    # Only a row that was not changed, retried or cancelled meanwhile.
    START_AGAIN = """
        UPDATE {table} {by_key}
        SET attempts = attempts + 1, started_at = {now}, due_at = {after}, progress = NULL, updated_at = {now}
        WHERE id = ? AND status = 1 AND claim = ? AND started_at IS NOT NULL AND attempts = ? AND {is_cancelled} = 0
    """
    WAS_STARTED_AGAIN = "SELECT 1 FROM {table} WHERE id = ? AND status = 1 AND claim = ? AND attempts = ?"

    def start_again(self, task: ClaimedTask) -> bool:
        """In progress, started → started again: counts an attempt and renews the lease.

        False if the row changed since its start.
        """
        attempts = task.attempts + 1
        values = (self._store.lease_seconds, task.id, task.claim, attempts)
        matched, in_doubt = self._database.change_in_doubt(self.START_AGAIN, values)
        if matched or not in_doubt:
            return bool(matched)
        return bool(self._database.fetch(self.WAS_STARTED_AGAIN, (task.id, task.claim, attempts + 1)))

    # ---- several rows

    def _write_all(self, writes: Sequence[Write], least: Sequence[int]) -> tuple[bool, bool]:
        """Write all in one commit if each matches its `least` rows. Whether it did, and otherwise whether in doubt."""
        policy = RetryPolicy(Scope.TRANSACTION, self._writer_seconds)
        try:
            self._database.run(policy, self._database.write_each, writes, least)
        except (RowsChanged, Conflict) as error:
            if isinstance(error, Conflict) and self._store.has_one_writer:
                raise
            return False, error.in_doubt
        return True, False

    def _write(self, sql: str, values: Sequence[object], tasks: Sequence[ClaimedTask]) -> int:
        """Write to the tasks' free rows; how many. The values come before the ids, the claim after them."""
        write = partial(self._database.write_ids, sql, before=values, after=(tasks[0].claim,))
        return write_free(self._database, _ids_of(tasks), write, self._database.conflict_seconds)

    def _ids(self, sql: str, tasks: Sequence[ClaimedTask]) -> set[int]:
        return {row[0] for row in self._database.fetch_ids(sql, _ids_of(tasks), (tasks[0].claim,))}


def _ids_of(tasks: Sequence[ClaimedTask]) -> list[int]:
    """The tasks' ids in order, as every writer locks rows in this order."""
    return sorted([task.id for task in tasks])
