"""Reports the end of each task: counts it in the run's result and stats, and says it in the log.

A task is reported once the write that ends it has come back (finishing.py), or once its claim is found to be lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from logging import DEBUG, getLogger
from typing import NamedTuple

from ..messages.printable import Lines
from ..model.attempt import Finish, Outcome
from ..model.task import CANCELLED, ClaimedTask
from .result import FATAL
from .run_context import RunContext
from .stats import NO_NAME, Attempt

LOG = getLogger("taskserver")


class Ended(NamedTuple):
    """A task that is over, and how."""

    finish: Finish
    attempt: Attempt | None
    """The attempt that ended; None of a bad row, which was not started, or whose start is taken back."""
    full_texts: tuple[str, ...] = ()
    """For the log: the full text of each error that ended the task."""


class Reporter:
    """Counts and logs the ends of one run's tasks."""

    def __init__(self, run: RunContext) -> None:
        self._run = run
        self._warned: set[tuple[str, str]] = set()
        """Names of callables whose results could not be kept; each is reported once."""

    # ---- tasks that ended here

    def report(self, ended: Ended, outcome: Outcome) -> None:
        """Count and log a task whose finish is written; `outcome` is any Outcome but LOST."""
        finish = _as_written(ended.finish, outcome)
        self.count_attempt(finish, ended.attempt)
        task, error_text, retry_seconds = finish[:3]
        if error_text is None:
            self._run.result.done += 1
            if finish.stays is not None and outcome is Outcome.AS_ASKED:
                self._warn_once(task, f"is done, and its row stays: the database does not let it go: {finish.stays}")
            stage = finish.next_stage if outcome is Outcome.AS_ASKED else None
            LOG.debug("task %d %s is done%s", task.id, task.task, f", and becomes {stage.task}" if stage else "")
            return
        first_line = error_text.partition("\n")[0]
        if retry_seconds is None:
            self._run.result.fatal += 1
            LOG.warning("task %d %s is fatal: %s", task.id, task.task, first_line, extra=FATAL)
        else:
            self._run.result.failed += 1
            LOG.info("task %d %s failed, and comes again in %.0f s: %s", task.id, task.task, retry_seconds, first_line)
        for text in filter(None, ended.full_texts):
            LOG.info("task %d %s raised:\n%s", task.id, task.task, Lines(text))

    def report_done_together(self, tasks: Sequence[ClaimedTask], waited_seconds: float, ran_seconds: float) -> None:
        """Count and log tasks that one call completed, as `report` does: a batch may be large.

        Seconds are per task: how long each waited from the claim on, and its share of the call.
        """
        self._run.result.done += len(tasks)
        for task in tasks:
            self._run.stats.done(task, task.task, self._run.stats.share(task, waited_seconds, ran_seconds))
        if LOG.isEnabledFor(DEBUG):
            for task in tasks:
                LOG.debug("task %d %s is done", task.id, task.task)

    def count_attempt(self, finish: Finish, attempt: Attempt | None) -> None:
        """Count an attempt in the stats alone; without one, a bad row that is refused."""
        task, error_text, retry_seconds = finish[:3]
        name = task.task if self._run.callables.found(task.task) else NO_NAME
        if attempt is None:
            self._run.stats.refused(task, name)
        elif error_text is None:
            self._run.stats.done(task, name, attempt)
        else:
            self._run.stats.failed(task, name, attempt, is_fatal=retry_seconds is None)

    def report_unkept_result(self, task: ClaimedTask, fault: str) -> None:
        """Log once for each callable that a result is not kept: to fail would have its tasks done again."""
        self._warn_once(task, f"is done, and its result is not kept: what it returned {fault}")

    def _warn_once(self, task: ClaimedTask, what: str) -> None:
        """Log once for each callable what its other tasks may meet, too."""
        kind = (task.task, what.partition(":")[0])
        if kind not in self._warned:
            self._warned.add(kind)
            LOG.warning("task %d %s %s (said once a run)", task.id, task.task, what)

    def report_failed_after(self, task: ClaimedTask, text: str) -> None:
        """Log a failure of a task whose code had completed it: what was committed is not undone."""
        LOG.warning(
            "task %d %s has completed itself, and failed after that: %s", task.id, task.task, text.partition("\n")[0]
        )

    def report_unrecorded(self, tasks: Sequence[ClaimedTask]) -> None:
        """Log tasks that have ended, and whose finishes could not be written."""
        for task in tasks:
            LOG.info("task %d %s has ended, which could not be recorded", task.id, task.task)

    # ---- tasks whose claim is gone

    def report_unstarted(self, task: ClaimedTask) -> None:
        """Count and log a claimed task that could not be started, as its row does not carry the claim any more."""
        if self._run.heartbeat.is_within_lease():  # so no worker took it back
            self._run.result.lost += 1
            LOG.info("task %d %s was run again, retried or cancelled before it started", task.id, task.task)
        else:
            self.report_lost(task, "before it started")

    def report_lost(self, task: ClaimedTask, when: str) -> None:
        """Count and log a task whose lease was lost; `when` goes on with that sentence."""
        self._run.result.lost += 1
        LOG.warning("task %d %s: the lease was lost %s", task.id, task.task, when)

    # ---- modules

    def report_broken_modules(self) -> None:
        """Log once for each module that it cannot be imported, as many rows may name it."""
        if self._run.stop.insisted:  # the second signal may have ended the import
            return
        for text in self._run.callables.newly_broken():
            LOG.warning("%s (its tasks fail for now; said once a run)", text)


def _as_written(finish: Finish, outcome: Outcome) -> Finish:
    """The finish of a failed task as the store wrote it, where the task was changed or cancelled while it ran."""
    if finish.error_text is None or outcome in (Outcome.AS_ASKED, Outcome.AWAITED):
        return finish
    if outcome is Outcome.RUN_AGAIN:
        return finish._replace(retry_seconds=0.0)
    return finish._replace(error_text=CANCELLED, retry_seconds=None)
