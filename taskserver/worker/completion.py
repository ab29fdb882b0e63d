"""The completion of a task in a transaction of its own code: `taskserver.complete(connection)`.

The task's code writes the end of its row on its own connection, beside its own rows, and commits both. Afterwards the
row shows whether that was committed: a row that still has the claim was not completed.
"""

from __future__ import annotations

from operator import methodcaller

from ..errors import DatabaseError, Fatal, LeaseLost, TaskServerError, TooLong, is_refusal
from ..interrupts.stop import TaskInterrupted
from ..model.attempt import Finish, Outcome
from .attempt import Attempt
from .attempts import Attempts
from .call import Failure, failure_of, returned_as, run_user_code
from .finishing import TOO_LONG_TEXT, Finishing
from .reporting import Reporter
from .run_context import RunContext

WENT_ON = "it was interrupted, and went on; nothing may be committed after that"
NOT_COMMITTED = (
    "it called taskserver.complete(), and that was not committed: commit on the connection that was given, and roll "
    "back neither the transaction nor a savepoint around that call"
)
MAX_ROLLBACK_SECONDS = 60.0


class NotCompleted(TaskServerError):
    """The task returned, but the transaction that completes it was not committed."""


class Completions:
    """Writes the completions of one run's tasks."""

    def __init__(self, run: RunContext, attempts: Attempts, finishing: Finishing, reporter: Reporter) -> None:
        self._run = run
        self._attempts = attempts
        self._finishing = finishing
        self._reporter = reporter

    def check_interrupts(self) -> None:
        """Raises TaskInterrupted if the running code swallowed an interrupt.

        It may have cut off an answer of the database: each statement would get the answer to the one before it.
        """
        if self._run.alarm.has_interrupted or self._run.stop.is_forced:
            raise TaskInterrupted(WENT_ON)

    def finish_of(self, attempt: Attempt, value: object) -> Finish:
        """The finish of a task with this result. Raises Fatal if the next stage can't take it."""
        following = attempt.call.next_stage if attempt.call else None
        return self._attempts.completion(attempt.task, returned_as(value, following, self._run.keeps_results))

    def write(self, connection: object, finish: Finish) -> tuple[Finish, Outcome]:
        """Write a completion in the transaction of a connection. Returns the written finish and its outcome.

        Raises Fatal, InvalidTask, DatabaseError.
        """
        callers = self._run.store.callers
        try:
            return finish, callers.complete(connection, finish)
        except TooLong:
            raise Fatal(TOO_LONG_TEXT.removeprefix("Fatal: ")) from None
        except DatabaseError as error:
            if not is_refusal(error) or finish.next_stage is not None:
                raise
            finish = finish._replace(keep_reason=str(error))
        return finish, callers.complete(connection, finish)

    def finish(self, completion: Completion, failure: Failure | None) -> None:
        """End an attempt whose code called complete(): completed if that was committed, else failed."""
        attempt, committed = completion.attempt, self._committed(completion)
        if committed is None:
            self._attempts.fail(attempt, failure or failure_of(NotCompleted(NOT_COMMITTED)))
            return
        finish, outcome = committed
        if failure is not None and outcome is not Outcome.LOST:
            self._reporter.report_failed_after(attempt.task, failure)
        self._finishing.settle(attempt, finish, outcome)

    def _committed(self, completion: Completion) -> tuple[Finish, Outcome] | None:
        """The committed finish and its outcome; None if nothing was committed. Raises DatabaseError.

        An open transaction of the task's code is rolled back: it may lock the task's row, and on SQLite all rows.
        """
        finishes, written = self._run.store.finishes, completion.written
        found = finishes.find_committed(*written) if written else None
        if found is None:
            # The driver may raise anything if the connection is closed, and wait long if the network is dead.
            for how in ("rollback", "close"):
                failure, _ = run_user_code(
                    self._run.alarm, MAX_ROLLBACK_SECONDS, methodcaller(how), completion.connection
                )
                if failure is None:
                    break
            completion.connection = None
            found = finishes.resolve(*written) if written else None
        return (written[0], found) if written and found else None


class Completion:
    """The completion of one running task by its own code."""

    connection: object = None
    """The connection of the last complete()."""
    written: tuple[Finish, Outcome] | None = None
    """The finish that was written there, and its outcome."""
    is_asked_for = False
    """Whether the task's code called complete()."""

    def __init__(self, completions: Completions, attempt: Attempt) -> None:
        self._completions = completions
        self.attempt = attempt

    def complete(self, connection: object, value: object) -> None:
        """Complete the task in the transaction of a connection.

        Raises LeaseLost, TaskServerError, TaskInterrupted.
        """
        self.is_asked_for = True
        if self.written is None:
            self.connection = connection
        self._completions.check_interrupts()
        finish = self._completions.finish_of(self.attempt, value)
        self._completions.check_interrupts()  # an interrupt may have come while the result was converted to JSON
        before, self.written = self.written, (finish, Outcome.AS_ASKED)  # an interrupt may come from here on
        written = self._completions.write(connection, finish)
        if written[1] is not Outcome.LOST:
            self.written, self.connection = written, connection
            return
        self.written = before
        if before is not None:
            raise LeaseLost(
                "taskserver.complete() was called before, which completed this task, unless its lease was lost since"
            )
        raise LeaseLost(
            f"task {self.attempt.task.id} is not this worker's any more, so this transaction must not be committed: "
            "its lease was lost, or connection leads to another server than TASKSERVER_DSN"
        )
