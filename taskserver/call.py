"""One task called: its row made ready, the callable run, and whatever comes of it told in words.

Stands between the runner and foreign code: nothing that a row or a task does gets past it as an exception.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from types import CoroutineType, GeneratorType
from typing import Any, NamedTuple

from .arguments import check_size, read_arguments
from .callables import Callables, TaskCallable
from .error_text import describe, describe_failure, full_traceback, type_name
from .errors import BadTask, Retry, TaskServerError, is_delay
from .lifecycle import ClaimedTask
from .nearest import nearest
from .time_limit import TimeLimit

TELLING_SECONDS = 10.0
"""For so long an exception may take to give its text."""
NOT_RUN = (CoroutineType, GeneratorType)
"""What a function hands back whose body did not run."""


class Call(NamedTuple):
    """A row whose callable is found and takes its arguments."""

    callable: TaskCallable
    args: list[Any]
    kwargs: dict[str, Any]


def fetch_long(task: ClaimedTask, fetch_args: Callable[[ClaimedTask], str | None]) -> ClaimedTask:
    """The task with the arguments that its claim left in the database for being long. Raises BadTask."""
    check_size(task.args_bytes)
    if task.args is None and task.args_bytes:
        return task._replace(args=fetch_args(task))
    return task


def prepare(task: ClaimedTask, callables: Callables) -> Call:
    """Make a row ready to run whose long arguments were fetched.

    Raises BadTask where the row can never run, ModuleBroken where its module cannot be imported.
    """
    try:
        return _prepare(task, callables)
    except TaskServerError:
        raise
    except Exception as error:  # a listed module can hold objects as odd as any row
        raise BadTask(f"it cannot be made ready: {describe(error)}") from error


def _prepare(task: ClaimedTask, callables: Callables) -> Call:
    found = callables.find(task.task)
    args, kwargs = read_arguments(task.args)
    try:
        found.check_arguments(args, kwargs)
    except TypeError as error:
        hint = _hint_at_keyword(found, kwargs)
        raise BadTask(f"{task.task}{found.parameters} does not take these arguments: {error}{hint}") from None
    return Call(found, args, kwargs)


def _hint_at_keyword(found: TaskCallable, kwargs: dict[str, Any]) -> str:
    names = list(found.signature.parameters)
    unknown = next((key for key in kwargs if key not in names), None)
    meant = nearest(unknown, names) if unknown is not None else None
    return f"; {unknown!r} is none of them, did you mean {meant!r}?" if meant else ""


class Failure(NamedTuple):
    """What foreign code raised, in plain words: an exception's own code may do anything when it is asked."""

    error: BaseException
    """Not to be touched: only handed on, to foreign code."""
    text: str
    """For error_text."""
    full_text: str = ""
    """For the log: with the whole traceback."""
    delay_seconds: float | None = None
    """Chosen by a Retry."""

    def is_a(self, kind: type[BaseException]) -> bool:
        # isinstance would ask the exception for its class.
        return issubclass(type(self.error), kind)


def run_foreign(
    time_limit: TimeLimit, timeout_seconds: float, function: Callable[..., object], *args: Any
) -> Failure | None:
    """Run what is not our code; how it failed, or None when it returned."""
    worker = os.getpid()
    raised: BaseException | None = None
    try:
        time_limit.call(timeout_seconds, function, *args)
    except BaseException as error:  # sys.exit() and the like end the task, not the worker
        raised = error
    if os.getpid() != worker:
        # A process that the task forked came out of its call: it must not go on as a second worker.
        os._exit(_exit_code(raised))
    return None if raised is None else _told(raised, time_limit)


def _exit_code(raised: BaseException | None) -> int:
    """As Python itself would end."""
    if raised is None:
        return 0
    code = raised.code if type(raised) is SystemExit else 1
    return 0 if code is None else code if type(code) is int else 1


def _told(error: BaseException, time_limit: TimeLimit) -> Failure:
    try:
        return time_limit.call(TELLING_SECONDS, failure_of, error)
    except BaseException:  # it hangs, or ends the process, when it is asked
        return Failure(error, f"{type_name(error)}: (its text cannot be had)")


def failure_of(error: BaseException) -> Failure:
    """An exception in words."""
    kind = type(error)
    if issubclass(kind, BadTask):  # says all in its one line
        return Failure(error, describe(error))
    delay = _chosen_delay(error) if issubclass(kind, Retry) else None
    return Failure(error, describe_failure(error), full_traceback(error), delay)


def _chosen_delay(error: BaseException) -> float | None:
    """The seconds that a task chose by raising Retry; None where it did not, or put in something that is no delay."""
    try:
        delay: float | None = error.delay  # type: ignore[attr-defined]
    except BaseException:  # a class of the task's own
        return None
    return delay if is_delay(delay) else None


def run_call(call: Call) -> None:
    """Call it. Raises whatever the callable raises."""
    returned = call.callable.call(*call.args, **call.kwargs)
    if type(returned) in NOT_RUN:
        returned.close()
        raise TypeError(f"it returned a {type(returned).__name__}, which nobody runs: call plain functions")
