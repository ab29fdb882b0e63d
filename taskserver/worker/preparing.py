"""Makes a claimed row ready to run: its arguments, its callable, and whether the two fit.

Nothing of a row or of a listed module gets past it as an exception but BadTask, ModuleBroken and MemoryError.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from ..errors import BadTask, TaskServerError
from ..messages.error_text import describe
from ..messages.programs import CLIENT
from ..model.arguments import as_call, check_size, read_item
from ..model.attempt import NextStage
from ..model.task import ClaimedTask
from .callables import Callables, TaskCallable


class AttemptsUsedUp(BadTask):
    """A task that may not start any more: its worker vanished while its module was imported, or its limit fell."""


class Call(NamedTuple):
    """A callable with arguments that it takes."""

    callable: TaskCallable
    args: list[Any]
    kwargs: dict[str, Any]
    next_stage: NextStage | None = None
    """The stage of a pipeline that gets the return value; None where none follows."""


def fetch_texts(task: ClaimedTask, fetch: Callable[[ClaimedTask], ClaimedTask]) -> ClaimedTask:
    """The task with its arguments and stages, which its claim left in the database if they are long.

    They are kept: a rerun may change the row while the task runs, and on_fatal gets what the task got. Raises BadTask,
    DatabaseError.
    """
    if task.is_undated:
        raise BadTask("due_at is no valid time (0000-00-00): write FROM_UNIXTIME(…), as docs/kinds/README.md has it")
    if not isinstance(task.task, str) or not (task.args is None or isinstance(task.args, str)):
        raise BadTask("task and args are text; this row holds something else")
    check_size(task.args_bytes)
    if task.stages_bytes is not None:
        from ..model.pipeline import check_stages_size  # few tasks have any

        check_stages_size(task.stages_bytes)
    return task if task.has_texts else fetch(task)


def prepare(task: ClaimedTask, callables: Callables) -> Call:
    """Make a row ready to run; `task` has its arguments and stages.

    Raises BadTask if the row can never run, ModuleBroken if its module cannot be imported, MemoryError.
    """
    try:
        return _prepare(task, callables)
    except (TaskServerError, MemoryError):
        raise
    except Exception as error:  # a listed module can hold objects as odd as any row
        raise BadTask(f"it cannot be made ready: {describe(error)}") from error


def _prepare(task: ClaimedTask, callables: Callables) -> Call:
    found = callables.find(task.task)
    takes_list = found.options.batch is not None
    args, kwargs = as_call(read_item(task.args), takes_list=takes_list)
    argument_error = found.parameters.argument_error(task.task, args, kwargs, takes_list=takes_list)
    if argument_error:
        raise BadTask(argument_error)
    return Call(found, args, kwargs, None if task.stages is None else next_stage_of(task))


def no_room_for(task: ClaimedTask) -> MemoryError:
    """The error of a task whose arguments do not fit into memory; at another time, or on another host, they may."""
    return MemoryError(f"its arguments, {task.args_bytes} bytes as JSON, do not fit into the memory of this worker")


def next_stage_of(task: ClaimedTask) -> NextStage | None:
    """The stage that gets the return value of this one; None after the last. Raises BadTask."""
    from ..model.pipeline import next_stage  # few tasks have any

    return next_stage(task)


def check_attempts(task: ClaimedTask, max_attempts: int) -> None:
    """Raises BadTask if a task may not start any more."""
    if max_attempts < 1:
        raise BadTask(
            f"its max_attempts is {max_attempts}; to run it, set that to NULL or to a number from 1 on, and status to 0"
        )
    if task.attempts >= max_attempts:
        times = "once" if task.attempts == 1 else f"{task.attempts} times"
        raise AttemptsUsedUp(f"it was started {times}, as often as it may: {CLIENT} retry {task.id} runs it again")
