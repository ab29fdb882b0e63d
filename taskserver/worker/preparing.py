"""Prepares a claimed row: its arguments, its callable, and whether the two fit.

A row or a listed module can cause only BadTask, ModuleBroken and MemoryError here.
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
    """The task may not start again: its worker died during the import of its module, or its limit was lowered."""


class Call(NamedTuple):
    """A callable with valid arguments."""

    callable: TaskCallable
    args: list[Any]
    kwargs: dict[str, Any]
    next_stage: NextStage | None = None
    """The stage of a pipeline that gets the return value; None if none follows."""


def fetch_texts(task: ClaimedTask, fetch: Callable[[ClaimedTask], ClaimedTask]) -> ClaimedTask:
    """The task with its arguments and stages: the claim does not fetch long ones.

    They are kept, as a rerun may change the row while the task runs, and on_fatal gets the same. Raises BadTask,
    DatabaseError.
    """
    if task.is_undated:
        raise BadTask("due_at is not a valid time (0000-00-00): write FROM_UNIXTIME(…), as docs/kinds/README.md has it")
    if not isinstance(task.task, str) or not (task.args is None or isinstance(task.args, str)):
        raise BadTask("task and args are text; this row holds something else")
    check_size(task.args_bytes)
    if task.stages_bytes is not None:
        from ..model.pipeline import check_stages_size  # few tasks have any

        check_stages_size(task.stages_bytes)
    return task if task.has_texts else fetch(task)


def prepare(task: ClaimedTask, callables: Callables) -> Call:
    """Raises BadTask if the row can never run, ModuleBroken if its module cannot be imported, MemoryError."""
    try:
        return _prepare(task, callables)
    except (TaskServerError, MemoryError):
        raise
    except Exception as error:  # a listed module may have strange objects
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
    """The error of a task whose arguments do not fit into memory now, on this host."""
    return MemoryError(f"its arguments, {task.args_bytes} bytes as JSON, do not fit into the memory of this worker")


def next_stage_of(task: ClaimedTask) -> NextStage | None:
    """The stage that gets the return value of this one; None after the last. Raises BadTask."""
    from ..model.pipeline import next_stage  # few tasks have any

    return next_stage(task)


def check_attempts(task: ClaimedTask, max_attempts: int) -> None:
    """Raises BadTask if the task may not start again."""
    if max_attempts < 1:
        raise BadTask(
            f"its max_attempts is {max_attempts}; to run it, set that to NULL or to a number from 1 on, and status to 0"
        )
    if task.attempts >= max_attempts:
        times = "once" if task.attempts == 1 else f"{task.attempts} times"
        raise AttemptsUsedUp(f"it was started {times}, as often as it may: {CLIENT} retry {task.id} runs it again")
