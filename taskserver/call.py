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
from .error_text import describe
from .errors import BadTask, TaskServerError
from .lifecycle import ClaimedTask
from .time_limit import TimeLimit

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


def prepare(task: ClaimedTask, callables: Callables, fetch_args: Callable[[ClaimedTask], str | None]) -> Call:
    """Make a row ready to run; `fetch_args` reads long arguments, which a claim leaves in the database.

    Raises BadTask where the row can never run, ModuleBroken where its module cannot be imported.
    """
    try:
        return _prepare(task, callables, fetch_args)
    except TaskServerError:
        raise
    except Exception as error:  # a listed module can hold objects as odd as any row
        raise BadTask(f"it cannot be made ready: {describe(error)}") from error


def _prepare(task: ClaimedTask, callables: Callables, fetch_args: Callable[[ClaimedTask], str | None]) -> Call:
    check_size(task.args_bytes)
    found = callables.find(task.task)
    args, kwargs = read_arguments(fetch_long(task, fetch_args).args)
    try:
        found.check_arguments(args, kwargs)
    except TypeError as error:
        raise BadTask(f"{task.task}{found.parameters} does not take these arguments: {error}") from None
    return Call(found, args, kwargs)


def run_foreign(
    time_limit: TimeLimit, timeout_seconds: float, function: Callable[..., object], *args: Any
) -> BaseException | None:
    """Run what is not our code; what it raised, or None when it returned."""
    worker = os.getpid()
    raised: BaseException | None = None
    try:
        time_limit.call(timeout_seconds, function, *args)
    except BaseException as error:  # sys.exit() and the like end the task, not the worker
        raised = error
    if os.getpid() != worker:
        # A process that the task forked came out of its call: it must not go on as a second worker.
        os._exit(0 if raised is None else 1)
    return raised


def run_call(call: Call) -> None:
    """Call it. Raises whatever the callable raises."""
    returned = call.callable.call(*call.args, **call.kwargs)
    if type(returned) in NOT_RUN:
        returned.close()
        raise TypeError(f"it returned a {type(returned).__name__}, which nobody runs: call plain functions")
