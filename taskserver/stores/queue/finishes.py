"""A worker's verbs on a claimed task: start, lease and progress while it runs, finish; and what an earlier try did.

Three rules hold for every write to a claimed row: it names the primary key, it names the claim token, and it counts the
rows that it matched. The token decides who may write, never the clock.

Finishes are written in one commit with the next start. A finish that matched nothing came too late: after its own
earlier try, a rerun, a cancel, a dependency or another worker. The row shows after which.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...errors import DatabaseError
from ...model.attempt import Finish, Outcome, Start
from ...model.task import CANCELLED, ClaimedTask, Status
from ..database import Database, T
from ..dialect import Rows
from ..retrying import RetryPolicy, Scope
from ..words import Write, with_ids
from .dependencies import GivenUp, end

START = """
    UPDATE {table} {by_key}
    SET attempts = attempts + 1, max_attempts = COALESCE(max_attempts, ?), started_at = {now}, due_at = {after},
        error_text = NULLIF(error_text, {cancelled}), result = NULL, progress = NULL, updated_at = {now}
    WHERE id = ? AND status = 1 AND claim = ? AND started_at IS NULL
"""
"""In progress, unstarted → in progress, started."""
RENEW = "UPDATE {table} {by_key} SET due_at = {after}, updated_at = {now} WHERE id = ? AND status = 1 AND claim = ?"
# Guards: a write does not match a row that was changed while its task ran. That is rare; `FinishWrites.finish_changed`
# follows then.
#   attempts > 0        no rerun, which sets attempts to 0
#   is_cancelled = 0    no cancel: a cancelled task is not retried and has no next stage
#   awaited = 0         no task waits for this one: otherwise its end updates them in the same transaction

IS_OURS = "id = ? AND status = 1 AND claim = ? AND (attempts > 0 OR started_at IS NULL)"
NOT_AWAITED = " AND awaited = 0"
IS_ALONE = f"{IS_OURS}{NOT_AWAITED}"
DELETE = f"{{delete_task}} WHERE {IS_ALONE}"
MARK = f"""
    UPDATE {{table}} {{by_key}}
    SET status = 2, awaited = 0, claim = NULL, due_at = NULL, error_text = NULL, finished_at = {{now}},
        updated_at = {{now}}
    WHERE {IS_ALONE}
"""
# A move is three writes in one transaction. The first locks the row and shows whether the claim still holds. The others
# match only the row that it marked, by a status that nobody else can see.
MARK_TO_MOVE = MARK.replace("status = 2, awaited = 0, claim = NULL,", "status = 6, awaited = 0,")
ARCHIVE = """
    INSERT INTO {done} ({columns}) SELECT {archived_columns} FROM {table} {by_key}
    WHERE id = ? AND status = 6 AND claim = ?
"""
DELETE_ARCHIVED = "{delete_task} WHERE id = ? AND status = 6 AND claim = ?"
COMPLETE = {"delete": (DELETE,), "mark": (MARK,), "move": (MARK_TO_MOVE, ARCHIVE, DELETE_ARCHIVED)}
# For a row that could not be deleted: it loses its key, which the next task may need.
KEEP = MARK.replace("status = 2,", "status = 2, unique_key = NULL,")
# The same after a DELETE that silently did nothing, because of row level security, a rule or a trigger.
KEEP_UNDELETED = KEEP.replace(IS_ALONE, "id = ? AND status IN (1, 6) AND claim = ?")
RETRY = f"""
    UPDATE {{table}} {{by_key}}
    SET status = 3, claim = NULL, due_at = {{after}}, error_text = ?, updated_at = {{now}}
    WHERE {IS_OURS} AND {{is_cancelled}} = 0
"""
# Started or not; no attempt is counted.
POSTPONE = f"""
    UPDATE {{table}} {{by_key}}
    SET status = 5, attempts = attempts - CASE WHEN started_at IS NULL THEN 0 ELSE 1 END, claim = NULL,
        started_at = NULL, due_at = {{after}}, error_text = ?, progress = NULL, updated_at = {{now}}
    WHERE {IS_OURS} AND {{is_cancelled}} = 0
"""
GIVE_UP = f"""
    UPDATE {{table}} {{by_key}}
    SET status = 4, claim = NULL, due_at = NULL, error_text = ?,
        attempts = attempts - CASE WHEN attempts > 0 THEN ? ELSE 0 END, finished_at = {{now}},
        updated_at = {{now}}
    WHERE {IS_ALONE} AND ({{is_cancelled}} = 0 OR started_at IS NULL)
"""
# A cancelled task loses its key: a producer may add the same task again.
GIVE_UP_CANCELLED = GIVE_UP.replace("status = 4,", "status = 7, unique_key = NULL,")
# In progress → new, as the next stage of a pipeline.
NEXT_STAGE = f"""
    UPDATE {{table}} {{by_key}}
    SET status = 0, task = ?, args = ?, group_id = COALESCE(?, group_id), priority = COALESCE(?, priority),
        max_attempts = ?, attempts = 0, stage = stage + 1, claim = NULL, due_at = NULL, started_at = NULL,
        error_text = NULL, progress = NULL, updated_at = {{now}}
    WHERE {IS_OURS} AND {{is_cancelled}} = 0
"""
# A rerun came while the task ran: in progress → new, however the attempt ended.
RUN_AGAIN = """
    UPDATE {table} {by_key} SET status = 0, claim = NULL, due_at = NULL, error_text = NULL, updated_at = {now}
    WHERE id = ? AND status = 1 AND claim = ? AND started_at IS NOT NULL AND attempts = 0 AND {is_cancelled} = 0
"""
# A cancel came while the task ran: → cancelled after a failed attempt, or instead of the next stage or rerun.
CANCEL = """
    UPDATE {table} {by_key}
    SET status = 7, unique_key = NULL, claim = NULL, due_at = NULL, finished_at = {now}, updated_at = {now}
    WHERE id = ? AND status = 1 AND claim = ? AND started_at IS NOT NULL AND {is_cancelled} = 1
        AND (attempts = 0 OR ? = 1)
"""
# A lost task that may start only once, and whose worker is alive: fatal → in progress, completed in the same
# transaction. If a person changed it meanwhile, its status or token differs.
RESUME = """
    UPDATE {table} {by_key} SET status = 1, attempts = CASE WHEN attempts > 0 THEN attempts ELSE 1 END
    WHERE id = ? AND status = 4 AND claim = ? AND max_attempts = 1 AND error_text LIKE 'lost: %'
"""


class FinishWrites:
    """The writes for a finish, by the queue's mode."""

    def __init__(self, mode: str, lease_seconds: int) -> None:
        self._mode = mode
        self._lease_seconds = lease_seconds

    # ---- the task was not changed while it ran

    def of(self, finish: Finish) -> list[Write]:
        """In progress → as asked. The first write matches nothing if the task was changed while it ran."""
        claimed = (finish.task.id, finish.task.claim)
        if finish.next_stage is not None:
            task, group_id, priority, max_attempts, args = finish.next_stage
            return [(NEXT_STAGE, (task, args, group_id, priority, max_attempts, *claimed))]
        if finish.retry_seconds is not None:
            write = POSTPONE if finish.is_postponed else RETRY
            return [(write, (finish.retry_seconds, finish.error_text, *claimed))]
        if finish.error_text is None:
            first, *others = COMPLETE[self._mode] if finish.keep_reason is None else (KEEP,)
            complete = (first, claimed) if finish.result is None else (_with_result(first), (finish.result, *claimed))
            return [complete, *((sql, claimed) for sql in others)]
        give_up = GIVE_UP_CANCELLED if finish.error_text == CANCELLED else GIVE_UP
        return [(give_up, (finish.error_text, 1 if finish.is_uncounted else 0, *claimed))]

    # ---- the task was changed, cancelled or awaited while it ran: statement by statement in an open transaction

    def finish_changed(self, place: Rows, finish: Finish) -> tuple[Outcome, list[GivenUp]]:
        """In progress → new, cancelled or as asked, with its children; the outcome, and the children given up."""
        claimed = (finish.task.id, finish.task.claim)
        # The first write locks the row if the claim holds: otherwise the row could change between two writes.
        if not place.write(RENEW, (self._lease_seconds, *claimed)):
            return Outcome.LOST, []
        if place.write(RUN_AGAIN, claimed):
            return Outcome.RUN_AGAIN, []
        if place.write(CANCEL, (*claimed, int(finish.error_text is not None or finish.next_stage is not None))):
            return Outcome.CANCELLED, end(place, finish.task.id, Status.CANCELLED)
        return self._as_asked(place, finish)

    def complete_late(self, place: Rows, finish: Finish) -> Outcome:
        """Fatal, lost → as asked, for a task that may start only once and whose worker is alive."""
        if not place.write(RESUME, (finish.task.id, finish.task.claim)):
            return Outcome.LOST
        return self._as_asked(place, finish)[0]

    def _as_asked(self, place: Rows, finish: Finish) -> tuple[Outcome, list[GivenUp]]:
        matched = [place.write(sql.replace(NOT_AWAITED, ""), values) for sql, values in self.of(finish)]
        outcome = Outcome.AS_ASKED if all(matched) else self.keep(place, finish)
        is_over = finish.is_end and outcome is not Outcome.LOST
        return outcome, end(place, finish.task.id, _status_after(finish)) if is_over else []

    def keep(self, place: Rows, finish: Finish) -> Outcome:
        """In progress → done for a completed task of ours whose row the database did not delete."""
        is_done = finish.error_text is None and finish.next_stage is None
        is_kept = is_done and place.write(KEEP_UNDELETED, (finish.task.id, finish.task.claim)) == 1
        return Outcome.KEPT if is_kept else Outcome.LOST


def _status_after(finish: Finish) -> Status:
    if finish.error_text is None:
        return Status.DONE
    return Status.CANCELLED if finish.error_text == CANCELLED else Status.FATAL


def _with_result(mark: str) -> str:
    return mark.replace("SET status", "SET result = ?, status", 1)


class Finishes:
    """The verbs of a worker at the end of a task and at the start of the next."""

    def __init__(self, database: Database, mode: str, lease_seconds: int, given_up: list[GivenUp]) -> None:
        """Appends tasks that become fatal with a finished one to `given_up`."""
        self._database = database
        self._given_up = given_up
        self._writes = FinishWrites(mode, lease_seconds)
        self._lease_seconds = lease_seconds

    def advance(
        self, finishes: Sequence[Finish], start: Start | None, is_repeated: bool = False
    ) -> tuple[list[Outcome], bool]:
        """Finish tasks and start the next one in one commit.

        Finishes: in progress → gone, archived, done, error, fatal, cancelled, or new. Start: in progress, unstarted →
        in progress, started. Returns each finish's Outcome, and whether the task was started.

        LOST: the row no longer has our claim. `is_repeated`: an earlier call with the same finishes may have taken
        effect; then a row with its result is not LOST. With finishes and a start, a held row raises Conflict at once:
        the caller then writes only the finishes, which must not wait for the row of an unstarted task.
        """
        writes = [self._writes.of(finish) for finish in finishes]
        flat = [write for several in writes for write in several]
        if start is not None:
            flat.append((START, (start.max_attempts, self._lease_seconds, start.task.id, start.task.claim)))
        if not flat:
            return [], False
        conflict_seconds = 0 if finishes and start is not None else self._database.conflict_seconds
        are_apart = all(len(several) == 1 for several in writes)  # each task has its row
        matched, in_doubt = self._database.write_together(flat, conflict_seconds, are_apart)
        in_doubt = in_doubt or is_repeated
        counts = iter(matched)
        try:
            outcomes = [
                self._outcome_of(finish, [next(counts) for _ in several], in_doubt)
                for finish, several in zip(finishes, writes, strict=True)
            ]
            has_started = start is not None and (bool(matched[-1]) or (in_doubt and self._was_started(start.task)))
        except DatabaseError as error:
            error.in_doubt = True  # the writes that matched are written
            raise
        return outcomes, has_started

    def _outcome_of(self, finish: Finish, matched: Sequence[int], in_doubt: bool) -> Outcome:
        """The outcome of a finish by the rows that its writes matched; does what they could not."""
        if all(matched):
            return Outcome.AS_ASKED
        if matched[0]:  # a move whose row was not deleted
            return self._in_transaction(self._writes.keep, finish)[0]
        outcome = self._effect_of(finish) if in_doubt else Outcome.LOST
        return self._finish_changed(finish) if outcome is Outcome.LOST else outcome

    def _finish_changed(self, finish: Finish) -> Outcome:
        """Finish a task that was changed, cancelled or awaited while it ran."""
        (outcome, given_up), in_doubt = self._in_transaction(self._writes.finish_changed, finish)
        self._given_up += given_up
        if outcome is Outcome.LOST and in_doubt:
            outcome = self._effect_of(finish)
        if outcome is Outcome.LOST and finish.error_text is None:
            return self._complete_late(finish)
        return outcome

    def _complete_late(self, finish: Finish) -> Outcome:
        """Fatal, lost → gone, archived or done for a task that may start only once, unless a person changed it."""
        outcome, in_doubt = self._in_transaction(self._writes.complete_late, finish)
        was_written = in_doubt and outcome is Outcome.LOST and self._effect_of(finish) is not Outcome.LOST
        return Outcome.AS_ASKED if was_written else outcome

    def _in_transaction(self, work: Callable[[Database, Finish], T], finish: Finish) -> tuple[T, bool]:
        policy = RetryPolicy(Scope.TRANSACTION, self._database.conflict_seconds)
        return self._database.run_in_doubt(policy, work, self._database, finish)

    # ---- while the task runs

    # After a rerun the row gets no limit: it may name another callable.
    LIMIT_ATTEMPTS = """
        UPDATE {table} {by_key}
        SET max_attempts = COALESCE(max_attempts, CASE WHEN attempts > 0 THEN ? END), due_at = {after},
            updated_at = {now}
        WHERE id = ? AND status = 1 AND claim = ?
    """

    def limit_attempts(self, task: ClaimedTask, max_attempts: int) -> bool:
        """Record a limit that was unknown at the task's start, and renew the lease. Whether the claim still holds."""
        values = (max_attempts, self._lease_seconds, task.id, task.claim)
        return self._database.change(self.LIMIT_ATTEMPTS, values) == 1

    def renew(self, task: ClaimedTask) -> bool:
        """Renew the lease of a started task. Whether the claim still holds."""
        return self._database.change(RENEW, (self._lease_seconds, task.id, task.claim)) == 1

    HAS_RERUN = """
        SELECT 1 FROM {table} WHERE id = ? AND status = 1 AND claim = ? AND attempts = 0 AND {is_cancelled} = 0
    """

    def has_rerun(self, task: ClaimedTask) -> bool:
        return bool(self._database.fetch(self.HAS_RERUN, (task.id, task.claim)))

    # A lost task that may start only once keeps its token and counts as claimed, because it can be completed late. A
    # person's UPDATE may also leave the token in a cancelled task that is new again.
    STILL_CLAIMED = """
        SELECT id, CASE WHEN status = 1 THEN {is_cancelled} ELSE 0 END FROM {table} {by_key}
        WHERE id IN ({ids}) AND claim = ?
    """
    WRITE_PROGRESS = """
        UPDATE {table} {by_key} SET progress = ?, updated_at = {now} WHERE id IN ({ids}) AND status = 1 AND claim = ?
    """

    def still_claimed(self, tasks: Sequence[ClaimedTask]) -> dict[int, bool]:
        """The tasks of one call that still have their claim, by id; whether each was cancelled."""
        rows = self._database.fetch_ids(self.STILL_CLAIMED, [task.id for task in tasks], (tasks[0].claim,))
        return {row[0]: bool(row[1]) for row in rows}

    def write_progress(self, tasks: Sequence[ClaimedTask], progress: str, conflict_seconds: float) -> int:
        """Store the progress of the tasks of one call; how many still have their claim.

        Raises Conflict if a row is held for `conflict_seconds`.
        """
        database, ids = self._database, sorted([task.id for task in tasks])
        # Not repeatable: progress is not worth a wait for an unavailable database.
        policy = RetryPolicy(Scope.STATEMENT, conflict_seconds, is_repeatable=False)
        sql = with_ids(self.WRITE_PROGRESS, ids)
        return database.run(policy, database.write, sql, (progress, *ids, tasks[0].claim))

    # ---- the effect of an earlier try, as the row shows it

    FIND = "SELECT status, claim, started_at IS NOT NULL, error_text, attempts, stage FROM {table} WHERE id = ?"

    LOOK_FOR_CLAIM = "SELECT 1 FROM {table} WHERE id = ? AND claim = ?"

    def find_committed(self, finish: Finish, outcome: Outcome) -> Outcome | None:
        """The outcome of a finish that was written on another connection; None while the row has our claim."""
        if self._database.fetch(self.LOOK_FOR_CLAIM, (finish.task.id, finish.task.claim)):
            return None
        return outcome if self._effect_of(finish) is not Outcome.LOST else Outcome.LOST

    def resolve(self, finish: Finish, outcome: Outcome) -> Outcome | None:
        """The same, but final: it renews the lease, and so waits for a transaction that holds the row."""
        renewal = (self._lease_seconds, finish.task.id, finish.task.claim)
        if self._database.change(RENEW, renewal) == 1:
            return None
        return outcome if self._effect_of(finish) is not Outcome.LOST else Outcome.LOST

    def _was_started(self, task: ClaimedTask) -> bool:
        row = self._database.fetch_first(self.FIND, (task.id,))
        return row is not None and row[:3] == (Status.IN_PROGRESS, task.claim, 1)

    def _effect_of(self, finish: Finish) -> Outcome:
        """The outcome of an earlier try of this finish; LOST if the row does not show its effect."""
        row = self._database.fetch_first(self.FIND, (finish.task.id,))
        if row is None:
            return Outcome.AS_ASKED if finish.error_text is None else Outcome.LOST
        status, claim, _, error_text, attempts, stage = row
        if claim == finish.task.claim:
            return Outcome.LOST
        if finish.next_stage is not None and stage > finish.task.stage:
            return Outcome.AS_ASKED
        if status == Status.NEW and attempts == 0:
            return Outcome.RUN_AGAIN
        if finish.next_stage is not None:
            return Outcome.CANCELLED if error_text == CANCELLED else Outcome.LOST
        if finish.error_text is None and error_text != CANCELLED:
            return Outcome.AS_ASKED if status == Status.DONE else Outcome.LOST
        # By its text, not its status: the task may have become new since.
        return {finish.error_text: Outcome.AS_ASKED, CANCELLED: Outcome.CANCELLED}.get(error_text, Outcome.LOST)
