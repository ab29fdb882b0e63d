"""Functions of a site that a run calls beside its tasks: found by name, and called under a time limit.

TASKSERVER_SETUP, TASKSERVER_BETWEEN and TASKSERVER_ON_FAILURE name one each. Rows cannot: this is not callables.py.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import reduce
from importlib import import_module
from typing import Any

from ..errors import HostLimit, SettingError
from ..messages.error_text import describe
from .call import Failure, run_foreign
from .run_context import RunContext
from .watched_call import CallPlan


class HookMissing(SettingError):
    """There is no such function."""


def find_hook(name: str) -> Callable[..., object]:
    """The function of a name, `module:function`. Raises HookMissing."""
    module, _, path = name.partition(":")
    try:
        found: Any = reduce(getattr, path.split("."), import_module(module))
    except Exception as error:
        raise HookMissing(describe(error)) from error
    if not callable(found):
        raise HookMissing(f"it is no function, but of type {type(found).__name__}")
    function: Callable[..., object] = found
    return function


def call_hook(run: RunContext, plan: CallPlan, function: Callable[..., object], *args: Any) -> Failure | None:
    """Call a function of the site in the time of its plan, while the heartbeat watches. How it failed, if it did."""
    with suppress(HostLimit):  # then a timer alone interrupts it
        run.heartbeat.start()
    run.heartbeat.begin(plan)
    try:
        failure, _ = run_foreign(run.time_limit, plan.timeout_seconds, function, *args)
    finally:
        run.heartbeat.end()
    return failure


def in_words(failure: Failure) -> str:
    """What became of the call of a hook, as the end of a sentence about it; one line."""
    text = f"failed: {failure.text.partition(chr(10))[0]}"
    return text.replace("failed: HookMissing", "cannot be had", 1) if failure.is_a(HookMissing) else text
