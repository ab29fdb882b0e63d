"""The life of a claimed task, from its turn to its end. Imported with a run's first task.

    take → fetch its texts → import its module, if it is new → find the callable → start → call → finish

    started_at        is written by Attempts.start and start_together, in the commit of the pending finishes
    a timeout         interrupts only code of the site: below Attempts.call for a task, below Hook.call for a hook
    a lost lease      is found by the start, the heartbeat and the finish: no row has the token
    a killed worker   leaves its row in progress, with the attempt counted. maintenance.py reclaims it when the lease
                      expires, even if the task had ended and its finish was pending. The next run on the host releases
                      tasks that were claimed and not started

Three options of a callable change this: `transactional` (transactional.py), `batch` (batch.py) and `commit_every`
(rounds.py).
"""

from __future__ import annotations

from logging import getLogger

from ..errors import BadTask, ModuleBroken
from ..messages.error_text import both
from ..model.attempt import Finish
from ..model.task import MAX_ATTEMPTS, ClaimedTask
from .attempt import Attempt
from .attempts import Attempts
from .batch import BatchCalls
from .call import failure_of, run_alone
from .completion import Completion, Completions
from .finishing import Finishing
from .hooks import Hooks
from .preparing import AttemptsUsedUp, check_attempts, fetch_texts, no_room_for, prepare
from .reporting import Reporter
from .rounds import Rounds
from .run_context import RunContext
from .transactional import TransactionalCalls

LOG = getLogger("taskserver")


class Life:
    """Runs the tasks of one run, one after the other. Raises DatabaseError, but no error of user code."""

    def __init__(self, run: RunContext) -> None:
        self._run = run
        self.hooks = Hooks(run)
        self._reporter = Reporter(run, self.hooks)
        self.finishing = Finishing(run.store, self._reporter)
        run.heartbeat.save_old = self.finishing.save_old
        self._attempts = Attempts(run, self.hooks, self.finishing, self._reporter)
        self._completions = Completions(run, self._attempts, self.finishing, self._reporter)
        self._transactional = TransactionalCalls(run, self._attempts, self._completions, self.finishing, self._reporter)
        self._batches = BatchCalls(run, self._attempts, self.finishing, self._reporter)
        self._rounds = Rounds(run, self._attempts, self.finishing, self._reporter)

    def run(self, task: ClaimedTask) -> None:
        """Run one claimed task. Its finish is written with the next start, or by `Finishing.save`.

        It is put back if a larger claim may have others that run with it: `Claimed.is_claimed_again`.
        """
        self._run.result.taken += 1
        attempt = Attempt(task)
        is_ready = False
        try:
            is_ready = self._rounds.may_run(attempt) and self._make_ready(attempt)
        except (BadTask, ModuleBroken, MemoryError) as error:
            self._end_unready(attempt, error)
        if is_ready and self._needs_more(attempt):
            self._put_back(attempt)
            self._run.heartbeat.claimed.is_claimed_again = True
        elif is_ready:
            self._run_ready(attempt)

    def _needs_more(self, attempt: Attempt) -> bool:
        """Whether a batch or a round waits for a larger claim."""
        assert attempt.call is not None
        options = attempt.call.callable.options
        together = options.batch or options.commit_every
        return together is not None and not attempt.task.attempts and self._run.limits.claim_size.want(together)

    def _run_ready(self, attempt: Attempt) -> None:
        assert attempt.call is not None
        options = attempt.call.callable.options
        if options.batch is not None:
            self._batches.run(attempt)
        elif options.transactional:
            self._transactional.run(attempt)
        elif self._rounds.start(attempt) if options.commit_every else self._attempts.start(attempt):
            self._call_alone(attempt)

    def _call_alone(self, attempt: Attempt) -> None:
        completion = Completion(self._completions, attempt)
        plan = self._attempts.plan(attempt)._replace(completion=completion)
        failure, returned = self._attempts.call(plan, attempt, run_alone, attempt.call, self._run.keeps_results)
        if completion.is_asked_for:
            self._completions.finish(completion, failure)
        else:
            self._attempts.finish(attempt, failure, returned)

    # ---- before its call

    def _make_ready(self, attempt: Attempt) -> bool:
        """Find the callable of the row. False if the task ended here.

        Raises BadTask, ModuleBroken, MemoryError.
        """
        task = attempt.task = fetch_texts(attempt.task, self._run.store.claims.fetch_texts)
        is_new = self._run.callables.would_import(task.task)
        if is_new and not self._import(attempt):
            return False
        call = prepare(task, self._run.callables)
        limit = self._attempts.limit_of(task, call.callable)
        check_attempts(task, limit)
        attempt.call, attempt.limit = call, limit
        if is_new and task.max_attempts is None and not self._run.store.finishes.limit_attempts(task, limit):
            self._reporter.report_lost(task, "while its module was imported")
            return False
        return True

    def _import(self, attempt: Attempt) -> bool:
        """Start a task and import its module. An import can kill or hang a worker, so it counts as an attempt.

        False if the task ended here. Raises BadTask.
        """
        task = attempt.task
        _check_attempts_of_row(task)
        if not self._attempts.start(attempt):
            return False
        failure, _ = self._attempts.call(self._attempts.plan(attempt), attempt, self._run.callables.find, task.task)
        if failure is None or failure.is_a(BadTask):  # a bad row fails again when its callable is looked up
            attempt.ran_seconds = 0.0  # the import was for all tasks of the module
            return True
        if failure.was_cancelled:  # the module may be fine
            self._run.callables.forget_failed_import(task.task)
        elif failure.is_a(ModuleBroken) and self._run.needs_newer_code(task):
            self._leave(attempt, failure.text)
            return False
        self._reporter.report_broken_modules()
        self._attempts.fail(attempt, failure)
        return False

    # ---- a row that cannot be made ready

    def _end_unready(self, attempt: Attempt, error: BadTask | ModuleBroken | MemoryError) -> None:
        """End a row that can never run; fail one that this run cannot run now."""
        task = attempt.task
        if not isinstance(error, MemoryError) and self._run.needs_newer_code(task):
            self._leave(attempt, error)
        elif isinstance(error, BadTask):
            self._refuse(attempt, error)
        else:
            self._reporter.report_broken_modules()
            try:
                _check_attempts_of_row(task)
            except BadTask as used_up:
                self._refuse(attempt, used_up)
                return
            failure = failure_of(no_room_for(task) if isinstance(error, MemoryError) else error)
            if self._attempts.start(attempt):
                self._attempts.fail(attempt, failure)

    def _refuse(self, attempt: Attempt, error: BadTask) -> None:
        """End a bad row. Its code did not run, so a counted start is uncounted."""
        failure = failure_of(BadTask(*error.args))  # a copy: the frames of the original hold the arguments
        if isinstance(error, AttemptsUsedUp):
            row = self._run.store.views.show(attempt.task.id)
            if row is not None and row.error:  # of its last attempt, e.g. that it was lost
                failure = failure._replace(text=both(row.error, failure.text))
        self.finishing.add(attempt, Finish(attempt.task, failure.text, is_uncounted=attempt.has_started), failure)

    def _leave(self, attempt: Attempt, why: object) -> None:
        """Leave a row to a later run: this run has stale code, and ends."""
        LOG.info("task %d is left to a run that has the code of today's files: %s", attempt.task.id, why)
        self._run.limits.is_outdated = True
        self._put_back(attempt)

    def _put_back(self, attempt: Attempt) -> None:
        self._run.result.taken -= 1
        claimed = self._run.heartbeat.claimed
        (claimed.put_started if attempt.has_started else claimed.put_back)([attempt.task])


def _check_attempts_of_row(task: ClaimedTask) -> None:
    """Raises BadTask if the row allows no more starts; the limit of its callable is not known yet."""
    check_attempts(task, MAX_ATTEMPTS if task.max_attempts is None else task.max_attempts)
