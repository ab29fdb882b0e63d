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
from .errors import BadTask
from .stopping import Stop
from .task import ClaimedTask

NOT_RUN = (CoroutineType, GeneratorType)
"""What a function hands back whose body did not run."""


class Call(NamedTuple):
    """A row whose callable is found and takes its arguments."""

    callable: TaskCallable
    args: list[Any]
    kwargs: dict[str, Any]


def prepare(task: ClaimedTask, callables: Callables, fetch_args: Callable[[ClaimedTask], str | None]) -> Call:
    """Make a row ready to run; `fetch_args` reads long arguments, which a claim leaves in the database.

    Raises BadTask where the row can never run, ModuleBroken where its module cannot be imported.
    """
    check_size(task.args_bytes)
    found = callables.find(task.task)
    text = fetch_args(task) if task.args is None and task.args_bytes else task.args
    args, kwargs = read_arguments(text)
    try:
        found.check_arguments(args, kwargs)
    except TypeError as error:
        raise BadTask(f"{task.task}{found.parameters} does not take these arguments: {error}") from None
    return Call(found, args, kwargs)


def run_task(call: Call, stop: Stop) -> BaseException | None:
    """Call it; what it raised, or None when it returned."""
    worker = os.getpid()
    raised: BaseException | None = None
    try:
        with stop.interruptible():
            returned = call.callable.call(*call.args, **call.kwargs)
            if type(returned) in NOT_RUN:
                returned.close()
                raise TypeError(f"it returned a {type(returned).__name__}, which nobody runs: call plain functions")
    except BaseException as error:  # sys.exit() and the like end the task, not the worker
        raised = error
    if os.getpid() != worker:
        # A process that the task forked came out of its call: it must not go on as a second worker.
        os._exit(0 if raised is None else 1)
    return raised
