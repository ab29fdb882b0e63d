"""Finishes that are not written yet: gathered here, and written together with the start of the next task.

The finish of one task and the start of the next share a commit: both are on the disk before the next task's code runs,
and a task costs one commit instead of two.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import Conflict, DatabaseError, TooLong, is_refusal
from ..model.attempt import Finish, Outcome, Start
from ..stores import Store
from .call import Failure
from .reporting import Ended, Reporter
from .stats import Attempt

MAX_UNSAVED = 50
MAX_UNSAVED_CHARACTERS = 200_000
"""Characters of gathered results and arguments for next stages: a server limits how long a statement may be."""
TOO_LONG_RESULT = "is longer than the server takes (max_allowed_packet)"
TOO_LONG_TEXT = "Fatal: what it returned, for the next stage, is longer than the server takes (max_allowed_packet)"


class Finishing:
    """The finishes of one run's tasks, from the end of each task to the write that records it."""

    def __init__(self, store: Store, reporter: Reporter) -> None:
        self._store = store
        self._reporter = reporter
        self._ended: list[Ended] = []
        self._may_be_saved = False
        """Whether an error in writing the gathered finishes left open if they were written."""
        self.may_have_due = False
        """Whether a task that has ended may have made something due: another task that waited for it, say."""

    # ---- gather

    def add(self, finish: Finish, attempt: Attempt | None, failure: Failure | None = None) -> None:
        """Gather a finish; written with the next start, by `save`, or now where many or long ones have gathered.

        `attempt` is None of a bad row; `failure` is the one that led to this end. Raises DatabaseError.
        """
        self.add_all((Ended(finish, attempt, failure),))
        # Bad rows end unstarted, so a whole claim of them may gather.
        has_text = finish.next_stage is not None or finish.result is not None
        is_long = has_text and self._count_characters() > MAX_UNSAVED_CHARACTERS
        if is_long or len(self._ended) >= MAX_UNSAVED:
            self.save()

    def add_all(self, several: Sequence[Ended], may_be_saved: bool = False) -> None:
        """Gather finishes for the next `save`; `may_be_saved` where an earlier try may have written them."""
        self._ended.extend(several)
        self.may_have_due = self.may_have_due or any(ended.finish.task.awaited for ended in several)
        self._may_be_saved = self._may_be_saved or may_be_saved

    def _count_characters(self) -> int:
        finishes = [ended.finish for ended in self._ended]
        stages = sum(len(finish.next_stage.args or "") for finish in finishes if finish.next_stage is not None)
        return stages + sum(len(finish.result or "") for finish in finishes)

    # ---- write

    def save(self) -> None:
        """Write the gathered finishes. Raises DatabaseError."""
        if not self._ended:
            return
        try:
            self.save_and_start(None)
        except DatabaseError:  # all are gathered again, those that were to be written apart, too
            self._reporter.report_unrecorded([ended.finish.task for ended in self._ended])
            raise

    def save_and_start(self, start: Start | None) -> bool:
        """Write the gathered finishes, and the start of the next task. Whether that start still found its claim.

        Raises DatabaseError, and then still has the finishes.
        """
        try:
            outcomes, started = self._store.finishes.advance(
                [ended.finish for ended in self._ended], start, self._may_be_saved
            )
        except DatabaseError as error:
            self._may_be_saved = self._may_be_saved or error.may_have_taken_effect
            if isinstance(error, TooLong) and len(self._ended) > 1:
                return self._save_one_by_one(start)
            if isinstance(error, TooLong) and (self._drop_results() or self._end_pipelines()):
                return self.save_and_start(start)
            refused = is_refusal(error)
            if (refused or isinstance(error, Conflict)) and self._ended and start is not None:
                # Apart: whoever holds the row that is to be started must not keep the others from their ends.
                self.save()
                self._may_be_saved = error.may_have_taken_effect
                return self.save_and_start(start)
            if refused and len(self._ended) > 1:
                return self._save_one_by_one(start)
            if refused and self._let_stay(str(error)):
                return self.save_and_start(None)
            raise
        several, self._ended, self._may_be_saved = self._ended, [], False
        for ended, outcome in zip(several, outcomes, strict=True):
            self.settle(ended, outcome)
        return started

    def settle(self, ended: Ended, outcome: Outcome) -> None:
        """Report a task whose finish was written with this Outcome."""
        if outcome is Outcome.LOST:
            if ended.attempt is None:
                self._reporter.report_unstarted(ended.finish.task)
            else:
                self._reporter.report_lost(ended.finish.task, "while it ran; its result is dropped")
            return
        if outcome is not Outcome.AS_ASKED:
            self.may_have_due = True
        self._reporter.report(ended, outcome)

    # ---- texts, and ends, that a server does not take

    def _save_one_by_one(self, start: Start | None) -> bool:
        """Write each finish apart, then the start: one that is too long must not cost the others their texts."""
        if start is not None:
            self.save()
            return self.save_and_start(start)
        several, may_be_saved = self._ended, self._may_be_saved
        try:
            while several:
                self._ended, self._may_be_saved, several = several[:1], may_be_saved, several[1:]
                self.save_and_start(None)
        finally:
            self._ended += several  # after an error
        return False

    def _let_stay(self, why: str) -> bool:
        """Have the gathered finish, if there is one, leave its row as a done one. Whether it would not have."""
        for ended in self._ended:
            finish = ended.finish
            if finish.error_text is None and finish.next_stage is None and finish.stays is None:
                self._ended = [ended._replace(finish=finish._replace(stays=why))]
                return True
        return False

    def _drop_results(self) -> bool:
        """Drop the results of the gathered finishes. Whether there were any."""
        are_kept = [ended.finish.result is not None for ended in self._ended]
        for ended, is_kept in zip(self._ended, are_kept, strict=True):
            if is_kept:
                self._reporter.report_unkept_result(ended.finish.task, TOO_LONG_RESULT)
        self._ended = [ended._replace(finish=ended.finish._replace(result=None)) for ended in self._ended]
        return any(are_kept)

    def _end_pipelines(self) -> bool:
        """Make the gathered finishes fatal that have a next stage: no retry would help. Whether there were any."""
        are_stages = [ended.finish.next_stage is not None for ended in self._ended]
        self._ended = [
            ended._replace(finish=Finish(ended.finish.task, TOO_LONG_TEXT)) if is_stage else ended
            for ended, is_stage in zip(self._ended, are_stages, strict=True)
        ]
        return any(are_stages)
