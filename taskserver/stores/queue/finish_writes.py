"""The writes that finish a task, as SQL and values; sent by finishes.py, batches.py and callers.py.

There are three sets: for a task that nobody touched while it ran; for a task that was changed, cancelled or awaited
meanwhile; and for a task that was given up as lost and completes late.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...model.attempt import Finish, Outcome
from ..statements import Write
from .leases import RENEW

# Guards: a write leaves a row alone that somebody touched while its task ran. That is rare; the write matches nothing
# then, and `FinishWrites.otherwise` follows.
#   attempts > 0        no rerun, which sets attempts to 0
#   is_cancelled = 0    no cancel: a cancelled task is not retried, and has no next stage
#   awaited = 0         no task waits for this one; a waiting task is to be told of its end

IS_OURS = "id = ? AND status = 1 AND claim = ? AND (attempts > 0 OR started_at IS NULL)"
IS_ALONE = f"{IS_OURS} AND awaited = 0"
DELETE = f"DELETE FROM {{table}} WHERE {IS_ALONE}"
MARK = f"""
    UPDATE {{table}} {{by_key}}
    SET status = 2, claim = NULL, due_at = NULL, error_text = NULL, finished_at = {{now}}, updated_at = {{now}}
    WHERE {IS_ALONE}
"""
# A move is three writes in one transaction. The first takes the row's lock and says whether the claim still stands. The
# others find only the row that it marked, by a status that nobody else sees.
MARK_TO_MOVE = MARK.replace("status = 2, claim = NULL,", "status = 6,")
ARCHIVE = """
    INSERT INTO {done} ({columns}) SELECT {archived_columns} FROM {table}
    WHERE id = ? AND status = 6 AND claim = ?
"""
DELETE_ARCHIVED = "DELETE FROM {table} WHERE id = ? AND status = 6 AND claim = ?"
COMPLETE = {"delete": (DELETE,), "mark": (MARK,), "move": (MARK_TO_MOVE, ARCHIVE, DELETE_ARCHIVED)}
# A row that should have gone must not keep its key from the next task.
STAY = MARK.replace("status = 2,", "status = 2, unique_key = NULL,")
RETRY = f"""
    UPDATE {{table}} {{by_key}}
    SET status = 3, claim = NULL, due_at = {{after}}, error_text = ?, updated_at = {{now}}
    WHERE {IS_OURS} AND {{is_cancelled}} = 0
"""
GIVE_UP = f"""
    UPDATE {{table}} {{by_key}}
    SET status = 4, claim = NULL, due_at = NULL, error_text = ?,
        attempts = attempts - CASE WHEN attempts > 0 THEN ? ELSE 0 END, finished_at = {{now}},
        updated_at = {{now}}
    WHERE {IS_ALONE} AND ({{is_cancelled}} = 0 OR started_at IS NULL)
"""
# → done, fatal, with an instant in due_at: the sign that the tasks which wait for this one are to be told. In the modes
# delete and move, too, the row stays until they are.
MARK_AWAITED = MARK.replace("due_at = NULL", "due_at = {now}").replace("awaited = 0", "awaited <> 0")
GIVE_UP_AWAITED = GIVE_UP.replace("due_at = NULL", "due_at = {now}").replace("awaited = 0", "awaited <> 0")
# → new, as the next stage of its pipeline.
NEXT_STAGE = f"""
    UPDATE {{table}} {{by_key}}
    SET status = 0, task = ?, args = ?, group_id = COALESCE(?, group_id), priority = COALESCE(?, priority),
        max_attempts = ?, attempts = 0, stage = stage + 1, claim = NULL, due_at = NULL, started_at = NULL,
        error_text = NULL, progress = NULL, updated_at = {{now}}
    WHERE {IS_OURS} AND {{is_cancelled}} = 0
"""
# A rerun came while the task ran → new, however the attempt ended.
RUN_AGAIN = """
    UPDATE {table} {by_key} SET status = 0, claim = NULL, due_at = NULL, error_text = NULL, updated_at = {now}
    WHERE id = ? AND status = 1 AND claim = ? AND started_at IS NOT NULL AND attempts = 0 AND {is_cancelled} = 0
"""
# The task was cancelled while it ran → fatal: after an attempt that failed, or in place of the next stage or rerun.
CANCEL = """
    UPDATE {table} {by_key}
    SET status = 4, claim = NULL, due_at = CASE WHEN awaited <> 0 THEN {now} END, finished_at = {now},
        updated_at = {now}
    WHERE id = ? AND status = 1 AND claim = ? AND started_at IS NOT NULL AND {is_cancelled} = 1
        AND (attempts = 0 OR ? = 1)
"""
# A lost task that may start once only: fatal, as its worker seemed to have vanished → in progress, to be completed in
# the same transaction. A person who did something to it meanwhile took its status or its token away.
RESUME = """
    UPDATE {table} {by_key} SET status = 1, attempts = CASE WHEN attempts > 0 THEN attempts ELSE 1 END
    WHERE id = ? AND status = 4 AND claim = ? AND max_attempts = 1 AND error_text LIKE 'lost: %'
"""


class FinishWrites:
    """The writes for a finish, in the mode of a queue."""

    def __init__(self, mode: str, lease_seconds: int) -> None:
        self._mode = mode
        self._lease_seconds = lease_seconds

    # ---- nobody touched the task while it ran

    def of(self, finish: Finish) -> list[Write]:
        """Finish a task that nobody touched while it ran. The first write matches nothing where that is not so."""
        return self._writes(finish, bool(finish.task.awaited))

    def _writes(self, finish: Finish, is_awaited: bool) -> list[Write]:
        claimed = (finish.task.id, finish.task.claim)
        if finish.next_stage is not None:
            task, group_id, priority, max_attempts, args = finish.next_stage
            return [(NEXT_STAGE, (task, args, group_id, priority, max_attempts, *claimed))]
        if finish.retry_seconds is not None:
            return [(RETRY, (finish.retry_seconds, finish.error_text, *claimed))]
        if finish.error_text is None:
            unawaited = COMPLETE[self._mode] if finish.stays is None else (STAY,)
            first, *others = (MARK_AWAITED,) if is_awaited else unawaited
            complete = (first, claimed) if finish.result is None else (_with_result(first), (finish.result, *claimed))
            return [complete, *((sql, claimed) for sql in others)]
        give_up = GIVE_UP_AWAITED if is_awaited else GIVE_UP
        return [(give_up, (finish.error_text, 1 if finish.uncount else 0, *claimed))]

    # ---- the task was changed or cancelled, or became awaited, or is not awaited any more

    def otherwise(self, finish: Finish) -> list[Write]:
        """Finish a task that somebody touched while it ran: → new, → fatal, or as asked, awaited or not; one fits."""
        claimed = (finish.task.id, finish.task.claim)
        is_to_end = finish.error_text is not None or finish.next_stage is not None
        # The first write takes the row's lock, if the claim stands: else the row could change between two writes.
        return [
            (RENEW, (self._lease_seconds, *claimed)),
            (RUN_AGAIN, claimed),
            (CANCEL, (*claimed, int(is_to_end))),
            *self._writes(finish, is_awaited=True),
            *self._writes(finish, is_awaited=False),
        ]

    # ---- the task was given up as lost, and its worker is alive after all

    def late(self, finish: Finish) -> list[Write]:
        """Complete a lost task that may start once only. The first write matches nothing where the row is none."""
        resume = (RESUME, (finish.task.id, finish.task.claim))
        return [resume, *self._writes(finish, is_awaited=True), *self._writes(finish, is_awaited=False)]


def outcome_of(finish: Finish) -> Outcome:
    """The outcome of a finish that was written as asked."""
    return Outcome.AWAITED if finish.task.awaited and finish.is_end else Outcome.AS_ASKED


def outcome_otherwise(finish: Finish, matched: Sequence[int]) -> Outcome:
    """The outcome of the writes of `otherwise`, by the number of rows that each matched."""
    _, was_changed, was_cancelled, was_awaited, was_finished, *_ = matched
    if was_changed:
        return Outcome.RUN_AGAIN
    if was_cancelled:
        return Outcome.CANCELLED
    if was_awaited or was_finished:
        return Outcome.AWAITED if was_awaited and finish.is_end else Outcome.AS_ASKED
    return Outcome.LOST


def _with_result(mark: str) -> str:
    return mark.replace("SET status", "SET result = {any_text}, status", 1)
