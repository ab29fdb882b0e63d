"""Calls TASKSERVER_SETUP once in a run, before any code of a task: what a site needs to be there, as `django.setup()`.

The run has claimed its first tasks then, and has started none. While the setup goes on, the heartbeat gives them back
where others could take them soon; where it fails, the run gives all of them back. So its failure costs no attempt.
"""

from __future__ import annotations

from ..errors import SetupFailed
from ..messages.import_errors import raised_at
from ..settings.checks import Hook
from .hooks import HookMissing, call_hook, find_hook, in_words
from .run_context import RunContext
from .watched_call import CallPlan

MAX_SETUP_SECONDS = 60.0
"""A setup that takes longer is interrupted, and has failed."""


class Setup:
    """The setup of one run."""

    def __init__(self, hook: Hook, run: RunContext) -> None:
        self._hook = hook
        self._name = hook if isinstance(hook, str) else "setup"
        self._run = run
        self._is_done: bool | None = None
        """Whether it went well; None before its call."""

    def is_done(self) -> bool:
        """Whether code of the site may run: calls the setup, the first time.

        False where it failed before, or was interrupted as the run is to end. Raises SetupFailed where it fails now,
        HostLimit.
        """
        if self._is_done is None:
            self._is_done = self._hook is None
            if self._hook is not None:
                self._call()
        return self._is_done

    def _call(self) -> None:
        self._run.heartbeat.start()
        plan = CallPlan((), MAX_SETUP_SECONDS, 0, heeds_cancel=False, name="TASKSERVER_SETUP")
        failure = call_hook(self._run, plan, self._find_and_call)
        self._is_done = failure is None
        if failure is None or self._run.stop.asked:  # a signal may have ended it, or what it started
            return
        place = raised_at(failure.error) if failure.error is not None and not failure.is_a(HookMissing) else ""
        error = SetupFailed(f"TASKSERVER_SETUP: {self._name} {in_words(failure)}{place}")
        error.full_text = failure.full_text
        raise error from failure.error

    def _find_and_call(self) -> None:
        hook = find_hook(self._hook) if isinstance(self._hook, str) else self._hook
        if hook is not None:
            hook()
