"""Reports the end of each task: counts it in the run's result and stats, and says it in the log.

A task is reported once the write that ends it has come back (finishing.py), or once its claim is found to be lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from logging import ERROR, INFO, WARNING, getLogger
from typing import NamedTuple

from ..errors import TaskServerError
from ..messages.error_text import NO_TEXT, clear_frames, traceback_of
from ..messages.log_records import ONCE_AN_HOUR, about_task
from ..model.attempt import Finish, Outcome
from ..model.failed_attempt import FailedAttempt
from ..model.task import CANCELLED, ClaimedTask, LostTask
from .call import Failure, aside_seconds, run_foreign
from .failure_hook import FailureHook
from .run_context import RunContext
from .stats import NO_NAME, Attempt

LOG = getLogger("taskserver")


NOT_DELETED = (
    "the database deletes nothing and says nothing; look for row level security, a rule or a trigger on the table"
)


class Ended(NamedTuple):
    """A task that is over, and how."""

    finish: Finish
    attempt: Attempt | None
    """The attempt that ended; None of a bad row, which was not started, or whose start is taken back."""
    failure: Failure | None = None
    """The error that ended the attempt, though what was called for that may have done the task."""


class Reporter:
    """Counts and logs the ends of one run's tasks."""

    def __init__(self, run: RunContext, hook: FailureHook) -> None:
        self._run = run
        self._hook = hook
        self._warned: set[tuple[str, str]] = set()
        """Names of callables whose results could not be kept; each is reported once."""

    # ---- tasks that ended here

    def report(self, ended: Ended, outcome: Outcome) -> None:
        """Count and log a task whose finish is written; `outcome` is any Outcome but LOST."""
        finish = _as_written(ended.finish, outcome)
        self.count_attempt(finish, ended.attempt)
        if finish.error_text is None:
            self._report_done(finish, ended, outcome)
        else:
            self._report_failed(finish, ended)

    def _report_done(self, finish: Finish, ended: Ended, outcome: Outcome) -> None:
        task, failure = finish.task, ended.failure
        self._run.result.done += 1
        why = NOT_DELETED if outcome is Outcome.KEPT else finish.stays if outcome is Outcome.AS_ASKED else None
        if why is not None:
            self._warn_once(task, f"is completed, but its row could not be deleted, and is marked done: {why}")
        if LOG.isEnabledFor(INFO):
            stage = finish.next_stage if outcome is Outcome.AS_ASKED else None
            becomes = f", and becomes {stage.task}" if stage else ""
            self._log_done(task, ended.attempt.ran_seconds if ended.attempt else 0.0, becomes)
        if failure is not None:
            self._tell(task, task.attempts + 1, failure, is_fatal=False)

    def _log_done(self, task: ClaimedTask, seconds: float, becomes: str = "") -> None:
        LOG.info("task %d %s is done after %.3f s%s", task.id, task.task, seconds, becomes, extra=_about(task))

    def _report_failed(self, finish: Finish, ended: Ended) -> None:
        task, error_text, retry_seconds = finish[:3]
        text = (error_text or "").partition("\n")[0]
        attempt = task.attempts + (ended.attempt is not None)  # of a bad row, the last one that it had
        if error_text == CANCELLED:  # a person did that: no alert
            self._run.result.cancelled += 1
            LOG.info("task %d %s is cancelled", task.id, task.task, extra=about_task(task.id, task.task, attempt))
            return
        if retry_seconds is None:
            self._run.result.fatal += 1
            extra = about_task(task.id, task.task, attempt, text, is_fatal=True)
            reason = ended.failure.why_fatal if ended.failure else ""
            why = f", as {reason}" if reason else ""
            level = ERROR if ended.attempt is None else WARNING  # that of an attempt was reported
            LOG.log(level, "task %d %s is fatal%s: %s", task.id, task.task, why, text, extra=extra)
        else:
            self._run.result.failed += 1
            extra = about_task(task.id, task.task, attempt)
            LOG.info("task %d %s comes again in %.0f s", task.id, task.task, retry_seconds, extra=extra)
        self._tell(task, attempt, ended.failure or Failure(None, text), is_fatal=retry_seconds is None)

    def _tell(self, task: ClaimedTask, attempt: int, failure: Failure, is_fatal: bool) -> None:
        error = failure.error or TaskServerError(failure.text)
        self._hook.tell_later(FailedAttempt(task.id, task.task, attempt, error, is_fatal))

    def tell_lost(self, lost: LostTask, text: str, is_fatal: bool) -> None:
        """Count a task that was taken back, as its worker vanished; the hook is to hear of it."""
        self._hook.tell_later(FailedAttempt(lost.id, lost.task, lost.attempts, TaskServerError(text), is_fatal))

    def tell_failures(self) -> None:
        """Tell the hook of failed attempts; in the run's own thread, while no task is started."""
        self._hook.tell()

    @property
    def has_untold(self) -> bool:
        """Whether the hook is still to hear of failed attempts."""
        return self._hook.has_untold

    def is_to_tell(self, ended: Ended) -> bool:
        """Whether the hook is to hear of this end."""
        return self._hook.is_set and (ended.failure is not None or ended.finish.error_text is not None)

    def report_done_together(self, tasks: Sequence[ClaimedTask], waited_seconds: float, ran_seconds: float) -> None:
        """Count and log tasks that one call completed, as `report` does: a batch may be large.

        Seconds are per task: how long each waited from the claim on, and its share of the call.
        """
        self._run.result.done += len(tasks)
        for task in tasks:
            self._run.stats.done(task, task.task, self._run.stats.share(task, waited_seconds, ran_seconds))
        if LOG.isEnabledFor(INFO):
            for task in tasks:
                self._log_done(task, ran_seconds)

    def count_attempt(self, finish: Finish, attempt: Attempt | None) -> None:
        """Count an attempt only in the stats, or a bad row that is refused; a cancelled task is not counted."""
        task, error_text, retry_seconds = finish[:3]
        if error_text == CANCELLED:
            return
        name = task.task if self._run.callables.found(task.task) else NO_NAME
        if attempt is None:
            self._run.stats.refused(task, name)
        elif error_text is None:
            self._run.stats.done(task, name, attempt)
        else:
            self._run.stats.failed(task, name, attempt, is_fatal=retry_seconds is None)

    def report_unkept_result(self, task: ClaimedTask, fault: str) -> None:
        """Log once for each callable that a result is not kept: to fail would have its tasks done again."""
        self._warn_once(task, f"is done, and its result is not kept: {fault}")

    def _warn_once(self, task: ClaimedTask, what: str) -> None:
        """Log once for each callable what its other tasks may meet, too."""
        kind = (task.task, what.partition(":")[0])
        if kind not in self._warned:
            self._warned.add(kind)
            LOG.warning("task %d %s %s (said once a run)", task.id, task.task, what, extra=_about(task))

    # ---- errors of tasks' code, told while their frames are there, and before what they hold hinders any write

    def report_failure(self, task: ClaimedTask, failure: Failure, limit: int, was_cancelled: bool) -> None:
        """Log the failure of an attempt; `limit` is how often the task may start. A retry it asked for is no error."""
        what = f"failed, attempt {task.attempts + 1} of {limit}"
        if was_cancelled:
            self._say(INFO, task, failure._replace(error=None), what)
        else:
            self._say(INFO if failure.is_retry else ERROR, task, failure, what)

    def report_handed_over(self, task: ClaimedTask, on_fatal: str) -> None:
        """Log that `on_fatal` is called for a task, which may end the worker."""
        LOG.info("task %d %s failed for good, %s is called", task.id, task.task, on_fatal, extra=_about(task))

    def report_second_failure(self, task: ClaimedTask, failure: Failure) -> None:
        """Log that what was called for a fatal task failed, too."""
        self._say(ERROR, task, failure, "failed for good, and what is called for that did, too")

    def report_call_failed(self, tasks: Sequence[ClaimedTask], failure: Failure) -> None:
        """Log the failure of a call for several tasks, before each is called alone."""
        self._say(INFO, tasks[0], failure, f"and {len(tasks) - 1} others failed in one call")

    def report_failed_after(self, task: ClaimedTask, failure: Failure) -> None:
        """Log a failure of a task whose code had completed it: what was committed is not undone."""
        self._say(ERROR, task, failure, "has completed itself, and failed after that", for_log_alone=False)

    def _say(self, level: int, task: ClaimedTask, failure: Failure, what: str, for_log_alone: bool = True) -> None:
        """Log an error with its exception, for whoever hooks into `logging`, as Sentry's SDK does: foreign code."""
        if not LOG.isEnabledFor(level):
            return
        text, error = failure.text.partition("\n")[0], failure.error
        extra = about_task(task.id, task.task, task.attempts + 1, text, failure.full_text, for_log_alone=for_log_alone)
        # An exception that gave no text before is not asked again: each may hang for seconds.
        is_answering = not text.endswith(NO_TEXT)
        exc_info = (type(error), error, traceback_of(error)) if error is not None and is_answering else None
        log = partial(LOG.log, level, "task %d %s %s: %s", task.id, task.task, what, text, extra=extra)
        run_foreign(self._run.time_limit, aside_seconds(self._run.time_limit), partial(log, exc_info=exc_info))

    def without_frames(self, failure: Failure) -> Failure:
        """A failure until the write of its end: what the frames of the exception hold is let go, as a connection.

        A transaction that the task left open there would be in the way of that write. The hook gets the exception after
        it, and whoever hooks into `logging` may keep it.
        """
        if failure.error is not None:
            run_foreign(self._run.time_limit, aside_seconds(self._run.time_limit), clear_frames, failure.error)
        return failure._replace(full_text="", error=failure.error if self._hook.is_set else None)

    def report_unrecorded(self, tasks: Sequence[ClaimedTask]) -> None:
        """Log tasks that have ended, and whose finishes could not be written."""
        for task in tasks:
            LOG.info("task %d %s has ended, which could not be recorded", task.id, task.task, extra=_about(task))

    def report_put_off(self, task: ClaimedTask, why: str) -> None:
        """Log once for each callable that its tasks wait for a second connection."""
        self._warn_once(task, f"is put off, as a transactional task needs a second connection: {why}")

    # ---- tasks whose claim is gone

    def report_unstarted(self, task: ClaimedTask) -> None:
        """Count and log a claimed task that could not be started, as its row does not carry the claim any more."""
        if self._run.heartbeat.is_within_lease():  # so no worker took it back
            self._run.result.lost += 1
            what = "was run again, retried, cancelled or deleted before it started"
            LOG.info("task %d %s %s", task.id, task.task, what, extra=_about(task))
        else:
            self.report_lost(task, "before it started")

    def report_lost(self, task: ClaimedTask, when: str) -> None:
        """Count and log a task whose lease was lost; `when` goes on with that sentence."""
        self._run.result.lost += 1
        LOG.warning("task %d %s: the lease was lost %s", task.id, task.task, when, extra=_about(task))

    # ---- modules

    def report_broken_modules(self) -> None:
        """Log once for each module that it cannot be imported, as many rows may name it."""
        if self._run.stop.insisted:  # the second signal may have ended the import
            return
        for text in self._run.callables.newly_broken():
            LOG.warning("%s (its tasks fail for now)", text, extra={ONCE_AN_HOUR: True})


def _about(task: ClaimedTask) -> dict[str, object]:
    return about_task(task.id, task.task, task.attempts + 1)


def _as_written(finish: Finish, outcome: Outcome) -> Finish:
    """The finish of a failed task as the store wrote it, where the task was changed or cancelled while it ran."""
    if finish.error_text is None or outcome is Outcome.AS_ASKED:
        return finish
    if outcome is Outcome.RUN_AGAIN:
        return finish._replace(retry_seconds=0.0)
    return finish._replace(error_text=CANCELLED, retry_seconds=None)
