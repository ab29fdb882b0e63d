"""The stages of a pipeline: one row that becomes new for one callable after another.

A row has all its stages as JSON and counts the finished ones; its other columns have the values of the current stage. A
stage without a value keeps the row's value, except max_attempts, which starts over with each stage.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..errors import BadTask, InvalidTask
from ..messages.text import shown
from .arguments import encode, parse_json
from .attempt import NextStage
from .checks import check_field
from .names import check_name, other_kind
from .task import NOT_GIVEN, ClaimedTask, NotGiven, given_or

if TYPE_CHECKING:
    from .functions import GivenFunction

MAX_STAGES = 100
MAX_STAGES_BYTES = 60_000
"""The column of MySQL holds little more."""

STAGE_KEYS = ("task", "group_id", "priority", "max_attempts")
_Stage = tuple[NextStage, "GivenFunction | None"]
"""A stage, and what we know about its function if that was passed."""
_EXAMPLE = '"tasks.resize", or {"task": "tasks.resize", "group_id": 5}'


def new_stages(
    stages: object, args: object, group_id: int | NotGiven, priority: int | NotGiven, max_attempts: int | None
) -> tuple[list[NextStage], str]:
    """The checked stages of a producer, and their JSON text. Raises InvalidTask.

    A stage without a value gets the one given here, or else that of @task. `args` are the first stage's.
    """
    check_field("group_id", given_or(group_id, 0))
    check_field("priority", given_or(priority, 0))
    checked = _check_all(stages)
    if (first := checked[0][1]) is not None:
        try:
            first.check_arguments(args)
        except InvalidTask as error:
            raise InvalidTask(f"stage 1: {error}") from None
    given = {"group_id": group_id, "priority": priority, "max_attempts": max_attempts}
    of_all = {key: value for key, value in given.items() if value is not NOT_GIVEN and value is not None}
    whole: list[dict[str, Any]] = []
    for stage, function in checked:
        options = function.options if function else None
        usual = {"group_id": options.group_id if options else 0, "priority": options.priority if options else 0}
        own = {key: value for key, value in stage._asdict().items() if value is not None}
        whole.append({"task": stage.task} | usual | of_all | own)
    text = encode(whole)
    if len(text) > MAX_STAGES_BYTES:
        raise InvalidTask(f"stages takes {len(text)} bytes as JSON; allowed: {MAX_STAGES_BYTES}")
    return [NextStage(**stage) for stage in whole], text


def _check_all(stages: object) -> list[_Stage]:
    if not isinstance(stages, Sequence) or isinstance(stages, (str, bytes)) or not 1 <= len(stages) <= MAX_STAGES:
        is_long = isinstance(stages, (list, tuple)) and stages
        what = f"has {len(stages)}" if is_long else f"is {shown(stages)}"  # type: ignore[arg-type]
        raise InvalidTask(f"stages {what}; allowed: a list of 1 to {MAX_STAGES}, each such as {_EXAMPLE}")
    checked = []
    for number, stage in enumerate(stages, start=1):
        try:
            checked.append(_check(stage))
        except InvalidTask as error:
            raise InvalidTask(f"stage {number}: {error}") from None
    return checked


def _check(stage: object) -> _Stage:
    given: Mapping[str, Any] = stage if isinstance(stage, Mapping) else {"task": stage}
    unknown = sorted(repr(key) for key in given if key not in STAGE_KEYS)
    if unknown or "task" not in given:
        what = f"it has {', '.join(unknown)}" if unknown else 'it has no "task"'
        raise InvalidTask(f"{what}; allowed: {', '.join(STAGE_KEYS)}")
    task = given["task"]
    if not isinstance(task, str) and not callable(task):
        raise InvalidTask(f"{'task' if given is stage else 'it'} is {other_kind(task)}; allowed: {_EXAMPLE}")
    values: dict[str, Any] = {key: check_field(key, given[key]) for key in STAGE_KEYS[1:] if given.get(key) is not None}
    name, function = named(task)
    return NextStage(name, **values), function


def named(task: str | Callable[..., Any]) -> tuple[str, GivenFunction | None]:
    """The name of a callable, and what we know about its function if that was passed. Raises InvalidTask."""
    if isinstance(task, str):
        return check_name(str(task)), None
    from .functions import given_function  # only functions need signatures

    function = given_function(task)
    return function.name, function


def next_stage(task: ClaimedTask) -> NextStage | None:
    """The stage after the row's current one; None after the last. Raises BadTask."""
    stages = read_stages(task.stages)
    if not 0 <= task.stage < len(stages):
        at = f"stage {task.stage + 1} of {len(stages)}"
        raise BadTask(f"it is at {at}: set stage to 0, and task and args to those of the first one")
    if stages[task.stage].task != task.task:
        raise BadTask(
            f"its task is {task.task!r}, and stage {task.stage + 1} of its stages {stages[task.stage].task!r}"
        )
    return stages[task.stage + 1] if task.stage + 1 < len(stages) else None


def read_stages(text: str | None) -> list[NextStage]:
    """The stages of a row, which any program may have written. Raises BadTask."""
    if text is None:
        return []
    if not isinstance(text, str):
        raise BadTask("stages is text; this row holds something else")
    check_stages_size(len(text.encode(errors="replace")))
    try:
        return [stage for stage, _ in _check_all(parse_json(text, "stages"))]
    except InvalidTask as error:
        raise BadTask(f"its stages: {error}") from None


def check_stages_size(size: int) -> None:
    """Refuse too large stages. Raises BadTask."""
    if size > MAX_STAGES_BYTES:
        raise BadTask(f"stages is longer than {MAX_STAGES_BYTES} bytes")
