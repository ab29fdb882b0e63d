"""Starts, renewals and completions of several tasks in one write: of those of one call, and of those of one round.

The tasks given to a verb are of one claim, and at most as many as one statement takes ids. Where others hold one of the
rows, the free rows are locked and written without it. A task whose completion could not be written here is left to the
verbs of single tasks, which know every special case.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from ...errors import Conflict
from ...model.task import ClaimedTask
from ..database import RowsChanged
from ..free_rows import work_free
from ..words import Write, with_ids
from .finishes import COMPLETE, RENEW, RUN_AGAIN, START
from .store import Store


def _of_many(sql: str) -> str:
    return sql.replace("id = ?", "id IN ({ids})", 1)


def _while_ready(sql: str) -> str:
    """A write after which a task may be given back: of a new row, updated_at is the instant since which it is ready."""
    return sql.replace("updated_at = {now}", "updated_at = updated_at")


class Batches:
    """Verbs for several tasks at once."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._database = store.database

    # ---- start: in progress, unstarted → in progress, started

    START_SEVERAL = _while_ready(_of_many(START))
    RUN_AGAIN_SEVERAL = _of_many(RUN_AGAIN)
    CLAIMED = "SELECT id FROM {table} {by_key} WHERE id IN ({ids}) AND status = 1 AND claim = ?"
    SELECT_STARTED = f"{CLAIMED} AND started_at IS NOT NULL"
    SELECT_UNSTARTED = f"{CLAIMED} AND started_at IS NULL"

    def start(self, tasks: Sequence[ClaimedTask], max_attempts: int) -> set[int]:
        """In progress, unstarted → in progress, started; the ids of the started tasks.

        Others hold the rows of the remaining tasks, or took them. `max_attempts` is the limit for tasks whose row has
        none.
        """
        ids = _ids_of(tasks)
        start_of = partial(self._start_of, tasks[0].claim, max_attempts)
        try:
            # With its commit in one round trip, where the server joins statements.
            [matched], _ = self._database.write_together([start_of(ids)], self._writer_seconds)
        except Conflict:
            if self._store.has_one_writer:
                raise
            matched = work_free(self._database, ids, lambda free: self._database.write(*start_of(free))).changed
        # An earlier try whose connection broke may have started the others.
        return {task.id for task in tasks} if matched == len(tasks) else self.started(tasks)

    def _start_of(self, claim: int, max_attempts: int, ids: Sequence[int]) -> Write:
        return with_ids(self.START_SEVERAL, ids), (max_attempts, self._store.lease_seconds, *ids, claim)

    def unstarted(self, tasks: Sequence[ClaimedTask]) -> set[int]:
        """The ids of the tasks that this worker still has, and did not start."""
        return self._ids(self.SELECT_UNSTARTED, tasks)

    def started(self, tasks: Sequence[ClaimedTask]) -> set[int]:
        """The ids of the tasks that this worker started and still has."""
        return self._ids(self.SELECT_STARTED, tasks)

    # ---- unstart: in progress, started → new, where none of the task's code ran

    UNSTART = """
        UPDATE {table} {by_key}
        SET status = 0, attempts = attempts - 1, max_attempts = ?, claim = NULL, due_at = NULL, started_at = NULL,
            updated_at = updated_at
        WHERE id IN ({ids}) AND status = 1 AND claim = ? AND started_at IS NOT NULL AND attempts > 0
            AND {is_cancelled} = 0
    """

    def unstart(self, tasks: Sequence[ClaimedTask]) -> int:
        """In progress, started → new, with the attempt uncounted, as if the tasks had never been claimed; how many.

        A task that was changed since its start becomes new, too. One that was cancelled, or whose row others hold, is
        left as it is until its lease ends.
        """
        unstarted = 0
        for limit in {task.max_attempts for task in tasks}:  # which the start may have written
            unstarted += self._write(self.UNSTART, (limit,), [task for task in tasks if task.max_attempts == limit])
        return unstarted + (self._write(self.RUN_AGAIN_SEVERAL, (), tasks) if unstarted < len(tasks) else 0)

    # ---- while they run: the lease anew

    RENEW_SEVERAL = _while_ready(_of_many(RENEW))

    def renew(self, tasks: Sequence[ClaimedTask]) -> bool:
        """Let the leases of started tasks begin anew, except rows that others hold. Whether any claim still stands."""
        return bool(self._write(self.RENEW_SEVERAL, (self._store.lease_seconds,), tasks) or self.started(tasks))

    # ---- finish: in progress, started → done

    COMPLETABLE = f"{CLAIMED} AND attempts > 0 AND awaited = 0"

    def complete(self, tasks: Sequence[ClaimedTask]) -> tuple[set[int], bool]:
        """In progress, started → gone, archived or done; the ids of the completed tasks.

        The others are left to `advance`: tasks whose claim was taken away, changed or awaited tasks, rows that somebody
        holds. The flag tells whether they may be done all the same, as a connection broke before its answer came.
        """
        ids, claim, has_one_writer = _ids_of(tasks), tasks[0].claim, self._store.has_one_writer
        complete = partial(self._complete, claim)
        try:
            writes = self._completing(claim, ids)
            self._database.write_together(writes, self._writer_seconds, len(writes) == 1, [len(ids)] * len(writes))
            return set(ids), False
        except (RowsChanged, Conflict) as error:
            if isinstance(error, Conflict) and has_one_writer:
                raise
            in_doubt = error.may_have_taken_effect
        seconds = self._database.conflict_seconds
        freed = work_free(self._database, ids, complete, self.COMPLETABLE, (claim,), seconds)
        return set(freed.ids), in_doubt or freed.in_doubt

    def _complete(self, claim: int, ids: Sequence[int]) -> int:
        """How many tasks. Raises RowsChanged where a write matches fewer rows than it should."""
        for sql, values in self._completing(claim, ids):
            if self._database.write(sql, values) < len(ids):
                raise RowsChanged()
        return len(ids)

    def _completing(self, claim: int, ids: Sequence[int]) -> list[Write]:
        return [(with_ids(_of_many(sql), ids), (*ids, claim)) for sql in COMPLETE[self._store.mode]]

    # ---- both in one commit

    def complete_and_start(
        self, ended: Sequence[ClaimedTask], tasks: Sequence[ClaimedTask], max_attempts: int
    ) -> tuple[bool, bool]:
        """Both in one commit, `ended` → gone, archived or done, and `tasks` → started: all of them, or none.

        None where a row was changed, or others hold it: `complete` and `start` then do what can be done. The second
        flag tells whether all may be done then, as a connection broke before its answer came.
        """
        claim, ended_ids, ids = tasks[0].claim, _ids_of(ended), _ids_of(tasks)
        writes = [*self._completing(claim, ended_ids), self._start_of(claim, max_attempts, ids)]
        least = [len(ended_ids)] * (len(writes) - 1) + [len(ids)]
        # The writes of a move see what the one before did.
        are_apart = len(writes) == 2
        try:
            self._database.write_together(writes, self._writer_seconds, are_apart, least)
        except (RowsChanged, Conflict) as error:
            if isinstance(error, Conflict) and self._store.has_one_writer:
                raise
            return False, error.may_have_taken_effect
        return True, False

    # ---- start again: in progress, started → in progress, started once more

    # Only a row that no person changed, retried or cancelled meanwhile.
    START_AGAIN = """
        UPDATE {table} {by_key}
        SET attempts = attempts + 1, started_at = {now}, due_at = {after}, progress = NULL, updated_at = {now}
        WHERE id = ? AND status = 1 AND claim = ? AND started_at IS NOT NULL AND attempts = ? AND {is_cancelled} = 0
    """
    WAS_STARTED_AGAIN = "SELECT 1 FROM {table} WHERE id = ? AND status = 1 AND claim = ? AND attempts = ?"

    def start_again(self, task: ClaimedTask) -> bool:
        """In progress, started → started once more: another attempt is counted, and the lease renewed.

        False where the row is not as its start left it.
        """
        attempts = task.attempts + 1
        values = (self._store.lease_seconds, task.id, task.claim, attempts)
        matched, in_doubt = self._database.change_in_doubt(self.START_AGAIN, values)
        if matched or not in_doubt:
            return bool(matched)
        return bool(self._database.fetch(self.WAS_STARTED_AGAIN, (task.id, task.claim, attempts + 1)))

    # ---- several rows

    @property
    def _writer_seconds(self) -> float:
        """How long to wait for others: where the database has one writer, they hold all rows or none."""
        return self._database.conflict_seconds if self._store.has_one_writer else 0

    def _write(self, sql: str, values: Sequence[object], tasks: Sequence[ClaimedTask]) -> int:
        """Write to the tasks' rows that nobody holds; how many. The values stand before the ids, the claim behind."""
        claim, seconds = tasks[0].claim, self._database.conflict_seconds

        def write(free: Sequence[int]) -> int:
            return self._database.write(with_ids(sql, free), (*values, *free, claim))

        return work_free(self._database, _ids_of(tasks), write, writer_seconds=seconds).changed

    def _ids(self, sql: str, tasks: Sequence[ClaimedTask]) -> set[int]:
        return {row[0] for row in self._database.fetch_ids(sql, _ids_of(tasks), (tasks[0].claim,))}


def _ids_of(tasks: Sequence[ClaimedTask]) -> list[int]:
    """The tasks' ids in order: every writer locks its rows in this order."""
    return sorted([task.id for task in tasks])
