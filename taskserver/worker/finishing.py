"""Finishes that are not written yet: gathered here, and written together with the start of the next task.

The finish of one task and the start of the next share a commit: both are on the disk before the next task's code runs,
and a task costs one commit instead of two. Tasks of one round (shared.py) are finished together; while one of them runs
for long, the heartbeat's thread writes the finishes of those that ended before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import RLock

from ..errors import Conflict, DatabaseError, TooLong, is_refusal
from ..model.attempt import Finish, Outcome, Start
from ..model.task import ClaimedTask
from ..stores import Store
from ..stores.queue.batches import Batches
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
        self._batches = Batches(store)
        self._reporter = reporter
        self._in_use = RLock()
        """Held by a thread that gathers or writes."""
        self._ended: list[Ended] = []
        self._characters = 0
        """Characters of the texts among them."""
        self._most = MAX_UNSAVED
        """So many finishes are written at once."""
        self._may_be_saved = False
        """Whether an error in writing the gathered finishes left open if they were written."""
        self.may_have_due = False
        """Whether a task that has ended may have made something due: another task that waited for it, say."""

    # ---- gather

    def add(self, finish: Finish, attempt: Attempt | None, failure: Failure | None = None) -> None:
        """Gather a finish; written with the next start, by `save`, or now where many or long ones have gathered.

        `attempt` is None of a bad row; `failure` is the one that led to this end. Raises DatabaseError.
        """
        with self._in_use:
            self._ended.append(Ended(finish, attempt, failure))
            self.may_have_due = self.may_have_due or bool(finish.task.awaited)
            self._characters += len(finish.next_stage.args or "") if finish.next_stage else len(finish.result or "")
            # Bad rows end unstarted, so a whole claim of them may gather.
            if self._characters > MAX_UNSAVED_CHARACTERS or len(self._ended) >= self._most:
                self.save_together()

    def add_all(self, several: Sequence[Ended], may_be_saved: bool = False) -> None:
        """Gather finishes for the next `save`; `may_be_saved` where an earlier try may have written them."""
        with self._in_use:
            self._ended.extend(several)
            self.may_have_due = self.may_have_due or any(ended.finish.task.awaited for ended in several)
            self._may_be_saved = self._may_be_saved or may_be_saved

    def gather(self, count: int) -> None:
        """Have the finishes of so many tasks, which were started together, wait for the next start, or a save."""
        self._most = max(count + 1, MAX_UNSAVED)

    # ---- write

    def save(self) -> None:
        """Write the gathered finishes. Raises DatabaseError."""
        with self._in_use:
            try:
                self._save()
            except DatabaseError:  # all are gathered again, those that were to be written apart, too
                self._reporter.report_unrecorded([ended.finish.task for ended in self._ended])
                raise

    def save_together(self) -> None:
        """The same, with one statement for the tasks of one claim that are simply done."""
        with self._in_use:
            try:
                self._complete_together()
            except DatabaseError:
                self._reporter.report_unrecorded([ended.finish.task for ended in self._ended])
                raise
            self.save()

    def save_failures(self) -> None:
        """Write the gathered finishes where TASKSERVER_ON_FAILURE is to hear of one, and call it. Raises DatabaseError.

        To be called while no task is started.
        """
        if any(self._reporter.is_to_tell(ended) for ended in self._ended):
            self.save_together()
        self._reporter.tell_failures()

    def save_together_and_start(self, tasks: Sequence[ClaimedTask], max_attempts: int) -> bool:
        """The same and the start of other tasks of that claim in one commit. Whether all of it was done, or nothing.

        Nothing where there is more to write than that tasks are done. Raises DatabaseError.
        """
        with self._in_use:
            several = self._ended
            if not several or not all(ended.finish.is_plain for ended in several):
                return False
            try:
                is_done, may_be_done = self._batches.complete_and_start(
                    [ended.finish.task for ended in several], tasks, max_attempts
                )
            except DatabaseError as error:
                self._may_be_saved = self._may_be_saved or error.may_have_taken_effect
                if is_refusal(error):
                    return False
                self._reporter.report_unrecorded([ended.finish.task for ended in several])
                raise
            self._may_be_saved = self._may_be_saved or may_be_done
            if is_done:
                self._ended, self._characters, self._may_be_saved = [], 0, False
                for ended in several:
                    self._reporter.report(ended, Outcome.AS_ASKED)
            return is_done

    def save_meanwhile(self) -> None:
        """The same, from another thread, while a task's code has the run's own. Raises DatabaseError."""
        # The run's own thread may be done with the task, and wait for the connection that this one uses.
        if self._in_use.acquire(blocking=False):
            try:
                self._complete_together()
                self._save()
            finally:
                self._in_use.release()

    def _complete_together(self) -> None:
        """Write the finishes of tasks that are simply done; whatever is special about a row leaves it gathered."""
        plain = [ended for ended in self._ended if ended.finish.is_plain]
        if len(plain) < 2:
            return
        try:
            completed, may_be_completed = self._batches.complete([ended.finish.task for ended in plain])
        except DatabaseError as error:
            self._may_be_saved = self._may_be_saved or error.may_have_taken_effect
            if is_refusal(error):  # one of them may be to blame: each is written apart
                return
            raise
        self._may_be_saved = self._may_be_saved or may_be_completed
        self._ended = [ended for ended in self._ended if ended.finish.task.id not in completed]
        for ended in plain:
            if ended.finish.task.id in completed:
                self._reporter.report(ended, Outcome.AS_ASKED)

    def _save(self) -> None:
        self._characters = 0
        if self._ended:
            self.save_and_start(None)
        self._may_be_saved = False

    def save_and_start(self, start: Start | None) -> bool:
        """Write the gathered finishes, and the start of the next task. Whether that start still found its claim.

        Raises DatabaseError, and then still has the finishes.
        """
        with self._in_use:
            return self._save_and_start(start)

    def _save_and_start(self, start: Start | None) -> bool:
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
        with self._in_use:
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
