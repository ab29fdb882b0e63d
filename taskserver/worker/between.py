"""Calls TASKSERVER_BETWEEN before each call of a task's code, and before a run waits for new tasks.

It is for what no task should inherit, as a connection that the server has closed. It may fail no task. So it is called
once the finishes of the tasks before are written, in the commit that starts the next one. The time of a call is short,
and the lease of a started task is renewed meanwhile as it is while its own code runs.
"""

from __future__ import annotations

from ..interrupts.stop import TaskInterrupted
from ..settings.checks import Hook
from .call import aside_seconds
from .hooks import SiteHook
from .run_context import RunContext
from .task_context import CallPlan

NO_TASK = CallPlan((), 0.0, 0)


class Between:
    """The function that one run calls between two tasks; its own first call imports it."""

    def __init__(self, hook: Hook, run: RunContext) -> None:
        self._hook = SiteHook("BETWEEN", hook, run)
        self._run = run
        self._is_due = False
        """Whether code of the site has run since the last call."""

    def call_before(self, plan: CallPlan = NO_TASK) -> None:
        """Call it before the call of this plan, or before other code of the site; nothing of it gets out of here."""
        if self._hook.is_set and not self._run.stop.insisted:
            self._call(plan)
            self._is_due = True

    def call_after(self) -> None:
        """Call it where no code of the site is to follow for a while."""
        if self._is_due and self._hook.is_set:
            self._is_due = False
            self._call(NO_TASK)

    def _call(self, plan: CallPlan) -> None:
        seconds = aside_seconds(self._run.time_limit)
        plan = plan._replace(timeout_seconds=seconds, completion=None, heeds_cancel=False, name=self._hook.setting)
        failure = self._hook.call(plan)
        if failure is not None and not self._run.stop.insisted:
            if failure.is_a(TaskInterrupted):
                self._hook.give_up()
            self._hook.log(failure)
