"""Printing the tasks that a task waits for, and the tasks that wait for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...messages.printable import printable
from ...messages.programs import CLIENT
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
        return f"(gone: {CLIENT} reclaim lets go of what waits for it)"
    return f"{printable(node.task or '')}: {status_name(node.status)}"
