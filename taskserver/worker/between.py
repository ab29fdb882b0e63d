"""Calls TASKSERVER_BETWEEN before each call of a task's code, and before a run waits for new tasks.

It is for what no task should inherit, as a connection that the server has closed. It may fail no task. So it is called
once the finishes of the tasks before are written, in the commit that starts the next one. The time of a call is short,
and the lease of a started task is renewed meanwhile as it is while its own code runs.
"""

from __future__ import annotations

from logging import INFO, WARNING, getLogger

from ..interrupts.stopping import TaskInterrupted
from ..messages.log_records import FULL_TEXT
from ..settings.checks import Hook
from .call import Failure, aside_seconds
from .hooks import call_hook, find_hook, in_words
from .run_context import RunContext
from .watched_call import CallPlan

LOG = getLogger("taskserver")

NO_TASK = CallPlan((), 0.0, 0)


class Between:
    """The function of one run that is called between two tasks, imported when the first one is about to begin."""

    def __init__(self, hook: Hook, run: RunContext) -> None:
        self._hook = hook
        self._name = hook if isinstance(hook, str) else "between"
        self._run = run
        self._has_warned = False
        self._is_due = False
        """Whether code of the site has run since the last call."""

    def call_before(self, plan: CallPlan = NO_TASK) -> None:
        """Call it before the call of this plan, or before other code of the site; nothing of it gets out of here."""
        if self._hook is not None and not self._run.stop.insisted:
            self._call(plan)
            self._is_due = True

    def call_after(self) -> None:
        """Call it where no code of the site is to follow for a while."""
        if self._is_due and self._hook is not None:
            self._is_due = False
            self._call(NO_TASK)

    def _call(self, plan: CallPlan) -> None:
        seconds = aside_seconds(self._run.time_limit)
        plan = plan._replace(timeout_seconds=seconds, completion=None, heeds_cancel=False, name="TASKSERVER_BETWEEN")
        failure = call_hook(self._run, plan, self._find_and_call)
        if failure is not None and not self._run.stop.insisted:
            if isinstance(self._hook, str) or failure.is_a(TaskInterrupted):  # it cannot be imported, or hangs
                self._hook = None
            self._log(failure)

    def _find_and_call(self) -> None:
        if isinstance(self._hook, str):
            self._hook = find_hook(self._hook)
        if self._hook is not None:
            self._hook()

    def _log(self, failure: Failure) -> None:
        level, self._has_warned = INFO if self._has_warned else WARNING, True
        no_more = "" if self._hook else "; it is not called again in this run"
        words = f"TASKSERVER_BETWEEN: {self._name} {in_words(failure)}{no_more}"
        LOG.log(level, words, extra={FULL_TEXT: failure.full_text})
