"""Printing the tasks that a task waits for, the tasks that wait for it, and the stages of a pipeline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...errors import BadTask
from ...model.pipeline import read_stages
from ...stores.database.records import StoredTask
from ...stores.queue.dependency_links import Linked
from .output import status_name

MAX_IDS_SHOWN = 5
MAX_LINKS_SHOWN = 20


def some_ids(ids: Sequence[int]) -> str:
    """The first ids, and how many more there are."""
    shown = ", ".join(map(str, ids[:MAX_IDS_SHOWN]))
    return f"{shown} and {len(ids) - MAX_IDS_SHOWN} more" if len(ids) > MAX_IDS_SHOWN else shown


def link_lines(ids: Sequence[int], linked: Mapping[int, Linked]) -> list[str]:
    """A line for each of the first of these tasks, and one that counts the rest."""
    lines = [_line(one, linked.get(one)) for one in ids[:MAX_LINKS_SHOWN]]
    return [*lines, f"and {len(ids) - MAX_LINKS_SHOWN} more"] if len(ids) > MAX_LINKS_SHOWN else lines


def _line(task_id: int, task: Linked | None) -> str:
    if task is None:
        return f"{task_id} (gone: client.py reclaim lets go of what waits for it)"
    return f"{task_id} {task.task}: {status_name(task.status)}"


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
        state = "done" if number < task.stage else status_name(task.status) if number == task.stage else "to come"
        # A value that a stage leaves out stays as the row has it.
        group_id = task.group_id if number == task.stage else group_id if stage.group_id is None else stage.group_id
        priority = None if stage.priority == task.priority else stage.priority
        values = {"group": group_id, "priority": priority, "max_attempts": stage.max_attempts}
        details = "".join(f", {name} {value}" for name, value in values.items() if value is not None)
        lines.append(f"{number + 1} {stage.task}{details}: {state}")
    return lines
