"""Runs a task inside the transaction that completes it: `@task(transactional=True)`.

    connect → start → begin → call → complete in the same transaction → commit
                                   ↘ it failed, or cannot be committed: roll back → fail
                                   ↘ a deadlock: roll back, and call again in the same attempt

The transaction has its own connection. A failure is written on the run's connection, as for any other task.
"""

from __future__ import annotations

from ..errors import Conflict, ConnectionLost, DatabaseError, Deadlock, Fatal, Later, Retry, ServerFull, Unavailable
from ..interrupts.stop import TaskInterrupted
from ..messages.classes import is_kind
from ..messages.error_text import describe
from ..model.attempt import Outcome, postponed
from ..stores.queue.transactions import Transactions
from ..stores.retrying import RetryPolicy, Scope
from .attempt import Attempt
from .attempts import Attempts
from .call import Failure, Returned, failure_of, run_alone
from .completion import Completions
from .finishing import Finishing
from .reporting import Reporter
from .run_context import RunContext

AFTER_DEADLOCKS = RetryPolicy(Scope.TRANSACTION, conflict_seconds=2.0)
"""How long a task is called again at once; later only as another attempt."""
MAX_CAUSES = 5
"""How deep the driver's error is searched among the causes of an error."""


class TransactionalCalls:
    """Runs tasks one by one, each in its own transaction."""

    def __init__(
        self, run: RunContext, attempts: Attempts, completions: Completions, finishing: Finishing, reporter: Reporter
    ) -> None:
        self._run = run
        self._transactions = Transactions(run.store)
        self._attempts = attempts
        self._completions = completions
        self._finishing = finishing
        self._reporter = reporter

    def run(self, attempt: Attempt) -> None:
        """Run one task."""
        try:
            self._transactions.open()  # before the start, so that no attempt is counted without a connection
        except ServerFull as error:  # the other tasks run
            self._reporter.report_no_connection(attempt.task, error)
            seconds = self._attempts.retry_seconds(attempt, failure_of(error))
            self._finishing.add(attempt, postponed(attempt.task, str(error), seconds))
            return
        except DatabaseError as error:
            if not attempt.has_started:
                raise
            self._attempts.fail(attempt, failure_of(error))
            return
        try:
            failure = self._call_until_no_deadlock(attempt) if self._attempts.start(attempt) else None
        finally:
            self._transactions.close()  # before a failure is written: it may hold the row's lock
        if failure is not None:
            self._attempts.fail(attempt, failure)

    def _call_until_no_deadlock(self, attempt: Attempt) -> Failure | None:
        """Begin, call and commit, again after a deadlock. Returns the failure if nothing was committed."""
        database = self._run.store.database
        tries = database.tries(AFTER_DEADLOCKS)
        while (failure := self._call(attempt)) is not None:
            found = self._database_error(failure.error)
            if failure.is_a(Fatal, Retry, Later, TaskInterrupted):  # chosen, though after a deadlock
                break
            if not isinstance(found, Deadlock) or not tries.wait_to_retry(found):
                break
            self._transactions.close()
            # The calls together may outlast the lease, which is renewed only during a long one.
            if not self._run.store.finishes.renew(attempt.task):
                self._reporter.report_lost(attempt.task, "before its code ran again")
                return None
            try:
                self._transactions.open()
            except DatabaseError:
                break
            self._reporter.report_called_again(attempt.task, found)
        return failure

    def _call(self, attempt: Attempt) -> Failure | None:
        """Begin, call and commit. Returns the failure if nothing was committed."""
        try:
            if not self._transactions.begin(attempt.task):
                self._reporter.report_lost(attempt.task, "before its code ran")
                return None
        except DatabaseError as error:
            return failure_of(error)
        plan = self._attempts.plan(attempt)._replace(
            connection=self._transactions.connection, holds_lock=self._run.store.has_one_writer
        )
        failure, returned = self._attempts.call(plan, attempt, run_alone, attempt.call, self._run.keeps_results)
        return self._commit(attempt, returned) if failure is None else self._checked(failure)

    def _commit(self, attempt: Attempt, returned: Returned) -> Failure | None:
        """Commit what the task wrote, and its completion. Returns the failure if nothing was committed."""
        try:
            self._completions.check_interrupts()
            self._transactions.check()
            finish, outcome = self._completions.write(
                self._transactions.connection, self._attempts.completion(attempt.task, returned)
            )
            if outcome is not Outcome.LOST:
                outcome = self._transactions.commit(finish, outcome)
        except (DatabaseError, Fatal, TaskInterrupted) as error:
            return failure_of(error)
        self._finishing.settle(attempt, finish, outcome)
        return None

    def _checked(self, failure: Failure) -> Failure:
        """The failure of a task; fatal if the task may have committed itself."""
        # After an interrupt the next statement might get a late answer. And after an error such as a deadlock the
        # database has rolled back everything, so nothing can be committed twice.
        found = self._database_error(failure.error)
        has_rolled_back = isinstance(found, (Conflict, Unavailable)) and not isinstance(found, ConnectionLost)
        if failure.is_a(TaskInterrupted) or has_rolled_back:
            return failure
        try:
            self._transactions.check()
        except Fatal as error:
            text = describe(error)
            return Failure(error, text, f"{text}\n{failure.full_text or failure.text}")
        except DatabaseError:
            pass  # a statement failed, or the connection broke: nothing was committed
        return failure

    def _database_error(self, error: BaseException | None) -> DatabaseError | None:
        """Our error for a driver's, which is this one or its cause; a ConnectionLost may be the task's close()."""
        dialect = self._run.store.database.dialect
        kinds = [kind for kind in dialect.driver_errors if kind.__module__ != "builtins"]
        for _ in range(MAX_CAUSES):
            if error is not None and is_kind(type(error), kinds):
                return dialect.error(error)
            error = error and (error.__cause__ or error.__context__)
        return None
