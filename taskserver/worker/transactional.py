"""Executes a task inside the transaction that completes it (`@task(transactional=True)`).

    connect → start → begin → call → complete in the same transaction → commit
                                   ↘ it failed, or cannot be committed: roll back → fail

The transaction has a connection of its own. A failure is written on the run's, as for any other task.
"""

from __future__ import annotations

from ..errors import Conflict, ConnectionLost, DatabaseError, Fatal, ServerFull, Unavailable
from ..interrupts.stop import TaskInterrupted
from ..messages.classes import is_kind
from ..messages.error_text import describe
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

MAX_CAUSES = 5
"""Errors beneath one error among which the driver's is looked for."""


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
        task, call, max_attempts = ready
        try:
            self._transactions.open()  # before the start: without a connection no attempt is counted
        except ServerFull as error:
            self._put_off(task, call, error)
            return
        except DatabaseError as error:
            if attempt is None:
                raise
            self._fail(task, call, attempt, failure_of(error))
            return
        try:
            attempt = attempt or self._attempts.start(task, max_attempts)
            if attempt is not None:
                self._call_in_transaction(task, call, attempt)
        finally:
            self._transactions.close()

    def _put_off(self, task: ClaimedTask, call: Call, error: ServerFull) -> None:
        """In progress → error, not counted: the server has no second connection. The tasks behind it run."""
        failure = failure_of(error)
        seconds = self._attempts.retry_seconds(call, failure, task.attempts + 1)
        if self._transactions.put_off(task, failure.text, seconds):
            self._run.result.taken -= 1
            self._run.result.released += 1
            self._reporter.report_put_off(task, str(error))

    def _call_in_transaction(self, task: ClaimedTask, call: Call, attempt: Attempt) -> None:
        try:
            if not self._transactions.begin(task):
                self._reporter.report_lost(task, "before its code ran")
                return
        except DatabaseError as error:
            self._fail(task, call, attempt, failure_of(error))
            return
        plan = self._attempts.plan([task], call)
        plan = plan._replace(connection=self._transactions.connection, holds_lock=self._run.store.has_one_writer)
        failure, returned = self._attempts.call(plan, attempt, run_alone, call, self._run.keeps_results)
        failure = self._commit(task, attempt, returned) if failure is None else self._checked(failure)
        if failure is not None:
            self._fail(task, call, attempt, failure)

    def _commit(self, task: ClaimedTask, attempt: Attempt, returned: Returned) -> Failure | None:
        """Commit what the task wrote, and its completion; the failure if nothing was committed."""
        try:
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

    def _checked(self, failure: Failure) -> Failure:
        """The failure of a task, which is fatal if the task may have committed by itself."""
        # After an interrupt the next statement might get a late answer. And errors that make the database roll back
        # everything, as a deadlock, leave nothing to be committed twice.
        if failure.is_a(TaskInterrupted) or self._has_rolled_back(failure.error):
            return failure
        try:
            self._transactions.check()
        except Fatal as error:
            text = describe(error)
            return Failure(error, text, f"{text}\n{failure.full_text or failure.text}")
        except DatabaseError:
            pass  # a statement failed, or the connection broke: nothing was committed
        return failure

    def _has_rolled_back(self, error: BaseException | None) -> bool:
        """Whether the driver raised this error, or one beneath it, for a transaction that the database rolled back."""
        dialect = self._run.store.database.dialect
        kinds = [kind for kind in dialect.driver_errors if kind.__module__ != "builtins"]
        for _ in range(MAX_CAUSES):
            if error is not None and is_kind(type(error), kinds):
                found = dialect.error(error)  # ConnectionLost: the task may have closed it
                return isinstance(found, (Conflict, Unavailable)) and not isinstance(found, ConnectionLost)
            error = error and (error.__cause__ or error.__context__)
        return False

    def _fail(self, task: ClaimedTask, call: Call, attempt: Attempt, failure: Failure) -> None:
        self._transactions.close()  # first: it may hold the row's lock
        self._attempts.fail(task, call, attempt, failure)
