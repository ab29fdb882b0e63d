"""The same for tasks that run inside the transaction which completes them (`@task(transactional=True)`)."""

from __future__ import annotations

from .call import Call, Failure, Returned, failure_of, run_alone
from .error_text import describe
from .errors import DatabaseError, Fatal, TooLong
from .executor import TOO_LONG_RESULT, TOO_LONG_TEXT, Ended, Executor, RunContext
from .lifecycle import ClaimedTask
from .stores.transactions import Transactions

MOST_BYTES_A_CHARACTER = 12
"""Of JSON in a statement: as two surrogates, their backslashes doubled, with some room."""


class TransactionalExecutor(Executor):
    """Runs the claimed tasks of one run, one by one, each in its own transaction where its callable wants that."""

    def __init__(self, run: RunContext) -> None:
        super().__init__(run)
        self._transactions = Transactions(run.store)

    def end(self) -> None:
        """The run has ended."""
        self._transactions.abandon()

    def _run_ready(self, task: ClaimedTask, call: Call, limit: int) -> None:
        if call.callable.options.transactional:
            self._transactions.prepare()  # a connection that cannot be had is no attempt
        super()._run_ready(task, call, limit)

    def _attempt(self, task: ClaimedTask, call: Call) -> None:
        if not call.callable.options.transactional:
            super()._attempt(task, call)
            return
        try:
            try:
                is_ours = self._transactions.begin(task)
            except DatabaseError as error:
                self._fail(task, call, failure_of(error))
                return
            if is_ours:
                self._attempt_within(task, call)
            else:
                self._lose(task, "before its code ran")
        except BaseException:
            self._transactions.abandon()
            raise

    def _attempt_within(self, task: ClaimedTask, call: Call) -> None:
        """Run it in the transaction that has begun."""
        transactions = self._transactions
        watch = self._watch([task], call)._replace(
            connection=transactions.connection, holds_lock=self._store.one_writer
        )
        failure, returned = self._guarded_unless_stopped(watch, run_alone, call, self._keeps_results)
        if failure is None:
            failure = self._commit(task, returned)
        elif fault := transactions.fault_of_failed():
            failure = _as_fatal(failure, fault)
        if failure is not None:
            transactions.abandon()
            self._fail(task, call, failure)

    def _commit(self, task: ClaimedTask, returned: Returned) -> Failure | None:
        """Commit what it wrote, and its end. How that failed, and nothing was committed."""
        finish = self._finish_of(task, returned)
        try:
            self._transactions.check()
            if (
                finish.result is not None
                and len(finish.result) * MOST_BYTES_A_CHARACTER > self._transactions.most_bytes
            ):
                # The server would hang up, and what the task wrote would be gone with the connection.
                self._tell_of_result(task, TOO_LONG_RESULT)
                finish = finish._replace(result=None)
            outcome = self._transactions.complete(finish)
        except TooLong:
            return failure_of(Fatal(TOO_LONG_TEXT.removeprefix("Fatal: ")))
        except (DatabaseError, Fatal) as error:
            return failure_of(error)
        self._settle(Ended(finish, self._timed, ()), outcome)
        return None


def _as_fatal(failure: Failure, fault: Fatal) -> Failure:
    """A failure that is not to be tried again, for this reason."""
    text = describe(fault)
    return Failure(fault, text, f"{text}\n{failure.full_text or failure.text}")
