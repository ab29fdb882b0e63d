"""The writes that finish a task, as SQL and values; sent by finishes.py, batches.py and callers.py.

There are three sets: for a task that nobody touched while it ran; for a task that was changed, cancelled or awaited
meanwhile; and for a task that was given up as lost and completes late.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...model.attempt import Finish, Outcome
from ..words import Write
from .dependencies import GivenUp, end
from .leases import RENEW

if TYPE_CHECKING:
    from ..dialect import Rows

# Guards: a write leaves a row alone that somebody touched while its task ran. That is rare; the write matches nothing
# then, and `FinishWrites.otherwise` follows.
#   attempts > 0        no rerun, which sets attempts to 0
#   is_cancelled = 0    no cancel: a cancelled task is not retried, and has no next stage
#   awaited = 0         no task waits for this one: otherwise its end tells them in the same transaction

IS_OURS = "id = ? AND status = 1 AND claim = ? AND (attempts > 0 OR started_at IS NULL)"
NOT_AWAITED = " AND awaited = 0"
IS_ALONE = f"{IS_OURS}{NOT_AWAITED}"
DELETE = f"DELETE FROM {{table}} WHERE {IS_ALONE}"
MARK = f"""
    UPDATE {{table}} {{by_key}}
    SET status = 2, awaited = 0, claim = NULL, due_at = NULL, error_text = NULL, finished_at = {{now}},
        updated_at = {{now}}
    WHERE {IS_ALONE}
"""
# A move is three writes in one transaction. The first takes the row's lock and says whether the claim still stands. The
# others find only the row that it marked, by a status that nobody else sees.
MARK_TO_MOVE = MARK.replace("status = 2, awaited = 0, claim = NULL,", "status = 6, awaited = 0,")
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
    SET status = 4, claim = NULL, due_at = NULL, finished_at = {now}, updated_at = {now}
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
        """Finish a task that nobody touched while it ran. The first write matches nothing if somebody did."""
        claimed = (finish.task.id, finish.task.claim)
        if finish.next_stage is not None:
            task, group_id, priority, max_attempts, args = finish.next_stage
            return [(NEXT_STAGE, (task, args, group_id, priority, max_attempts, *claimed))]
        if finish.retry_seconds is not None:
            return [(RETRY, (finish.retry_seconds, finish.error_text, *claimed))]
        if finish.error_text is None:
            first, *others = COMPLETE[self._mode] if finish.stays is None else (STAY,)
            complete = (first, claimed) if finish.result is None else (_with_result(first), (finish.result, *claimed))
            return [complete, *((sql, claimed) for sql in others)]
        return [(GIVE_UP, (finish.error_text, 1 if finish.uncount else 0, *claimed))]

    # ---- the task was changed, cancelled or awaited while it ran: statement by statement in an open transaction

    def otherwise(self, place: Rows, finish: Finish) -> tuple[Outcome, list[GivenUp]]:
        """In progress → new, fatal, or as asked, with its children; the outcome, and the children that became fatal."""
        claimed = (finish.task.id, finish.task.claim)
        # The first write takes the row's lock, if the claim stands: else the row could change between two writes.
        if not _write(place, RENEW, self._lease_seconds, *claimed):
            return Outcome.LOST, []
        if _write(place, RUN_AGAIN, *claimed):
            return Outcome.RUN_AGAIN, []
        if _write(place, CANCEL, *claimed, int(finish.error_text is not None or finish.next_stage is not None)):
            return Outcome.CANCELLED, end(place, finish.task.id, is_done=False)
        return self._as_asked(place, finish)

    def late(self, place: Rows, finish: Finish) -> Outcome:
        """Fatal, lost → as asked, for a task that may start only once and whose worker is alive after all."""
        if not _write(place, RESUME, finish.task.id, finish.task.claim):
            return Outcome.LOST
        return self._as_asked(place, finish)[0]

    def _as_asked(self, place: Rows, finish: Finish) -> tuple[Outcome, list[GivenUp]]:
        for number, (sql, values) in enumerate(self.of(finish)):
            if not _write(place, sql.replace(NOT_AWAITED, ""), *values) and not number:
                return Outcome.LOST, []
        given_up = end(place, finish.task.id, finish.error_text is None) if finish.is_end else []
        return Outcome.AS_ASKED, given_up


def _write(place: Rows, sql: str, *values: object) -> int:
    matched: int = place.execute(sql, values).rowcount
    return matched


def _with_result(mark: str) -> str:
    return mark.replace("SET status", "SET result = ?, status", 1)
