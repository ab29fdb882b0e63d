"""Executes a task alone: one start, one call, one finish. The way of every callable that asks for no other.

Where the task's code has completed it (completion.py), the row tells whether that was committed.
"""

from __future__ import annotations

from ..model.attempt import Outcome
from .attempts import Attempts, ReadyTask
from .call import Failure, failure_of, run_alone
from .completion import NOT_COMMITTED, Completion, Completions, NotCompleted
from .finishing import Finishing
from .reporting import Ended, Reporter
from .run_context import RunContext
from .stats import Attempt


class AloneExecution:
    """Executes tasks one by one."""

    def __init__(
        self, run: RunContext, attempts: Attempts, finishing: Finishing, reporter: Reporter, completions: Completions
    ) -> None:
        self._attempts = attempts
        self._finishing = finishing
        self._reporter = reporter
        self._completions = completions
        self._keeps_results = run.keeps_results

    def execute(self, ready: ReadyTask, attempt: Attempt | None) -> None:
        """Start a task, unless `attempt` says that it is started, and call it. Raises DatabaseError."""
        task, call, max_attempts = ready
        attempt = attempt or self._attempts.start(task, max_attempts)
        if attempt is None:
            return
        completion = Completion(self._completions, task, call.next_stage)
        plan = self._attempts.plan([task], call, completion)
        failure, returned = self._attempts.call(plan, attempt, run_alone, call, self._keeps_results)
        if completion.is_asked_for:
            if self._was_completed(completion, attempt, failure):
                return
            failure = failure or failure_of(NotCompleted(NOT_COMMITTED))
        if failure is None:
            self._attempts.complete(task, attempt, returned)
        else:
            self._attempts.fail(task, call, attempt, failure)

    def _was_completed(self, completion: Completion, attempt: Attempt, failure: Failure | None) -> bool:
        """Whether the task's code has completed the task, or lost it; it is reported then."""
        ended = self._completions.end(completion)
        if ended is None:
            return False
        finish, outcome = ended
        if failure is not None and outcome is not Outcome.LOST:
            self._reporter.report_failed_after(finish.task, failure)
        self._finishing.settle(Ended(finish, attempt), outcome)
        return True
