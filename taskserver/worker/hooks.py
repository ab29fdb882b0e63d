"""Functions of a site that a run calls beside its tasks: found by name, and called under a time limit.

TASKSERVER_SETUP, TASKSERVER_BETWEEN and TASKSERVER_ON_FAILURE name one each. Rows cannot: this is not callables.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import reduce
from importlib import import_module
from inspect import CO_COROUTINE
from logging import INFO, WARNING, getLogger
from types import CoroutineType
from typing import Any

from ..errors import HostLimit, SettingError
from ..interrupts.stop import TaskInterrupted
from ..messages.error_text import describe
from ..messages.import_errors import raised_at
from ..messages.log_records import FULL_TEXT
from ..model.runnable import RUNS_NOTHING, runs_nothing
from ..settings.checks import PREFIX, Hook
from .call import Failure, run_foreign
from .run_context import RunContext
from .task_context import CallPlan

LOG = getLogger("taskserver")

NOT_AWAITED = "which nobody awaits; name a plain one, which may asyncio.run it"


class HookMissing(SettingError):
    """There is no such function."""


def find_hook(hook: str | Callable[..., object]) -> Callable[..., object]:
    """The function of a name, `module:function`; a function that is given itself. Raises HookMissing."""
    found = _named(hook) if isinstance(hook, str) else hook
    if not callable(found):
        raise HookMissing(f"it is no function, but of type {type(found).__name__}")
    if runs_nothing(found):
        raise HookMissing(f"it {RUNS_NOTHING}")
    if getattr(getattr(found, "__code__", None), "co_flags", 0) & CO_COROUTINE:
        raise HookMissing(f"it is an async def function, {NOT_AWAITED}")
    function: Callable[..., object] = found
    return function


def call_hook(function: Callable[..., object], *args: object) -> None:
    """Call the function of a hook. Raises HookMissing where it only made a coroutine, and what the function raises."""
    returned = function(*args)
    if isinstance(returned, CoroutineType):
        returned.close()
        raise HookMissing(f"it returned a coroutine, {NOT_AWAITED}")


def _named(name: str) -> Any:
    module, _, path = name.partition(":")
    try:
        return reduce(getattr, path.split("."), import_module(module))
    except Exception as error:
        raise HookMissing(describe(error)) from error


class SiteHook:
    """A function of the site in one run, imported by its first call."""

    def __init__(self, key: str, hook: Hook, run: RunContext) -> None:
        """`key` is the setting's, without TASKSERVER_."""
        self.setting = f"{PREFIX}{key}"
        self.name = hook if isinstance(hook, str) else key.lower()
        """What messages call the function."""
        self._hook = hook
        self._run = run
        self._has_warned = False

    @property
    def is_set(self) -> bool:
        """Whether there is a function that may be called."""
        return self._hook is not None

    def call(self, plan: CallPlan, *args: Any) -> Failure | None:
        """Call it in the time of a plan, while the heartbeat watches. How it failed, if it did.

        One that could not be imported is not called again. Only an import that was interrupted is tried again.
        """
        with suppress(HostLimit):  # then a timer alone interrupts it
            self._run.heartbeat.start()
        self._run.heartbeat.begin(plan)
        try:
            failure, _ = run_foreign(self._run.time_limit, plan.timeout_seconds, self._find_and_call, *args)
        finally:
            self._run.heartbeat.end()
        if failure is not None and isinstance(self._hook, str) and not failure.is_a(TaskInterrupted):
            self.give_up()
        return failure

    def _find_and_call(self, *args: Any) -> None:
        if self._hook is not None:
            self._hook = find_hook(self._hook)
            call_hook(self._hook, *args)

    def give_up(self) -> None:
        """Have it called no more in this run."""
        self._hook = None

    def log(self, failure: Failure, extra: Mapping[str, object] | None = None) -> None:
        """Tell of a call that failed: the first one of a run is a warning."""
        level, self._has_warned = INFO if self._has_warned else WARNING, True
        no_more = "" if self.is_set else "; it is not called again in this run"
        extra = {FULL_TEXT: failure.full_text} if extra is None else extra
        LOG.log(level, f"{self.setting}: %s %s%s", self.name, in_words(failure), no_more, extra=extra)


def in_words(failure: Failure) -> str:
    """What became of the call of a hook, as the end of a sentence about it; one line."""
    is_missing = failure.is_a(HookMissing)
    words, text = ("cannot be had", str(failure.error)) if is_missing else ("failed", failure.text)
    return f"{words}: {text.partition(chr(10))[0]}"


def in_words_with_place(failure: Failure) -> str:
    """The same, with the file and line of the site that raised an error."""
    if failure.error is None or failure.is_a(HookMissing):
        return in_words(failure)
    return f"{in_words(failure)}{raised_at(failure.error)}"
