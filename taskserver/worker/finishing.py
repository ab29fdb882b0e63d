"""Pending finishes: collected here, and written together with the start of the next task.

The finish of one task and the start of the next share a commit. Both are on disk before the next task's code runs, and
a task costs one commit instead of two. Tasks of one round (rounds.py) or call (batch.py) are finished together.

    add → save_and_start (with the next start), save, or save_old (between tasks, and by the heartbeat during one)
        → settle: the outcome is counted and logged (reporting.py)
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
"""How long finishes of a round wait for others; less if the lease is short."""
MAX_UNSAVED = 50
"""Pending finishes that need a statement each: a whole claim may consist of bad rows."""
MAX_KEPT_BYTES = 16 * 1024
"""Longer arguments of ended tasks are dropped, as many finishes may be pending."""
TOO_LONG_RESULT = "is longer than the server takes (max_allowed_packet)"
TOO_LONG_TEXT = "Fatal: what it returned, for the next stage, is longer than the server takes (max_allowed_packet)"


class Finishing:
    """The pending finishes of one run. If a write raises DatabaseError, the rest stays pending."""

    def __init__(self, store: Store, reporter: Reporter) -> None:
        self._store = store
        self._batches = Batches(store)
        self._reporter = reporter
        self._lock = RLock()
        """Held while a thread adds or writes."""
        self._ended: list[Attempt] = []
        self._save_seconds = min(SAVE_SECONDS, store.lease_seconds / 12)
        self._save_at = 0.0
        """When the oldest of them is written."""
        self._not_plain = 0
        """How many of them need a statement each."""
        self._in_doubt = False
        """Whether an error left it unknown if they are written."""
        self.has_failed = False
        """Whether any of them failed, or was a bad row."""
        self.has_due = False
        """Whether an ended task may have made something due, such as a task that waited for it."""

    # ---- collect

    def add(self, attempt: Attempt, finish: Finish, failure: Failure | None = None) -> None:
        """Add the finish of an attempt; `failure` is for the failure hook."""
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
        """Write the pending finishes: one statement for all plain completions."""
        with self._lock:
            try:
                self._complete_plain()
                self._save_rest()
            except DatabaseError:
                self._reporter.report_unrecorded([attempt.task for attempt in self._ended])
                raise
            self._in_doubt = self.has_failed = False

    def save_old(self) -> None:
        """The same if they have waited for a second; the heartbeat's thread calls it, too."""
        # Don't block: the run's thread may hold the lock and wait for rows that this one writes.
        if self._ended and now() >= self._save_at and self._lock.acquire(blocking=False):
            try:
                self.save()
            finally:
                self._lock.release()

    def save_and_start(self, tasks: Sequence[ClaimedTask], limit: int | None) -> set[int]:
        """The same, and start tasks of one claim, in one commit if possible. Returns the started ids.

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
        """Write the plain completions; special rows stay pending."""
        plain = [attempt for attempt in self._ended if attempt.finish.is_plain]
        if len(plain) < 2:
            return
        try:
            completed, in_doubt = self._batches.complete([attempt.task for attempt in plain])
        except DatabaseError as error:
            self._in_doubt = self._in_doubt or error.in_doubt
            if is_refusal(error):  # one row may be the cause: write each by itself
                return
            raise
        self._in_doubt = self._in_doubt or in_doubt
        self._ended = [attempt for attempt in self._ended if attempt.task.id not in completed]
        for attempt in plain:
            if attempt.task.id in completed:
                self._reporter.report(attempt, Outcome.AS_ASKED)

    def _complete_and_start(self, tasks: Sequence[ClaimedTask], limit: int) -> bool:
        """Write plain completions and start other tasks of the claim: all in one commit, or nothing."""
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
            self._settle_all([Outcome.AS_ASKED] * len(ended))
        return is_done

    # ---- a statement for each

    def _save_and_start_one(self, start: Start) -> bool:
        """Write the pending finishes and a start in one commit. Returns whether the start found its claim.

        If one row is locked or refused, the others are still written.
        """
        try:
            return self._advance(start)
        except DatabaseError as error:
            if not self._ended or not (_is_refused_row(error) or isinstance(error, Conflict)):
                raise
            in_doubt = error.in_doubt
        self.save()
        self._in_doubt = in_doubt
        return self._advance(start)

    def _save_rest(self) -> None:
        """Write the pending finishes in one commit; each by itself if one row is refused."""
        if len(self._ended) > 1:
            try:
                self._advance()
            except DatabaseError as error:
                if not _is_refused_row(error):
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
                if not (_is_refused_row(error) and self._simplify_finish(error)):
                    raise

    def _advance(self, start: Start | None = None) -> bool:
        try:
            finishes = [attempt.finish for attempt in self._ended]
            outcomes, has_started = self._store.finishes.advance(finishes, start, self._in_doubt)
        except DatabaseError as error:
            self._in_doubt = self._in_doubt or error.in_doubt
            raise
        self._settle_all(outcomes)
        return has_started

    def _settle_all(self, outcomes: Sequence[Outcome]) -> None:
        several, self._ended = self._ended, []
        self._not_plain, self._in_doubt, self.has_failed = 0, False, False
        for attempt, outcome in zip(several, outcomes, strict=True):
            self.settle(attempt, attempt.finish, outcome)

    def _simplify_finish(self, error: DatabaseError) -> bool:
        """Change the one pending finish so that its row can be written; False if there is nothing to change.

        A text that is too long is left out. The row of a completed task stays, marked done.
        """
        attempt = self._ended[0]
        finish = attempt.finish
        if isinstance(error, TooLong):
            if finish.next_stage is not None:
                attempt.finish = Finish(attempt.task, TOO_LONG_TEXT)  # no retry would help
            elif finish.result is not None:
                self._reporter.report_dropped_result(attempt.task, TOO_LONG_RESULT)
                attempt.finish = finish._replace(result=None)
        elif finish.error_text is None and finish.next_stage is None and finish.keep_reason is None:
            attempt.finish = finish._replace(keep_reason=str(error))
        return attempt.finish is not finish


def _is_refused_row(error: DatabaseError) -> bool:
    """Whether the database refuses this row, but may accept others."""
    return is_refusal(error) or isinstance(error, TooLong)
