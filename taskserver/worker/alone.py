"""Executes a task alone: one start, one call, one finish. The way of every callable that asks for no other."""

from __future__ import annotations

from .attempts import Attempts, ReadyTask
from .call import run_alone
from .run_context import RunContext
from .stats import Attempt


class AloneExecution:
    """Executes tasks one by one."""

    def __init__(self, run: RunContext, attempts: Attempts) -> None:
        self._attempts = attempts
        self._keeps_results = run.keeps_results

    def execute(self, ready: ReadyTask, attempt: Attempt | None) -> None:
        """Start a task, unless `attempt` says that it is started, and call it. Raises DatabaseError."""
        task, call, max_attempts = ready
        attempt = attempt or self._attempts.start(task, max_attempts)
        if attempt is None:
            return
        plan = self._attempts.plan([task], call)
        failure, returned = self._attempts.call(plan, attempt, run_alone, call, self._keeps_results)
        if failure is None:
            self._attempts.complete(task, attempt, returned)
        else:
            self._attempts.fail(task, call, attempt, failure)
