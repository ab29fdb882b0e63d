"""Executes the claimed tasks of one run, one after the other: the order of things in a task's life.

    take up → fetch its arguments → import its module, if that is new → find the callable → execute → finish

A callable's options choose the way to execute: alone.py, transactional.py, batch.py or shared.py.
"""

from __future__ import annotations

from logging import getLogger
from typing import NamedTuple, Protocol

from ..errors import BadTask, ModuleBroken
from ..model.attempt import Finish
from ..model.task import MAX_ATTEMPTS, ClaimedTask
from .attempts import Attempts, ReadyTask
from .call import Failure, failure_of
from .finishing import Finishing
from .preparing import Call, check_attempts, fetch_texts, no_room_for, prepare
from .reporting import Reporter
from .run_context import RunContext
from .shared import SharedExecution
from .stats import Attempt

LOG = getLogger("taskserver")


class Execution(Protocol):
    """A way to execute a task."""

    def execute(self, ready: ReadyTask, attempt: Attempt | None) -> None:
        """Start a task, unless `attempt` says that it is started, and call it; its finish goes to Finishing.

        Raises DatabaseError. No error of the task's own code gets out.
        """


class Executions(NamedTuple):
    """The ways to execute, named after the option that chooses each."""

    alone: Execution
    transactional: Execution
    batch: Execution
    shared: SharedExecution

    def of(self, call: Call) -> Execution:
        """The way that the callable's options choose."""
        options = call.callable.options
        if options.batch is not None:
            return self.batch
        if options.commit_every is not None:
            return self.shared
        return self.transactional if options.transactional else self.alone


class Executor:
    """Takes up claimed tasks and has each executed in its callable's way."""

    def __init__(
        self, run: RunContext, attempts: Attempts, finishing: Finishing, reporter: Reporter, executions: Executions
    ) -> None:
        self._run = run
        self._attempts = attempts
        self._finishing = finishing
        self._reporter = reporter
        self._executions = executions

    def run(self, claimed: ClaimedTask) -> None:
        """Run one claimed task. Its finish is written with the next start, or by `Finishing.save`.

        Raises DatabaseError.
        """
        self._run.result.taken += 1
        if self._executions.shared.has_started(claimed):
            self._executions.shared.execute_started(claimed)
            return
        attempt: Attempt | None = None
        try:
            task = fetch_texts(claimed, self._run.store.claims.fetch_texts)
            if self._run.callables.would_import(task.task):
                attempt = self._start_and_import(task)
                if attempt is None:
                    return
            ready = self._ready(task)
        except (BadTask, ModuleBroken) as error:
            self._end_unready(claimed, attempt, error)
            return
        except MemoryError:
            self._fail_unready(claimed, attempt, failure_of(no_room_for(claimed)))
            return
        if attempt is not None and not self._record_limit(ready):
            self._reporter.report_lost(task, "while its module was imported")
            return
        self._executions.of(ready.call).execute(ready, attempt)

    def _ready(self, task: ClaimedTask) -> ReadyTask:
        """The task with its callable. Raises BadTask, ModuleBroken."""
        call = prepare(task, self._run.callables)
        max_attempts = self._attempts.max_attempts(task, call)
        check_attempts(task, max_attempts)
        return ReadyTask(task, call, max_attempts)

    def _end_unready(self, task: ClaimedTask, attempt: Attempt | None, error: BadTask | ModuleBroken) -> None:
        """End what can't be made ready for its call, for ever or for now, as far as this run knows."""
        if self._run.needs_newer_code(task):
            self._leave(task, attempt, error)
        elif isinstance(error, BadTask):
            # Nothing of it was called: take back the attempt that was counted for the import of its module. The
            # arguments are let go: many bad rows may wait for their end to be written.
            self._refuse(task, error, uncount=attempt is not None)
        else:
            self._fail_unready(task, attempt, failure_of(error))

    def _refuse(self, task: ClaimedTask, error: BadTask, uncount: bool = False) -> None:
        """End a bad row. The error is made anew: the frames that raised it hold the arguments."""
        failure = failure_of(BadTask(*error.args))
        self._finishing.add(Finish(task, failure.text, uncount=uncount), None, failure)

    def _leave(self, task: ClaimedTask, attempt: Attempt | None, why: object) -> None:
        """Leave a row to a later run: this one has an older code than the files, and ends."""
        LOG.info("task %d is left to a run that has the code of today's files: %s", task.id, why)
        self._run.result.taken -= 1
        if attempt is None:
            self._run.heartbeat.claimed.put_back(task)
        else:  # for the import of its module, as may happen again in the later run
            self._run.heartbeat.claimed.put_started([task])
        self._run.limits.is_outdated = True

    # ---- a module that is not imported yet

    def _start_and_import(self, task: ClaimedTask) -> Attempt | None:
        """Start a task and import its module. The attempt; None where the task is over with that.

        An import can kill or hang a worker as a task can, so it counts as an attempt. The callable's own limit of
        attempts is known only after it. Raises BadTask, DatabaseError.
        """
        _check_attempts_of_row(task)
        attempt = self._attempts.start(task, task.max_attempts)
        if attempt is None:
            return None
        plan = self._attempts.plan([task], None)
        failure, _ = self._attempts.call(plan, attempt, self._run.callables.find, task.task)
        if failure is None or failure.is_a(BadTask):  # a bad row is told of when its callable is looked up again
            attempt.ran_seconds = 0.0  # the import was for all tasks of the module
            return attempt
        if self._run.heartbeat.was_cancelled:  # which does not mean that the module is broken
            self._run.callables.forget_breakage(task.task)
        elif failure.is_a(ModuleBroken) and self._run.needs_newer_code(task):
            self._leave(task, attempt, failure.text)
            return None
        self._reporter.report_broken_modules()
        self._attempts.fail(task, None, attempt, failure)
        return None

    def _record_limit(self, ready: ReadyTask) -> bool:
        """Record the limit of attempts of a started task, unless its row says it. Whether the claim still stands."""
        return ready.task.max_attempts is not None or self._run.store.finishes.limit_attempts(
            ready.task, ready.max_attempts
        )

    def _fail_unready(self, task: ClaimedTask, attempt: Attempt | None, failure: Failure) -> None:
        """Fail a task that cannot be made ready for now, in an attempt like any other: the next one may go well."""
        self._reporter.report_broken_modules()
        try:
            _check_attempts_of_row(task)
        except BadTask as error:
            self._refuse(task, error)
            return
        attempt = attempt or self._attempts.start(task, task.max_attempts)
        if attempt is not None:
            self._attempts.fail(task, None, attempt, failure)


def _check_attempts_of_row(task: ClaimedTask) -> None:
    """Raises BadTask where a task may not start any more, before the limit of its callable is known."""
    check_attempts(task, MAX_ATTEMPTS if task.max_attempts is None else task.max_attempts)
