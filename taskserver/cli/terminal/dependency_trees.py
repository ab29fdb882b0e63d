"""Printing the tasks that a task waits for, the tasks that wait for it, and the stages of a pipeline."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...errors import BadTask
from ...messages.printable import printable
from ...model.pipeline import read_stages
from ...stores.database.records import StoredTask
from ...stores.queue.dependency_trees import Node
from .output import status_name

MAX_IDS_SHOWN = 5


def some_ids(ids: Sequence[int], most: int = MAX_IDS_SHOWN) -> str:
    """The first ids, and how many more there are."""
    shown = ", ".join(map(str, ids[:most]))
    return f"{shown} and {len(ids) - most} more" if len(ids) > most else shown


def tree(node: Node, indent: str = "") -> Iterator[str]:
    """The lines of a tree of tasks, below its root."""
    for number, one in enumerate(node.nodes, start=1):
        is_last = number == len(node.nodes) and not node.more
        yield f"{indent}{'`--' if is_last else '|--'} {one.id} {_label(one)}{' (see above)' if one.is_above else ''}"
        yield from tree(one, f"{indent}{'   ' if is_last else '|  '} ")
    if node.more:
        yield f"{indent}`-- {'and ' if node.nodes else ''}{node.more} more"


def _label(node: Node) -> str:
    if node.status is None:
        return "(gone: client.py reclaim lets go of what waits for it)"
    return f"{printable(node.task or '')}: {status_name(node.status)}"


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
