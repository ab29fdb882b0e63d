"""Starts attempts, calls their code, and decides how each ends.

start (with the finishes of the tasks before, in one commit) → call → complete, or retry, or fatal
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from ..interrupts.stop import STOPPED, TaskInterrupted
from ..messages.error_text import both
from ..model.arguments import read_arguments
from ..model.attempt import Finish, postponed
from ..model.task import CANCELLED, ClaimedTask
from ..model.task_options import NO_OPTIONS
from ..stores.queue.batches import Batches
from .attempt import Attempt
from .call import NOTHING, Failure, Returned, failure_of, run_call, run_user_code
from .callables import TaskCallable
from .finishing import Finishing
from .hooks import Hooks
from .preparing import Call
from .reporting import Reporter
from .run_context import RunContext
from .task_context import CallPlan, enter, leave


class Attempts:
    """The steps of one run's attempts. Raises DatabaseError, but no error of user code."""

    def __init__(self, run: RunContext, hooks: Hooks, finishing: Finishing, reporter: Reporter) -> None:
        self._run = run
        self._batches = Batches(run.store)
        self._hooks = hooks
        self._finishing = finishing
        self._reporter = reporter

    def limit_of(self, task: ClaimedTask, found: TaskCallable | None) -> int:
        """How often a task may start, by its row, else its callable, else the settings."""
        return self.usual_limit(found) if task.max_attempts is None else task.max_attempts

    def usual_limit(self, found: TaskCallable | None) -> int:
        """How often a task of this callable may start if its row sets no limit."""
        return (found.options.max_attempts if found else None) or self._run.settings.max_attempts

    # ---- start

    def start(self, attempt: Attempt) -> bool:
        """Start a task if needed, and write the pending finishes. False if its claim is gone."""
        self._run.heartbeat.start()
        if attempt.has_started:  # to import its module, or with others of its round
            return True
        if not self._start([attempt.task], attempt.limit or attempt.task.max_attempts):
            self._reporter.report_unstarted(attempt.task)
            return False
        self.note_start(attempt)
        return True

    def start_together(self, tasks: Sequence[ClaimedTask], limit: int) -> tuple[set[int], list[ClaimedTask]]:
        """Start tasks of one claim in one write. Returns the started ids, and the tasks whose rows others lock.

        `limit` is recorded in rows that have none.
        """
        if not tasks:  # the first was started to import its module, and no other is ready
            return set(), []
        self._run.heartbeat.start()
        ids = self._start(tasks, limit)
        left = [task for task in tasks if task.id not in ids]
        ours = self._batches.unstarted(left) if left else set()
        for task in left:
            if task.id not in ours:
                self._reporter.report_unstarted(task)
        return ids, [task for task in left if task.id in ours]

    def _start(self, tasks: Sequence[ClaimedTask], limit: int | None) -> set[int]:
        asked_at = time.monotonic()
        ids = self._finishing.save_and_start(tasks, limit)
        if ids and time.monotonic() - asked_at > self._run.settings.lease_seconds / 2:
            # The host froze, or the database was away: another worker may have reclaimed them.
            self._batches.renew(tasks)
            ids = self._batches.started(tasks)
        return ids

    def note_start(self, attempt: Attempt) -> None:
        attempt.has_started = True
        attempt.waited_seconds = self._run.stats.waited(attempt.task)

    # ---- call

    def plan(self, attempt: Attempt) -> CallPlan:
        """The plan of one call; before the row is ready, that of the import of its module."""
        own = attempt.call.callable.options.timeout_seconds if attempt.call else None
        seconds = self._run.settings.timeout_seconds if own is None else own
        return CallPlan([attempt.task], seconds, attempt.limit or self.limit_of(attempt.task, None))

    def call(
        self, plan: CallPlan, attempt: Attempt, function: Callable[..., object], *args: Any
    ) -> tuple[Failure | None, Any]:
        """Call user code with its timeout and the heartbeat. Returns its failure, or None and its return value.

        After a second signal it fails without a call.
        """
        self._hooks.between(plan)
        if self._run.stop.is_forced:
            return failure_of(TaskInterrupted(STOPPED)), None
        token = enter(self._run.heartbeat.begin(plan))
        began_at = time.monotonic()
        try:
            failure, returned = run_user_code(self._run.alarm, plan.timeout_seconds, function, *args)
        finally:
            leave(token)
        attempt.ran_seconds += time.monotonic() - began_at
        if self._run.heartbeat.end() and failure is not None:
            failure = failure._replace(was_cancelled=True)
        return failure, returned

    # ---- finish

    def finish(self, attempt: Attempt, failure: Failure | None, returned: Returned = NOTHING) -> None:
        """End a started attempt: done, the next stage, or as `fail` decides."""
        if failure is None:
            self._finishing.add(attempt, self.completion(attempt.task, returned))
        else:
            self.fail(attempt, failure)

    def completion(self, task: ClaimedTask, returned: Returned) -> Finish:
        """The finish of a task whose call succeeded."""
        if returned is NOTHING:
            return Finish(task)
        if returned.fault:
            self._reporter.report_dropped_result(task, returned.fault)
        return Finish(task, next_stage=returned.next_stage, result=returned.result)

    def fail(self, attempt: Attempt, failure: Failure) -> None:
        """End an attempt that failed: cancelled, postponed (Later), retried after its backoff, or fatal."""
        task, number = attempt.task, attempt.task.attempts + 1
        limit = attempt.limit or self.limit_of(task, None)
        options = attempt.call.callable.options if attempt.call else NO_OPTIONS
        if failure.was_cancelled:
            self._finishing.add(attempt, Finish(task, CANCELLED))
        elif failure.later_seconds is not None:
            self._finishing.add(attempt, postponed(task, failure.text, failure.later_seconds))
        else:
            self._reporter.report_failure(task, failure, limit)
            failure = failure.with_options(options)
            if number < limit and not failure.is_final:
                self.end_failed(attempt, failure, Finish(task, failure.text, self.retry_seconds(attempt, failure)))
            elif options.on_fatal is None:
                self.end_failed(attempt, failure, Finish(task, failure.text))
            else:
                self._call_on_fatal(attempt, failure, options.on_fatal)

    def end_failed(self, attempt: Attempt, failure: Failure, finish: Finish) -> None:
        """End an attempt whose failure is logged already."""
        self._finishing.add(attempt, finish, self._reporter.without_frames(failure))

    def retry_seconds(self, attempt: Attempt, failure: Failure) -> float:
        """Seconds until the task is retried after this attempt failed."""
        if failure.delay_seconds is not None:
            return failure.delay_seconds
        backoff = (attempt.call.callable.options.backoff if attempt.call else None) or self._run.settings.backoff
        return backoff.seconds_after(attempt.task.attempts + 1)

    def _call_on_fatal(self, attempt: Attempt, failure: Failure, on_fatal: str) -> None:
        """Call `on_fatal` with the task's arguments and the error: if it returns, the task is done.

        If the task was changed while it ran, it runs again instead.
        """
        task, finishes = attempt.task, self._run.store.finishes
        self._finishing.save()  # finished tasks must not wait for this call
        finish = Finish(task, failure.text)
        if not finishes.has_rerun(task):
            self._reporter.report_on_fatal(task, on_fatal)
            # The lease may end soon, and the task may have changed its argument objects.
            if not finishes.renew(task):
                self._reporter.report_lost(task, "before what is called for that")
                return
            second, _ = self.call(self.plan(attempt), attempt, self._run_on_fatal, task.args, on_fatal, failure.error)
            finish = Finish(task)
            if second is not None:
                self._reporter.report_second_failure(task, second)
                finish = Finish(task, both(failure.text, second.text))
        self.end_failed(attempt, failure, finish)

    def _run_on_fatal(self, arguments: str | None, on_fatal: str, error: BaseException) -> None:
        found = self._run.callables.find(on_fatal)
        args, kwargs = read_arguments(arguments)
        kwargs["error"] = error
        found.parameters.check(args, kwargs)
        run_call(Call(found, args, kwargs))
