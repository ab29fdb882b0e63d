"""Calls TASKSERVER_ON_FAILURE after each failed attempt: foreign code, which may fail no task and hold up no run.

It is called once the end of the attempt is written, and while no task is started: nothing renews a lease meanwhile, and
a hook that ends the process costs no task an attempt. The heartbeat watches over each call as over that of a task.
"""

from __future__ import annotations

import time
from collections import deque
from logging import getLogger

from ..interrupts.stop import TaskInterrupted
from ..messages.log_records import about_task
from ..model.failed_attempt import FailedAttempt
from ..settings.checks import Hook
from .between import Between
from .call import aside_seconds
from .hooks import SiteHook, in_words
from .run_context import RunContext
from .task_context import CallPlan

LOG = getLogger("taskserver")

MAX_HUNG = 3
"""After so many calls of a run that were interrupted it is not called any more."""
MAX_TOGETHER_SECONDS = 30.0
"""No call begins so long after the first one of those that are told together, as of a round or a batch."""
MAX_LEAVING_SECONDS = 1.0
"""The same of a run that is to end."""


class FailureHook:
    """The hook of one run; its first call, when an attempt has failed, imports it."""

    def __init__(self, hook: Hook, run: RunContext, between: Between) -> None:
        self._hook = SiteHook("ON_FAILURE", hook, run)
        self._between = between
        self._run = run
        self._hung = 0
        self._untold: deque[FailedAttempt] = deque()

    @property
    def has_untold(self) -> bool:
        """Whether it is to be called for an attempt."""
        return bool(self._untold)

    @property
    def is_set(self) -> bool:
        """Whether there is one that may be called."""
        return self._hook.is_set

    def tell_later(self, failed: FailedAttempt) -> None:
        """Have `tell` call the hook for this attempt. Any thread may say so."""
        if self._hook.is_set:
            self._untold.append(failed)

    def tell(self) -> None:
        """Call the hook for the attempts that failed; in the run's own thread, and while no task is started.

        Whatever it does, each call gets some seconds, all have an end, and nothing of it gets out of here.
        """
        if not self._untold:
            return
        self._between.call_before()  # a call that failed may have left a broken connection
        began_at = time.monotonic()
        while self._untold and self._hook.is_set and self._may_go_on(began_at):
            self._tell(self._untold.popleft())
        if self._untold and self._hook.is_set:
            LOG.warning(
                "TASKSERVER_ON_FAILURE: %s was not called for %d failed attempts, as %s",
                *(self._hook.name, len(self._untold), self._why_not()),
            )
        self._untold.clear()

    def _may_go_on(self, began_at: float) -> bool:
        """Whether one more call may begin."""
        most = MAX_LEAVING_SECONDS if self._run.limits.is_to_leave() else MAX_TOGETHER_SECONDS
        return not self._run.stop.insisted and time.monotonic() - began_at < most

    def _why_not(self) -> str:
        if self._run.limits.is_to_leave():
            return "the run is to end"
        return f"its calls for those before took {MAX_TOGETHER_SECONDS:g} s"

    def _tell(self, failed: FailedAttempt) -> None:
        seconds = aside_seconds(self._run.time_limit)
        name = f"{self._hook.setting}, called for task {failed.id} {failed.task},"
        failure = self._hook.call(CallPlan((), seconds, 0, heeds_cancel=False, name=name), failed)
        if failure is None:
            return
        if failure.is_a(TaskInterrupted):
            self._hung += 1
            if self._hung == MAX_HUNG:
                self._hook.give_up()
        extra = about_task(failed.id, failed.task, failed.attempt, in_words(failure), failure.full_text)
        self._hook.log(failure, extra)
