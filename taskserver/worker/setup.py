"""Calls TASKSERVER_SETUP once in a run, before any code of a task: what a site needs to be there, as `django.setup()`.

The run has claimed its first tasks then, and has started none. While the setup goes on, the heartbeat gives them back
where others could take them soon; where it fails, the run gives all of them back. So its failure costs no attempt.
"""

from __future__ import annotations

from ..errors import SetupFailed
from ..settings.checks import Hook
from .hooks import SiteHook, in_words_with_place
from .run_context import RunContext
from .task_context import CallPlan

MAX_SETUP_SECONDS = 60.0
"""A setup that takes longer is interrupted, and has failed."""


class Setup:
    """The setup of one run."""

    def __init__(self, hook: Hook, run: RunContext) -> None:
        self._hook = SiteHook("SETUP", hook, run)
        self._run = run
        self._is_ready: bool | None = None if self._hook.is_set else True
        """Whether it went well; None before its call."""

    def make_ready(self) -> bool:
        """Call the setup, the first time; whether code of the site may run.

        False where it failed before, or was interrupted as the run is to end. Raises SetupFailed where it fails now,
        HostLimit.
        """
        if self._is_ready is None:
            self._call()
        return bool(self._is_ready)

    def _call(self) -> None:
        # A hook's call would do without this thread. But a host that lets none start can run no task: the run ends.
        self._run.heartbeat.start()
        plan = CallPlan((), MAX_SETUP_SECONDS, 0, heeds_cancel=False, name=self._hook.setting)
        failure = self._hook.call(plan)
        self._is_ready = failure is None
        if failure is None or self._run.stop.asked:  # a signal may have ended it, or what it started
            return
        error = SetupFailed(f"{self._hook.setting}: {self._hook.name} {in_words_with_place(failure)}")
        error.full_text = failure.full_text
        raise error from failure.error
