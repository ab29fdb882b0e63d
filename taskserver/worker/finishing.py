"""Finishes that are not written yet: gathered here, and written together with the start of the next task.

The finish of one task and the start of the next share a commit: both are on the disk before the next task's code runs,
and a task costs one commit instead of two. Tasks of one round (rounds.py) or call (batch.py) are finished together.

    add → save_and_start (with the next start), save, or save_old (between tasks, and by the heartbeat during one)
        → settle: what the store made of it is counted and logged (reporting.py)
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import RLock

from ..errors import Conflict, DatabaseError, TooLong, is_refusal
from ..interrupts.alarm import now
from ..model.attempt import Finish, Outcome, Start
from ..model.task import ClaimedTask
from ..stores import Store
from ..stores.queue.batches import Batches
from .attempt import Attempt
from .call import Failure
from .reporting import Reporter

SAVE_SECONDS = 1.0
"""Finishes of a round wait so long for others; less if the lease is short."""
MAX_UNSAVED = 50
"""Finishes with a statement each that are written at once. Bad rows end unstarted, so a whole claim may gather."""
MAX_KEPT_BYTES = 16 * 1024
"""Longer arguments of tasks that have ended are dropped: many may wait for their write."""
TOO_LONG_RESULT = "is longer than the server takes (max_allowed_packet)"
TOO_LONG_TEXT = "Fatal: what it returned, for the next stage, is longer than the server takes (max_allowed_packet)"


class Finishing:
    """The finishes of one run's tasks, from the end of each attempt to the write that records it.

    The verbs that write raise DatabaseError, and then still have what is not written.
    """

    def __init__(self, store: Store, reporter: Reporter) -> None:
        self._store = store
        self._batches = Batches(store)
        self._reporter = reporter
        self._lock = RLock()
        """Held by a thread that gathers or writes."""
        self._ended: list[Attempt] = []
        self._save_seconds = min(SAVE_SECONDS, store.lease_seconds / 12)
        self._save_at = 0.0
        """When the oldest of them is to be written."""
        self._not_plain = 0
        """How many of them take a statement each."""
        self._in_doubt = False
        """Whether an error while they were written left open if they are."""
        self.has_failed = False
        """Whether any of them failed, or was a bad row."""
        self.has_due = False
        """Whether a task that has ended may have made something due: another task that waited for it, say."""

    # ---- gather

    def add(self, attempt: Attempt, finish: Finish, failure: Failure | None = None) -> None:
        """Gather how an attempt ends; `failure` is for the failure hook."""
        with self._lock:
            if attempt.task.text_bytes > MAX_KEPT_BYTES:
                attempt.task = attempt.task._replace(args=None, stages=None)
                finish = finish._replace(task=attempt.task)
            attempt.finish, attempt.failure, attempt.call = finish, failure, None
            if not self._ended:
                self._save_at = now() + self._save_seconds
            self._ended.append(attempt)
            self.has_failed = self.has_failed or failure is not None or finish.error_text is not None
            if finish.is_plain:
                return
            self._not_plain += 1
            self.has_due = self.has_due or bool(finish.task.awaited)
            if self._not_plain >= MAX_UNSAVED:
                self.save()

    # ---- write

    def save(self) -> None:
        """Write the gathered finishes: those of tasks that are simply done with one statement."""
        with self._lock:
            try:
                self._complete_plain()
                self._save_rest()
            except DatabaseError:
                self._reporter.report_unrecorded([attempt.task for attempt in self._ended])
                raise
            self._in_doubt = self.has_failed = False

    def save_old(self) -> None:
        """The same once they have waited for a second; the heartbeat's thread calls it, too."""
        # The run's own thread may be done with the task, and wait for the rows that the other one writes.
        if self._ended and now() >= self._save_at and self._lock.acquire(blocking=False):
            try:
                self.save()
            finally:
                self._lock.release()

    def save_and_start(self, tasks: Sequence[ClaimedTask], limit: int | None) -> set[int]:
        """The same, and start tasks of one claim, in one commit if that goes; the ids of the started tasks.

        `limit` is recorded in rows that have none.
        """
        with self._lock:
            if len(tasks) == 1:
                return {tasks[0].id} if self._save_and_start_one(Start(tasks[0], limit)) else set()
            assert limit is not None
            if self._complete_and_start(tasks, limit):
                return {task.id for task in tasks}
            self.save()
            return self._batches.start(tasks, limit)

    def settle(self, attempt: Attempt, finish: Finish, outcome: Outcome) -> None:
        """Report an attempt whose finish was written with this outcome."""
        with self._lock:
            attempt.finish = finish
            if outcome is Outcome.LOST:
                if attempt.is_counted:
                    self._reporter.report_lost(attempt.task, "while it ran; its result is dropped")
                else:
                    self._reporter.report_unstarted(attempt.task)
                return
            self.has_due = self.has_due or outcome is not Outcome.AS_ASKED
            self._reporter.report(attempt, outcome)

    # ---- one statement for several

    def _complete_plain(self) -> None:
        """Write the finishes of tasks that are simply done; whatever is special about a row leaves it gathered."""
        plain = [attempt for attempt in self._ended if attempt.finish.is_plain]
        if len(plain) < 2:
            return
        try:
            completed, in_doubt = self._batches.complete([attempt.task for attempt in plain])
        except DatabaseError as error:
            self._in_doubt = self._in_doubt or error.in_doubt
            if is_refusal(error):  # one of them may be to blame: each is written by itself
                return
            raise
        self._in_doubt = self._in_doubt or in_doubt
        self._ended = [attempt for attempt in self._ended if attempt.task.id not in completed]
        for attempt in plain:
            if attempt.task.id in completed:
                self._reporter.report(attempt, Outcome.AS_ASKED)

    def _complete_and_start(self, tasks: Sequence[ClaimedTask], limit: int) -> bool:
        """Finish tasks that are simply done, and start others of their claim: all in one commit, or nothing."""
        ended = self._ended
        if not ended or not all(attempt.finish.is_plain for attempt in ended):
            return False
        try:
            is_done, in_doubt = self._batches.complete_and_start([one.task for one in ended], tasks, limit)
        except DatabaseError as error:
            self._in_doubt = self._in_doubt or error.in_doubt
            if is_refusal(error):
                return False
            self._reporter.report_unrecorded([one.task for one in ended])
            raise
        self._in_doubt = self._in_doubt or in_doubt
        if is_done:
            self._are_written([Outcome.AS_ASKED] * len(ended))
        return is_done

    # ---- a statement for each

    def _save_and_start_one(self, start: Start) -> bool:
        """Write the gathered finishes and a start in one commit. Whether the start found its claim.

        A row that others hold, or that the database refuses to write, must not cost the other tasks their ends.
        """
        try:
            return self._advance(start)
        except DatabaseError as error:
            if not self._ended or not (_is_of_a_row(error) or isinstance(error, Conflict)):
                raise
            in_doubt = error.in_doubt
        self.save()
        self._in_doubt = in_doubt
        return self._advance(start)

    def _save_rest(self) -> None:
        """Write what is gathered in one commit, and each by itself if that is refused for a row of them."""
        if len(self._ended) > 1:
            try:
                self._advance()
            except DatabaseError as error:
                if not _is_of_a_row(error):
                    raise
        several, in_doubt = self._ended, self._in_doubt
        try:
            while several:
                self._ended, self._in_doubt, several = several[:1], in_doubt, several[1:]
                self._save_one()
        finally:
            self._ended += several  # after an error

    def _save_one(self) -> None:
        while self._ended:
            try:
                self._advance()
            except DatabaseError as error:
                if not (_is_of_a_row(error) and self._ends_otherwise(error)):
                    raise

    def _advance(self, start: Start | None = None) -> bool:
        try:
            finishes = [attempt.finish for attempt in self._ended]
            outcomes, has_started = self._store.finishes.advance(finishes, start, self._in_doubt)
        except DatabaseError as error:
            self._in_doubt = self._in_doubt or error.in_doubt
            raise
        self._are_written(outcomes)
        return has_started

    def _are_written(self, outcomes: Sequence[Outcome]) -> None:
        several, self._ended = self._ended, []
        self._not_plain, self._in_doubt, self.has_failed = 0, False, False
        for attempt, outcome in zip(several, outcomes, strict=True):
            self.settle(attempt, attempt.finish, outcome)

    def _ends_otherwise(self, error: DatabaseError) -> bool:
        """End the one gathered attempt so that its row can be written; False if it is so already.

        A text that is too long is left out; the row of a completed task stays, marked done.
        """
        attempt = self._ended[0]
        finish = attempt.finish
        if isinstance(error, TooLong):
            if finish.next_stage is not None:
                attempt.finish = Finish(attempt.task, TOO_LONG_TEXT)  # no retry would help
            elif finish.result is not None:
                self._reporter.report_unkept_result(attempt.task, TOO_LONG_RESULT)
                attempt.finish = finish._replace(result=None)
        elif finish.error_text is None and finish.next_stage is None and finish.keep_reason is None:
            attempt.finish = finish._replace(keep_reason=str(error))
        return attempt.finish is not finish


def _is_of_a_row(error: DatabaseError) -> bool:
    """Whether the database refuses what one row is to become, and other rows may be written."""
    return is_refusal(error) or isinstance(error, TooLong)
