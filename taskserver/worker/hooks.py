"""Functions of a site that a run calls beside its tasks: TASKSERVER_SETUP, TASKSERVER_BETWEEN, TASKSERVER_ON_FAILURE.

Each is found by name and called with a timeout and the heartbeat. Only settings can name them, rows cannot. They are
user code, which must never fail a task or block the run:

    setup     once, before the first task is started, so its failure costs no attempt
    between   before each call of a task's code, and before a run waits for new tasks
    failure   after each failed attempt, when its end is written and no task is started
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import reduce
from importlib import import_module
from inspect import CO_COROUTINE
from logging import INFO, WARNING, getLogger
from types import CoroutineType
from typing import Any

from ..errors import HostLimit, SettingError, SetupFailed
from ..interrupts.stop import TaskInterrupted
from ..messages.error_text import describe
from ..messages.import_errors import raised_at
from ..messages.log_records import FULL_TEXT, ONCE_AN_HOUR, about_task
from ..model.attempt import FailedAttempt
from ..model.functions import why_not_runnable
from ..settings.table import PREFIX
from ..settings.table import Hook as Named
from .call import Failure, run_user_code, side_call_seconds
from .run_context import RunContext
from .task_context import CallPlan

LOG = getLogger("taskserver")

NOBODY_AWAITS = "which nobody awaits; name a plain one, which may asyncio.run it"
NO_TASK = CallPlan((), 0.0, 0)
MAX_SETUP_SECONDS = 60.0
"""A setup that takes longer is interrupted, which is a failure."""
MAX_TOGETHER_SECONDS = 30.0
"""For all calls of the failure hook for failures that were written together."""
MAX_LEAVING_SECONDS = 1.0
"""The same if the run ends."""


class HookMissing(SettingError):
    """There is no such function, or it cannot be a hook."""


def find_hook(hook: str | Callable[..., object]) -> Callable[..., object]:
    """The function `module:function`, or a given function if it can be a hook. Raises HookMissing."""
    found = _named(hook) if isinstance(hook, str) else hook
    if not callable(found):
        raise HookMissing(f"it is no function, but of type {type(found).__name__}")
    if why := why_not_runnable(found):
        raise HookMissing(f"it {why}")
    if getattr(getattr(found, "__code__", None), "co_flags", 0) & CO_COROUTINE:
        raise HookMissing(f"it is an async def function, {NOBODY_AWAITS}")
    function: Callable[..., object] = found
    return function


def call_hook(function: Callable[..., object], *args: object) -> None:
    """Call the function of a hook. Raises what it raises, and HookMissing if it returned a coroutine."""
    returned = function(*args)
    if isinstance(returned, CoroutineType):
        returned.close()
        raise HookMissing(f"it returned a coroutine, {NOBODY_AWAITS}")


def _named(name: str) -> Any:
    module, _, path = name.partition(":")
    try:
        return reduce(getattr, path.split("."), import_module(module))
    except Exception as error:
        raise HookMissing(describe(error)) from error


class Hook:
    """One function of the site, imported when first called."""

    def __init__(self, key: str, hook: Named, run: RunContext, max_hung: int = 1) -> None:
        """`key` is that of the setting, without TASKSERVER_. It is disabled after `max_hung` interrupted calls."""
        self.setting = f"{PREFIX}{key}"
        self.name = hook if isinstance(hook, str) else key.lower()
        """Its name in messages."""
        self._hook = hook
        self._run = run
        self._hung_left = max_hung
        self._has_warned = False

    @property
    def is_set(self) -> bool:
        return self._hook is not None

    def call(self, plan: CallPlan, *args: Any) -> Failure | None:
        """Call it with the timeout of a plan. Returns its failure, or None.

        A function that failed to import is not called again.
        """
        with suppress(HostLimit):  # then only the timer interrupts it
            self._run.heartbeat.start()
        self._run.heartbeat.begin(plan)
        try:
            failure, _ = run_user_code(self._run.alarm, plan.timeout_seconds, self._find_and_call, *args)
        finally:
            self._run.heartbeat.end()
        if failure is None:
            return None
        is_hung = failure.is_a(TaskInterrupted)
        self._hung_left -= is_hung
        if not self._hung_left or (isinstance(self._hook, str) and not is_hung):
            self._hook = None
        return failure

    def _find_and_call(self, *args: Any) -> None:
        if self._hook is not None:
            self._hook = find_hook(self._hook)
            call_hook(self._hook, *args)

    def log(self, failure: Failure, extra: Mapping[str, object] | None = None) -> None:
        """Log a failed call: the first of a run as a warning with its traceback, the others as info."""
        level, full_text = (INFO, "") if self._has_warned else (WARNING, failure.full_text)
        self._has_warned = True
        no_more = "" if self.is_set else "; it is not called again in this run"
        extra = {**(extra or {}), FULL_TEXT: full_text, ONCE_AN_HOUR: True}
        LOG.log(level, f"{self.setting}: %s %s%s", self.name, in_words_with_place(failure), no_more, extra=extra)


class Hooks:
    """The hooks of one run."""

    def __init__(self, run: RunContext) -> None:
        self._run = run
        self._setup = Hook("SETUP", run.settings.setup, run)
        self._between = Hook("BETWEEN", run.settings.between, run)
        self._failure = Hook("ON_FAILURE", run.settings.on_failure, run, max_hung=3)
        self._is_set_up: bool | None = None if self._setup.is_set else True
        """None before the setup is called."""
        self._has_worked = False
        """Whether code of the site has run since the last call between tasks."""
        self.pending: deque[FailedAttempt] = deque()
        """Failed attempts that the failure hook has not seen yet."""

    # ---- setup

    def set_up(self) -> bool:
        """Call the setup the first time. Returns whether code of the site may run.

        False if it failed before, or the end of the run interrupted it. Raises SetupFailed if it fails now, HostLimit.
        """
        if self._is_set_up is None:
            # A hook would not need this thread. But if the host allows none, no task can run: the run ends.
            self._run.heartbeat.start()
            plan = NO_TASK._replace(timeout_seconds=MAX_SETUP_SECONDS, is_cancellable=False, name=self._setup.setting)
            failure = self._setup.call(plan)
            self._is_set_up = failure is None
            if failure is not None and not self._run.stop.asked:  # else the signal may have ended it
                error = SetupFailed(f"{self._setup.setting}: {self._setup.name} {in_words_with_place(failure)}")
                error.full_text = failure.full_text
                raise error from failure.error
        return self._is_set_up

    # ---- between

    def between(self, plan: CallPlan = NO_TASK) -> None:
        """Call the hook before the call of this plan, and renew its leases meanwhile."""
        if not self._between.is_set or self._run.stop.is_forced:
            return
        seconds = side_call_seconds(self._run.alarm)
        plan = plan._replace(timeout_seconds=seconds, completion=None, is_cancellable=False, name=self._between.setting)
        failure = self._between.call(plan)
        self._has_worked = True
        if failure is not None and not self._run.stop.is_forced:
            self._between.log(failure)

    def before_wait(self) -> None:
        """Call the hook before a run waits, if code of the site has run since its last call."""
        if self._has_worked:
            self.between()
            self._has_worked = False

    # ---- failure

    @property
    def has_failure_hook(self) -> bool:
        return self._failure.is_set

    def call_later(self, failed: FailedAttempt) -> None:
        """Keep a failed attempt for `call_pending`. Thread-safe."""
        if self._failure.is_set:
            self.pending.append(failed)

    def call_pending(self) -> None:
        """Call the failure hook for each kept attempt: in the run's own thread, while no task is started.

        Each call has a timeout, all together too, and no error gets out. Raises SetupFailed, HostLimit.
        """
        if not self.pending or not self.set_up():
            return
        self.between()  # a failed call may have left a broken connection
        began_at = time.monotonic()
        while self.pending and self._failure.is_set and self._has_time(began_at):
            self._call_for(self.pending.popleft())
        if self.pending and self._failure.is_set:
            is_leaving = self._run.limits.should_leave()
            LOG.warning(
                "TASKSERVER_ON_FAILURE: %s was not called for %d failed attempts, as %s",
                *(self._failure.name, len(self.pending)),
                "the run has to end" if is_leaving else f"its calls for those before took {MAX_TOGETHER_SECONDS:g} s",
            )
        self.pending.clear()

    def _has_time(self, began_at: float) -> bool:
        most = MAX_LEAVING_SECONDS if self._run.limits.should_leave() else MAX_TOGETHER_SECONDS
        return not self._run.stop.is_forced and time.monotonic() - began_at < most

    def _call_for(self, failed: FailedAttempt) -> None:
        seconds = side_call_seconds(self._run.alarm)
        name = f"{self._failure.setting}, called for task {failed.id} {failed.task},"
        plan = NO_TASK._replace(timeout_seconds=seconds, is_cancellable=False, name=name)
        failure = self._failure.call(plan, failed)
        if failure is not None:
            extra = about_task(failed.id, failed.task, failed.attempt, in_words(failure), failure.full_text)
            self._failure.log(failure, extra)


def in_words(failure: Failure) -> str:
    """How the call of a hook failed, as the end of a sentence; one line."""
    is_missing = failure.is_a(HookMissing)
    words, text = ("cannot be used", str(failure.error)) if is_missing else ("failed", failure.text)
    return f"{words}: {text.partition(chr(10))[0]}"


def in_words_with_place(failure: Failure) -> str:
    """The same, with the file and line of the site that raised the error."""
    if failure.error is None or failure.is_a(HookMissing):
        return in_words(failure)
    return f"{in_words(failure)}{raised_at(failure.error)}"
