"""Reports the end of each task: counts it in the run's result and stats, and logs it.

A task is reported when its end is written (finishing.py), or when its claim is lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from logging import ERROR, INFO, WARNING, getLogger

from ..errors import TaskServerError
from ..messages.error_text import NO_TEXT, clear_frames, traceback_of
from ..messages.log_records import ONCE_AN_HOUR, about_task
from ..model.attempt import FailedAttempt, Finish, Outcome
from ..model.task import CANCELLED, ClaimedTask
from .attempt import Attempt
from .call import Failure, WrongOutcomes, run_user_code, side_call_seconds
from .hooks import Hooks
from .run_context import RunContext
from .stats import NO_NAME

LOG = getLogger("taskserver")


NOT_DELETED = (
    "the database deletes nothing and says nothing; look for row level security, a rule or a trigger on the table"
)


class Reporter:
    """Counts and logs the ends of one run's tasks."""

    def __init__(self, run: RunContext, hooks: Hooks) -> None:
        self._run = run
        self._hooks = hooks
        self._warned: set[tuple[str, str]] = set()
        """The callable and the kind of each warning so far."""

    # ---- tasks that ended here

    def report(self, attempt: Attempt, outcome: Outcome) -> None:
        """Count and log an attempt whose finish is written; `outcome` is any Outcome but LOST."""
        if attempt.finish.error_text is not None and outcome is not Outcome.AS_ASKED:
            attempt.finish = _as_written(attempt.finish, outcome)
        finish = attempt.finish
        self.count(attempt)
        if finish.error_text is None:
            self._report_done(attempt, outcome)
        elif finish.is_postponed:
            self._run.result.postponed += 1
            self._log(attempt.task, f"is {finish.error_text}; it runs again in {finish.retry_seconds:.0f} s")
        elif finish.error_text == CANCELLED:  # by a person: no alert
            self._run.result.cancelled += 1
            self._log(attempt.task, "is cancelled")
        else:
            self._report_failed(attempt)

    def _report_done(self, attempt: Attempt, outcome: Outcome) -> None:
        task, finish = attempt.task, attempt.finish
        self._run.result.done += 1
        why = NOT_DELETED if outcome is Outcome.KEPT else finish.keep_reason if outcome is Outcome.AS_ASKED else None
        if why is not None:
            self._warn_once(task, f"is completed, but its row could not be deleted, and is marked done: {why}")
        if LOG.isEnabledFor(INFO):
            stage = finish.next_stage if outcome is Outcome.AS_ASKED else None
            becomes = f", and becomes {stage.task}" if stage else ""
            self._log(task, f"is done after {attempt.ran_seconds:.3f} s{becomes}")
        if attempt.failure is not None:  # on_fatal completed it
            self._call_hook(task, task.attempts + 1, attempt.failure, is_fatal=False)

    def _report_failed(self, attempt: Attempt) -> None:
        task, error_text, retry_seconds = attempt.finish[:3]
        text = (error_text or "").partition("\n")[0]
        number = task.attempts + attempt.is_counted  # of a bad row, its last one
        if retry_seconds is None:
            self._run.result.fatal += 1
            extra = about_task(task.id, task.task, number, text, is_fatal=True)
            reason = attempt.failure.why_fatal if attempt.failure else ""
            why = f", as {reason}" if reason else ""
            level = WARNING if attempt.is_counted else ERROR  # that of an attempt was reported
            LOG.log(level, "task %d %s is fatal%s: %s", task.id, task.task, why, text, extra=extra)
        else:
            self._run.result.failed += 1
            extra = about_task(task.id, task.task, number)
            LOG.info("task %d %s will be retried in %.0f s", task.id, task.task, retry_seconds, extra=extra)
        self._call_hook(task, number, attempt.failure or Failure(None, text), is_fatal=retry_seconds is None)

    def _call_hook(self, task: ClaimedTask, attempt: int, failure: Failure, is_fatal: bool) -> None:
        error = failure.error or TaskServerError(failure.text)
        self._hooks.call_later(FailedAttempt(task.id, task.task, attempt, error, is_fatal))

    def count(self, attempt: Attempt) -> None:
        """Count an attempt or a bad row in the stats, but not if it was cancelled or postponed."""
        task, error_text, retry_seconds = attempt.finish[:3]
        name = task.task if self._run.callables.found(task.task) else NO_NAME
        if error_text is None:
            self._run.stats.done(attempt, name)
        elif attempt.is_counted and error_text != CANCELLED:
            self._run.stats.failed(attempt, name, is_fatal=retry_seconds is None)
        elif error_text != CANCELLED and not attempt.finish.is_postponed:
            self._run.stats.refused(task, name)

    def report_dropped_result(self, task: ClaimedTask, fault: str) -> None:
        """Log once for each callable that a result is not kept: a failure would run its tasks again."""
        self._warn_once(task, f"is done, and its result is not kept: {fault}")

    def report_no_connection(self, task: ClaimedTask, error: Exception) -> None:
        """Log once for each callable that its tasks are postponed until there is a second connection."""
        self._warn_once(task, f"is postponed, as a transactional task needs a second connection: {error}")

    def report_called_again(self, task: ClaimedTask, error: Exception) -> None:
        """Log that its transaction was rolled back, and that its code runs again in the same attempt."""
        self._log(task, f"is called again, as all that it wrote was rolled back: {error}")

    def _warn_once(self, task: ClaimedTask, what: str) -> None:
        """Log once for each callable, as its other tasks may have the same problem."""
        kind = (task.task, what.partition(":")[0])
        if kind not in self._warned:
            self._warned.add(kind)
            LOG.warning("task %d %s %s", task.id, task.task, what, extra={**_about(task), ONCE_AN_HOUR: True})

    def _log(self, task: ClaimedTask, what: str) -> None:
        LOG.info("task %d %s %s", task.id, task.task, what, extra=_about(task))

    # ---- errors of tasks' code, logged while they have their frames, and before their open connections block a write

    def report_failure(self, task: ClaimedTask, failure: Failure, limit: int) -> None:
        """Log a failed attempt; `limit` is how often the task may start. A raised Retry is no error."""
        what = f"failed, attempt {task.attempts + 1} of {limit}"
        self._log_error(INFO if failure.is_retry else ERROR, task, failure, what)

    def report_on_fatal(self, task: ClaimedTask, on_fatal: str) -> None:
        """Log the call of `on_fatal` first, as it may end the worker."""
        self._log(task, f"failed for good, so {on_fatal} is called")

    def report_second_failure(self, task: ClaimedTask, failure: Failure) -> None:
        self._log_error(ERROR, task, failure, "failed for good, and so did its on_fatal")

    def report_call_failed(self, tasks: Sequence[ClaimedTask], failure: Failure) -> None:
        """Log the failure of a call for several tasks, before each is called by itself."""
        if failure.is_a(WrongOutcomes):
            self._warn_once(tasks[0], f"and others of its call are called again alone: {failure.text}")
        self._log_error(INFO, tasks[0], failure, f"and {len(tasks) - 1} others failed in one call")

    def report_failed_after(self, task: ClaimedTask, failure: Failure) -> None:
        """Log a failure after the task's code had completed it: the commit is not undone."""
        self._log_error(ERROR, task, failure, "has completed itself, and failed after that", log_only=False)

    def _log_error(self, level: int, task: ClaimedTask, failure: Failure, what: str, log_only: bool = True) -> None:
        """Log an error with its exception, for tools such as Sentry's SDK, which hook into `logging`: user code."""
        if not LOG.isEnabledFor(level):
            return
        text, error = failure.text.partition("\n")[0], failure.error
        extra = about_task(task.id, task.task, task.attempts + 1, text, failure.full_text, log_only=log_only)
        # Don't use an exception that gave no text before: it may hang for seconds again.
        is_answering = not text.endswith(NO_TEXT)
        exc_info = (type(error), error, traceback_of(error)) if error is not None and is_answering else None
        log = partial(LOG.log, level, "task %d %s %s: %s", task.id, task.task, what, text, extra=extra)
        run_user_code(self._run.alarm, side_call_seconds(self._run.alarm), partial(log, exc_info=exc_info))

    def without_frames(self, failure: Failure) -> Failure:
        """The failure for the write of its end: the frames of its exception release what they hold.

        Else a transaction that the task left open would block that write. The hook gets the exception after it.
        """
        if failure.error is not None:
            run_user_code(self._run.alarm, side_call_seconds(self._run.alarm), clear_frames, failure.error)
        return failure._replace(full_text="", error=failure.error if self._hooks.has_failure_hook else None)

    def report_unrecorded(self, tasks: Sequence[ClaimedTask]) -> None:
        for task in tasks:
            self._log(task, "has ended, but that could not be recorded")

    # ---- tasks whose claim is gone

    def report_unstarted(self, task: ClaimedTask) -> None:
        """Count and log a claimed task that could not be started, as its row has lost the claim."""
        if self._run.heartbeat.is_within_lease():  # so no worker reclaimed it
            self._run.result.lost += 1
            self._log(task, "was run again, retried, cancelled or deleted before it started")
        else:
            self.report_lost(task, "before it started")

    def report_lost(self, task: ClaimedTask, when: str) -> None:
        """Count and log a task whose lease was lost; `when` ends the sentence."""
        self._run.result.lost += 1
        LOG.warning("task %d %s: the lease was lost %s", task.id, task.task, when, extra=_about(task))

    # ---- modules

    def report_broken_modules(self) -> None:
        """Log each module that cannot be imported once, as many rows may name it."""
        if self._run.stop.is_forced:  # the second signal may have ended the import
            return
        for text in self._run.callables.new_failures():
            LOG.warning("%s (its tasks fail for now)", text, extra={ONCE_AN_HOUR: True})


def _about(task: ClaimedTask) -> dict[str, object]:
    return about_task(task.id, task.task, task.attempts + 1)


def _as_written(finish: Finish, outcome: Outcome) -> Finish:
    """The finish that the store wrote instead, as the task was changed or cancelled while it ran."""
    if outcome is Outcome.RUN_AGAIN:
        return finish._replace(retry_seconds=0.0)
    return finish._replace(error_text=CANCELLED, retry_seconds=None)
