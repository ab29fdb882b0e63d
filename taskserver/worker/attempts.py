"""Attempts at tasks, as all ways to execute make them: start → call → complete or fail.

A started attempt is passed on as an `Attempt` (stats.py), which gathers its times until the task's end is counted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ..interrupts.stop import STOPPED, TaskInterrupted
from ..messages.error_text import both
from ..model.arguments import read_arguments
from ..model.attempt import Finish, Start
from ..model.task import CANCELLED, ClaimedTask
from ..model.task_options import NO_OPTIONS
from .between import Between
from .call import NOTHING, Failure, Returned, failure_of, run_call, run_foreign
from .callables import TaskCallable
from .finishing import Finishing
from .preparing import Call
from .reporting import Reporter
from .run_context import RunContext
from .stats import Attempt
from .task_context import CallPlan, OwnCompletion, enter, leave


class ReadyTask(NamedTuple):
    """A task whose callable is found and takes its arguments."""

    task: ClaimedTask
    call: Call
    max_attempts: int
    """How often the task may start."""


class Attempts:
    """Starts, calls, completes and fails tasks, for all ways to execute."""

    def __init__(self, run: RunContext, finishing: Finishing, reporter: Reporter, between: Between) -> None:
        self._run = run
        self._between = between
        self._finishing = finishing
        self._reporter = reporter

    # ---- before the start

    def max_attempts(self, task: ClaimedTask, call: Call | None) -> int:
        """How often a task may start: its row says it, else its callable, else the settings."""
        usual = self.usual_max_attempts(call.callable if call else None)
        return usual if task.max_attempts is None else task.max_attempts

    def usual_max_attempts(self, found: TaskCallable | None) -> int:
        """How often a task of this callable may start whose row does not say it."""
        return (found.options.max_attempts if found else None) or self._run.settings.max_attempts

    # ---- start

    def start(self, task: ClaimedTask, max_attempts: int | None) -> Attempt | None:
        """Start a claimed task, and write the finishes of the tasks before it. None where its claim is gone.

        `max_attempts` is recorded where the row does not say it; None leaves the row's. Raises DatabaseError.
        """
        self.prepare()
        asked_at = time.monotonic()
        started = self._finishing.save_and_start(Start(task, max_attempts))
        if started and time.monotonic() - asked_at > self._run.settings.lease_seconds / 2:
            # It took so long, or the host stood still, that another may have taken the task back since it was started.
            started = self._run.store.finishes.renew(task)
        return self.attempt(task, started)

    def prepare(self) -> None:
        """Make ready what watches over calls, before the start of a task."""
        self._run.heartbeat.start()

    def attempt(self, task: ClaimedTask, has_started: bool) -> Attempt | None:
        """The attempt of a task whose start was written, or found its claim gone: None."""
        if has_started:
            return self._run.stats.started(task)
        self._reporter.report_unstarted(task)
        return None

    # ---- call

    def plan(
        self, tasks: Sequence[ClaimedTask], call: Call | None, completion: OwnCompletion | None = None
    ) -> CallPlan:
        """The plan of one call for these tasks; without a `call` it is the import of their module."""
        own = call.callable.options.timeout_seconds if call else None
        seconds = self._run.settings.timeout_seconds if own is None else own
        return CallPlan(tasks, seconds, self.max_attempts(tasks[0], call), completion)

    def call(
        self, plan: CallPlan, attempt: Attempt, function: Callable[..., object], *args: Any
    ) -> tuple[Failure | None, Any]:
        """Call the code of started tasks: its failure, or None and its return value.

        Where a second signal came while they were started, the call fails without being made.
        """
        self._between.call_before(plan)
        if self._run.stop.insisted:
            return failure_of(TaskInterrupted(STOPPED)), None
        return self.watch(plan, attempt, function, *args)

    def watch(
        self, plan: CallPlan, attempt: Attempt | None, function: Callable[..., object], *args: Any
    ) -> tuple[Failure | None, Any]:
        """Run foreign code under its time limit and the heartbeat: its failure, or None and its return value.

        Its time is added to the attempt, where there is one.
        """
        token = enter(self._run.heartbeat.begin(plan))
        try:
            began_at = time.monotonic()
            ended = run_foreign(self._run.time_limit, plan.timeout_seconds, function, *args)
        finally:
            leave(token)
        if attempt is not None:
            attempt.ran_seconds += time.monotonic() - began_at
        self._run.heartbeat.end()
        return ended

    # ---- complete

    def complete(self, task: ClaimedTask, attempt: Attempt, returned: Returned) -> None:
        """End a task whose call ended well. Raises DatabaseError."""
        self._finishing.add(self.completion(task, returned), attempt)

    def completion(self, task: ClaimedTask, returned: Returned) -> Finish:
        """The finish of a task whose call ended well."""
        if returned is NOTHING:
            return Finish(task)
        next_stage, result, fault = returned
        if fault:
            self._reporter.report_unkept_result(task, fault)
        return Finish(task, next_stage=next_stage, result=result)

    # ---- fail

    def fail(self, task: ClaimedTask, call: Call | None, attempt: Attempt, failure: Failure) -> None:
        """End an attempt that failed: the task is retried after its backoff, unless this attempt was its last one.

        Without a `call` its module could not be imported. Raises DatabaseError.
        """
        limit, was_cancelled = self.max_attempts(task, call), self._run.heartbeat.was_cancelled
        options = call.callable.options if call else NO_OPTIONS
        self._reporter.report_failure(task, failure, limit, was_cancelled)
        if was_cancelled:
            self._finishing.add(Finish(task, CANCELLED), attempt)
            return
        attempts = task.attempts + 1
        if attempts < limit:
            if not failure.is_final(options):
                seconds = self.retry_seconds(call, failure, attempts)
                self.end_failed(Finish(task, failure.text, seconds), attempt, failure)
                return
            failure = failure.told_by(options)
        if call is None or options.on_fatal is None:
            self.end_failed(Finish(task, failure.text), attempt, failure)
        else:
            self._hand_over(task, call, attempt, failure, options.on_fatal)

    def end_failed(self, finish: Finish, attempt: Attempt, failure: Failure) -> None:
        """End an attempt whose failure is told already."""
        self._finishing.add(finish, attempt, self._reporter.without_frames(failure))

    def retry_seconds(self, call: Call | None, failure: Failure, attempts: int) -> float:
        """Seconds until a task is retried that failed in this attempt, counted from 1."""
        if failure.delay_seconds is not None:
            return failure.delay_seconds
        backoff = (call.callable.options.backoff if call else None) or self._run.settings.backoff
        return backoff.seconds_after(attempts)

    def _hand_over(self, task: ClaimedTask, call: Call, attempt: Attempt, failure: Failure, on_fatal: str) -> None:
        """Call `on_fatal` with the arguments of a task that failed for good, and the error: that may complete the task.

        A task that was changed while it ran is run again instead.
        """
        self._finishing.save()  # tasks that have ended must not wait for this call
        if self._run.store.finishes.has_rerun(task):
            self.end_failed(Finish(task, failure.text), attempt, failure)
            return
        self._reporter.report_handed_over(task, on_fatal)
        # The lease may be nearly over, and the task may have changed the objects that it got as arguments.
        if not self._run.store.finishes.renew(task):
            self._reporter.report_lost(task, "before what is called for that")
            return
        plan = self.plan([task], call)
        second, _ = self.call(plan, attempt, self._call_on_fatal, task.args, on_fatal, failure.error)
        if second is None:
            self.end_failed(Finish(task), attempt, failure)
        else:
            self._reporter.report_second_failure(task, second)
            self.end_failed(Finish(task, both(failure.text, second.text)), attempt, failure)

    def _call_on_fatal(self, arguments: str | None, on_fatal: str, error: BaseException) -> None:
        found = self._run.callables.find(on_fatal)
        args, kwargs = read_arguments(arguments)
        kwargs["error"] = error
        found.parameters.check(args, kwargs)
        run_call(Call(found, args, kwargs))
