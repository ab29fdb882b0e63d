"""Executes a task inside the transaction that completes it (`@task(transactional=True)`).

    start → begin → call → complete in the same transaction → commit
                         ↘ it failed, or cannot be committed: roll back → fail

The transaction has a connection of its own; the failure is written on that of the run, as for any other task.
"""

from __future__ import annotations

from ..errors import DatabaseError, Fatal, TooLong
from ..messages.error_text import describe
from ..model.task import ClaimedTask
from ..stores.queue.transactions import Transactions
from .attempts import Attempts, ReadyTask
from .call import Failure, Returned, failure_of, run_alone
from .finishing import TOO_LONG_RESULT, TOO_LONG_TEXT, Finishing
from .preparing import Call
from .reporting import Ended, Reporter
from .run_context import RunContext
from .stats import Attempt

MAX_JSON_BYTES_PER_CHARACTER = 12
"""Bytes that a character of JSON takes in a statement: two surrogates, their backslashes doubled, and some room."""


class TransactionalExecution:
    """Executes tasks one by one, each in its own transaction."""

    def __init__(self, run: RunContext, attempts: Attempts, finishing: Finishing, reporter: Reporter) -> None:
        self._store = run.store
        self._transactions = Transactions(run.store)
        self._attempts = attempts
        self._finishing = finishing
        self._reporter = reporter
        self._keeps_results = run.keeps_results

    def close(self) -> None:
        """Let go of the connection."""
        self._transactions.abandon()

    def execute(self, ready: ReadyTask, attempt: Attempt | None) -> None:
        """Start a task, unless `attempt` says that it is started, and call it. Raises DatabaseError."""
        task, call, max_attempts = ready
        if attempt is None:
            self._transactions.prepare()  # a connection that cannot be had is no attempt
            attempt = self._attempts.start(task, max_attempts)
        if attempt is None:
            return
        try:
            self._call_in_transaction(task, call, attempt)
        except BaseException:
            self._transactions.abandon()
            raise

    def _call_in_transaction(self, task: ClaimedTask, call: Call, attempt: Attempt) -> None:
        transactions = self._transactions
        try:
            has_claim = transactions.begin(task)
        except DatabaseError as error:
            self._attempts.fail(task, call, attempt, failure_of(error))
            return
        if not has_claim:
            self._reporter.report_lost(task, "before its code ran")
            return
        plan = self._attempts.plan([task], call)
        plan = plan._replace(connection=transactions.connection, holds_lock=self._store.has_one_writer)
        failure, returned = self._attempts.call(plan, attempt, run_alone, call, self._keeps_results)
        if failure is None:
            failure = self._commit(task, attempt, returned)
        elif fault := transactions.fault_of_failed():
            failure = _as_fatal(failure, fault)
        if failure is not None:
            transactions.abandon()
            self._attempts.fail(task, call, attempt, failure)

    def _commit(self, task: ClaimedTask, attempt: Attempt, returned: Returned) -> Failure | None:
        """Commit the rows that the task wrote, and its completion. The failure where nothing was committed."""
        finish = self._attempts.completion(task, returned)
        try:
            self._transactions.check()
            if (
                finish.result is not None
                and len(finish.result) * MAX_JSON_BYTES_PER_CHARACTER > self._transactions.most_bytes
            ):
                # The server would hang up, and the rows that the task wrote would be gone with the connection.
                self._reporter.report_unkept_result(task, TOO_LONG_RESULT)
                finish = finish._replace(result=None)
            outcome = self._transactions.complete(finish)
        except TooLong:
            return failure_of(Fatal(TOO_LONG_TEXT.removeprefix("Fatal: ")))
        except (DatabaseError, Fatal) as error:
            return failure_of(error)
        self._finishing.settle(Ended(finish, attempt), outcome)
        return None


def _as_fatal(failure: Failure, fault: Fatal) -> Failure:
    """A failure that is not to be retried, because of this fault."""
    text = describe(fault)
    return Failure(fault, text, f"{text}\n{failure.full_text or failure.text}")
