"""The stages of a pipeline's task, for a person."""

from __future__ import annotations

from ..errors import BadTask
from ..model.pipeline import read_stages
from ..model.task import name_of_status
from ..stores.records import StoredTask


def stage_of(task: StoredTask) -> str | None:
    """The current stage as `2 of 3`; None where a task is no pipeline, or its stages cannot be read."""
    try:
        count = len(read_stages(task.stages))
    except BadTask:
        return None
    return f"{task.stage + 1} of {count}" if count else None


def stage_lines(task: StoredTask) -> list[str]:
    """A line for each stage of a pipeline; the text of the column where it cannot be read."""
    try:
        stages = read_stages(task.stages)
    except BadTask:
        return [task.stages or ""]
    lines = []
    group_id = None
    for number, stage in enumerate(stages):
        state = "done" if number < task.stage else name_of_status(task.status) if number == task.stage else "to come"
        # A value that a stage leaves out stays as the row has it.
        group_id = task.group_id if number == task.stage else group_id if stage.group_id is None else stage.group_id
        priority = None if stage.priority == task.priority else stage.priority
        values = {"group": group_id, "priority": priority, "max_attempts": stage.max_attempts}
        details = "".join(f", {name} {value}" for name, value in values.items() if value is not None)
        lines.append(f"{number + 1} {stage.task}{details}: {state}")
    return lines
