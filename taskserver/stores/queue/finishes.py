"""Finishes: ended tasks and the next start, in one commit.

A finish that matched nothing was overtaken: by its own earlier try, by a rerun, a cancel or a dependency, or by another
worker. The row tells by which of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from ...errors import DatabaseError
from ...model.attempt import Finish, Outcome, Start
from ...model.task import CANCELLED, ClaimedTask, Status
from ..database import Database, T
from ..retrying import RetryPolicy, Scope
from .finish_writes import FinishWrites
from .leases import RENEW, START

if TYPE_CHECKING:
    from .dependencies import GivenUp


class Finishes:
    """The verbs of a worker at the end of a task, and at the start of the next."""

    def __init__(self, database: Database, mode: str, lease_seconds: int, given_up: list[GivenUp]) -> None:
        """Tasks that become fatal because of a finished one are appended to `given_up`."""
        self._database = database
        self._given_up = given_up
        self._writes = FinishWrites(mode, lease_seconds)
        self._lease_seconds = lease_seconds

    def advance(
        self, finishes: Sequence[Finish], start: Start | None, is_repeated: bool = False
    ) -> tuple[list[Outcome], bool]:
        """Finish tasks and start the next one in one commit.

        Finishes: in progress → gone, archived, done, error, fatal, or new as the next stage. Start: in progress,
        unstarted → in progress, started. Returns each finish's Outcome, and whether the task was started.

        LOST means that the row does not carry our claim any more. `is_repeated` says that an earlier call with the same
        finishes may have taken effect: a row that is as that would have left it is not LOST. Raises DatabaseError.
        With finishes and a start, a held row raises Conflict at once: the caller then writes the finishes alone, as
        ended tasks must not wait for the row of one that has not begun.
        """
        writes = [self._writes.of(finish) for finish in finishes]
        # Only a finish's first write tells: the further writes of a move touch the row that it marked.
        firsts = list(accumulate((len(several) for several in writes), initial=0))[:-1]
        flat = [write for several in writes for write in several]
        if start is not None:
            flat.append((START, (start.max_attempts, self._lease_seconds, start.task.id, start.task.claim)))
        if not flat:
            return [], False
        conflict_seconds = 0 if finishes and start is not None else self._database.conflict_seconds
        are_apart = all(len(several) == 1 for several in writes)  # each task has its row
        matched, in_doubt = self._database.write_together(flat, conflict_seconds, are_apart)
        in_doubt = in_doubt or is_repeated
        try:
            outcomes = [
                Outcome.AS_ASKED if matched[first] else self._find_outcome(finish, in_doubt)
                for finish, first in zip(finishes, firsts, strict=True)
            ]
            has_started = start is not None and (bool(matched[-1]) or (in_doubt and self._was_started(start.task)))
        except DatabaseError as error:
            error.may_have_taken_effect = True  # the writes that matched are written
            raise
        return outcomes, has_started

    def _find_outcome(self, finish: Finish, in_doubt: bool) -> Outcome:
        """The outcome of a finish whose write matched nothing."""
        outcome = self._effect_of(finish) if in_doubt else Outcome.LOST
        return self._finish_otherwise(finish) if outcome is Outcome.LOST else outcome

    def _finish_otherwise(self, finish: Finish) -> Outcome:
        """Finish a task that was changed, cancelled or awaited while it ran."""
        (outcome, given_up), in_doubt = self._in_transaction(self._writes.otherwise, finish)
        self._given_up += given_up
        if outcome is Outcome.LOST and in_doubt:
            outcome = self._effect_of(finish)
        if outcome is Outcome.LOST and finish.error_text is None:
            return self._complete_late(finish)
        return outcome

    def _complete_late(self, finish: Finish) -> Outcome:
        """fatal, lost → gone, archived or done for a task that may start once only, unless a person changed it."""
        outcome, in_doubt = self._in_transaction(self._writes.late, finish)
        was_written = in_doubt and outcome is Outcome.LOST and self._effect_of(finish) is not Outcome.LOST
        return Outcome.AS_ASKED if was_written else outcome

    def _in_transaction(self, work: Callable[[Database, Finish], T], finish: Finish) -> tuple[T, bool]:
        policy = RetryPolicy(Scope.TRANSACTION, self._database.conflict_seconds)
        return self._database.run_in_doubt(policy, work, self._database, finish)

    # ---- the effect of an earlier try, by the row

    FIND = "SELECT status, claim, started_at IS NOT NULL, error_text, attempts, stage FROM {table} WHERE id = ?"

    LOOK_FOR_CLAIM = "SELECT 1 FROM {table} WHERE id = ? AND claim = ?"

    def find_committed(self, finish: Finish, outcome: Outcome) -> Outcome | None:
        """The outcome of a finish that was written on another connection; None while the row carries our claim."""
        if self._database.fetch(self.LOOK_FOR_CLAIM, (finish.task.id, finish.task.claim)):
            return None
        return outcome if self._effect_of(finish) is not Outcome.LOST else Outcome.LOST

    def find_out(self, finish: Finish, outcome: Outcome) -> Outcome | None:
        """The same, once no transaction can change it any more: waits for one that has the row's lock, and renews."""
        renewal = (self._lease_seconds, finish.task.id, finish.task.claim)
        if self._database.change(RENEW, renewal) == 1:
            return None
        return outcome if self._effect_of(finish) is not Outcome.LOST else Outcome.LOST

    def _was_started(self, task: ClaimedTask) -> bool:
        row = self._database.fetch_first(self.FIND, (task.id,))
        return row is not None and row[:3] == (Status.IN_PROGRESS, task.claim, 1)

    def _effect_of(self, finish: Finish) -> Outcome:
        """The outcome of an earlier try of this finish; LOST where the row is not as that try would have left it."""
        row = self._database.fetch_first(self.FIND, (finish.task.id,))
        if row is None:
            return Outcome.AS_ASKED if finish.error_text is None else Outcome.LOST
        status, claim, _, error_text, attempts, stage = row
        if claim == finish.task.claim:
            return Outcome.LOST
        if finish.next_stage is not None and stage > finish.task.stage:
            return Outcome.AS_ASKED  # whatever became of the row since
        if status == Status.NEW and attempts == 0:
            return Outcome.RUN_AGAIN
        if finish.next_stage is not None:
            return Outcome.CANCELLED if error_text == CANCELLED else Outcome.LOST
        if finish.error_text is None and error_text != CANCELLED:
            return Outcome.AS_ASKED if status == Status.DONE else Outcome.LOST
        # By its text, not its status: the task may have been woken since.
        return {finish.error_text: Outcome.AS_ASKED, CANCELLED: Outcome.CANCELLED}.get(error_text, Outcome.LOST)
