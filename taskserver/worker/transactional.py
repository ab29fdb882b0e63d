"""Executes a task inside the transaction that completes it (`@task(transactional=True)`).

    connect → start → begin → call → complete in the same transaction → commit
                                   ↘ it failed, or cannot be committed: roll back → fail

The transaction has a connection of its own; the failure is written on that of the run, as for any other task.
"""

from __future__ import annotations

from ..errors import DatabaseError, Fatal, ServerFull
from ..interrupts.stopping import TaskInterrupted
from ..messages.error_text import both, describe
from ..model.attempt import Outcome
from ..model.task import ClaimedTask
from ..stores.queue.transactions import Transactions
from .attempts import Attempts, ReadyTask
from .call import Failure, Returned, failure_of, run_alone
from .completion import Completions
from .finishing import Finishing
from .preparing import Call
from .reporting import Ended, Reporter
from .run_context import RunContext
from .stats import Attempt


class TransactionalExecution:
    """Executes tasks one by one, each in its own transaction."""

    def __init__(
        self, run: RunContext, attempts: Attempts, finishing: Finishing, reporter: Reporter, completions: Completions
    ) -> None:
        self._run = run
        self._transactions = Transactions(run.store)
        self._attempts = attempts
        self._finishing = finishing
        self._reporter = reporter
        self._completions = completions

    def execute(self, ready: ReadyTask, attempt: Attempt | None) -> None:
        """Start a task, unless `attempt` says that it is started, and call it. Raises DatabaseError."""
        try:
            attempt = self._connect_and_start(ready, attempt)
            if attempt is not None:
                self._call_in_transaction(ready.task, ready.call, attempt)
        finally:
            self._transactions.close()

    def _connect_and_start(self, ready: ReadyTask, attempt: Attempt | None) -> Attempt | None:
        """Open the task's connection, then start the task: a connection that cannot be had is no attempt.

        None where the task is over with that. Raises DatabaseError.
        """
        task, call, max_attempts = ready
        if not self._transactions.can_open_beside():
            return self._start_in_place(ready, attempt)
        try:
            self._transactions.open()
        except ServerFull:
            return self._start_in_place(ready, attempt)
        except DatabaseError as error:
            if attempt is None:
                raise
            self._fail(task, call, attempt, failure_of(error))
            return None
        return attempt or self._attempts.start(task, max_attempts)

    def _start_in_place(self, ready: ReadyTask, attempt: Attempt | None) -> Attempt | None:
        """The same where no second connection is to be had: the run gives up its own until the task has ended."""
        task, _, max_attempts = ready
        self._finishing.save()
        self._run.heartbeat.claimed.release(self._run.store)  # nobody could do it while the task runs
        if attempt is not None:
            self._transactions.unstart(task)
        self._attempts.prepare()
        self._transactions.open_in_place()
        has_started = self._transactions.start(task, max_attempts)
        return attempt or self._attempts.attempt(task, has_started)

    def _call_in_transaction(self, task: ClaimedTask, call: Call, attempt: Attempt) -> None:
        try:
            if not self._transactions.begin(task):
                self._reporter.report_lost(task, "before its code ran")
                return
        except DatabaseError as error:
            self._fail(task, call, attempt, failure_of(error))
            return
        plan = self._attempts.plan([task], call)
        plan = plan._replace(connection=self._transactions.connection, holds_lock=self._transactions.holds_lock)
        failure, returned = self._attempts.call(plan, attempt, run_alone, call, self._run.keeps_results)
        failure = self._commit(task, attempt, returned) if failure is None else self._with_fault(failure)
        if failure is not None:
            self._fail(task, call, attempt, failure)

    def _commit(self, task: ClaimedTask, attempt: Attempt, returned: Returned) -> Failure | None:
        """Commit the rows that the task wrote, and its completion. The failure where nothing was committed."""
        try:
            if self._completions.is_interrupted():
                self._transactions.check_unread()
            self._completions.check_interrupts()
            self._transactions.check()
            finish, outcome = self._completions.write(
                self._transactions.connection, self._attempts.completion(task, returned)
            )
            if outcome is not Outcome.LOST:
                outcome = self._transactions.commit(finish, outcome)
        except (DatabaseError, Fatal, TaskInterrupted) as error:
            return failure_of(error)
        self._finishing.settle(Ended(finish, attempt), outcome)
        return None

    def _with_fault(self, failure: Failure) -> Failure:
        """The failure of a task, which is not to be retried where the task may have committed by itself."""
        try:
            if failure.is_a(TaskInterrupted):
                self._transactions.check_unread()
            else:
                self._transactions.check()
        except Fatal as error:
            text = describe(error)
            return Failure(error, text, f"{text}\n{failure.full_text or failure.text}")
        except DatabaseError as error:  # the transaction was rolled back or broke, so nothing was committed
            if self._transactions.has_gone_on:
                return failure._replace(text=both(describe(error), failure.text))
        return failure

    def _fail(self, task: ClaimedTask, call: Call, attempt: Attempt, failure: Failure) -> None:
        self._transactions.close()  # before anything is written elsewhere: it may have the row's lock
        self._attempts.fail(task, call, attempt, failure)
