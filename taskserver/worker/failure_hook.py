"""Calls TASKSERVER_ON_FAILURE after each failed attempt: foreign code, which may fail no task and hold up no run."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from importlib import import_module
from logging import INFO, WARNING, getLogger
from typing import Any

from ..errors import SettingError
from ..interrupts.stopping import TaskInterrupted
from ..interrupts.time_limit import TimeLimit
from ..messages.error_text import describe
from ..messages.log_records import about_task
from ..model.failed_attempt import FailedAttempt
from .call import Failure, aside_seconds, run_foreign

LOG = getLogger("taskserver")

MAX_HUNG = 3
"""After so many calls of a run that were interrupted it is not called any more."""


class FailureHook:
    """The hook of one run, imported when an attempt fails."""

    def __init__(self, hook: str | Callable[[FailedAttempt], object] | None, time_limit: TimeLimit) -> None:
        """`hook` is `module:function`, a function, or None."""
        self._hook = hook
        self._name = hook if isinstance(hook, str) else "on_failure"
        self._time_limit = time_limit
        self._hung = 0
        self._has_warned = False

    @property
    def is_set(self) -> bool:
        """Whether there is one that may be called."""
        return self._hook is not None

    def tell(self, failed: FailedAttempt) -> None:
        """Call the hook. Whatever it does, it gets some seconds, and nothing of it gets out of here."""
        if self._hook is None:
            return
        failure, _ = run_foreign(self._time_limit, aside_seconds(self._time_limit), self._call, failed)
        if failure is None:
            return
        if failure.is_a(TaskInterrupted):
            self._hung += 1
            if self._hung == MAX_HUNG:
                self._hook = None
        elif isinstance(self._hook, str):
            self._hook = None  # it could not be imported
        self._log(failed, failure)

    def _call(self, failed: FailedAttempt) -> None:
        if isinstance(self._hook, str):
            self._hook = find_hook(self._hook)
        if self._hook is not None:
            self._hook(failed)

    def _log(self, failed: FailedAttempt, failure: Failure) -> None:
        text = f"failed: {failure.text.partition(chr(10))[0]}"
        if failure.is_a(HookMissing):
            text = text.replace("failed: HookMissing", "cannot be had", 1)
        level, self._has_warned = INFO if self._has_warned else WARNING, True
        extra = about_task(failed.id, failed.task, failed.attempt, text, failure.full_text)
        no_more = "" if self._hook else "; it is not called again in this run"
        LOG.log(level, "TASKSERVER_ON_FAILURE: %s %s%s", self._name, text, no_more, extra=extra)


class HookMissing(SettingError):
    """There is no such function."""


def find_hook(name: str) -> Callable[[FailedAttempt], object]:
    """The function of a name, `module:function`. Raises HookMissing."""
    module, _, path = name.partition(":")
    try:
        found: Any = reduce(getattr, path.split("."), import_module(module))
    except Exception as error:
        raise HookMissing(describe(error)) from error
    if not callable(found):
        raise HookMissing(f"it is no function, but of type {type(found).__name__}")
    function: Callable[[FailedAttempt], object] = found
    return function
