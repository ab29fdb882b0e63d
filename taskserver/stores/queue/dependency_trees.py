"""The trees of tasks that wait for others, for operators. Changes nothing; dependencies.py does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ...model.results import as_texts
from .store import Store

MAX_NODES = 30
"""Tasks of a tree: a larger one would not fit a screen."""
MAX_BRANCHES = 8
"""Tasks next to one task of a tree."""


class Links(NamedTuple):
    """The ids of a task's parents and children, each in order."""

    waits_for: list[int]
    """The parents that are not done; the task waits for all of them."""
    awaited_by: list[int]
    """The children, which wait for the task."""


class Node(NamedTuple):
    """A task of a tree, with the tasks behind it."""

    id: int
    task: str | None
    """None for a task that is gone."""
    status: int | None
    nodes: list[Node]
    """The tasks next to it."""
    more: int
    """How many more tasks are next to it."""
    is_above: bool = False
    """Whether the tree has the task already, further up, with the tasks behind it."""


class DependencyTrees:
    """The dependencies of one queue, for operators."""

    def __init__(self, store: Store) -> None:
        self._database = store.database

    # ---- parents and children

    PARENTS = "SELECT child_id, parent_id FROM {dependencies} WHERE child_id IN ({ids}) ORDER BY child_id, parent_id"
    CHILDREN = "SELECT parent_id, child_id FROM {dependencies} WHERE parent_id IN ({ids}) ORDER BY parent_id, child_id"

    def links(self, ids: Sequence[int]) -> dict[int, Links]:
        """The parents and children of each of these tasks."""
        found = {task_id: Links([], []) for task_id in ids}
        for child, parent in self._database.fetch_ids(self.PARENTS, ids):
            found[child].waits_for.append(parent)
        for parent, child in self._database.fetch_ids(self.CHILDREN, ids):
            found[parent].awaited_by.append(child)
        return found

    # ---- the trees before and behind one task

    BEFORE = "SELECT parent_id FROM {dependencies} WHERE child_id = ? ORDER BY parent_id LIMIT ?"
    BEHIND = "SELECT child_id FROM {dependencies} WHERE parent_id = ? ORDER BY child_id LIMIT ?"
    COUNT_BEFORE = "SELECT COUNT(*) FROM {dependencies} WHERE child_id = ?"
    COUNT_BEHIND = "SELECT COUNT(*) FROM {dependencies} WHERE parent_id = ?"
    NAMES = "SELECT id, task, status FROM {table} WHERE id IN ({ids})"

    def before(self, task_id: int) -> Node:
        """The tree of a task's parents, their parents, and so on."""
        return self._tree(task_id, self.BEFORE, self.COUNT_BEFORE)

    def behind(self, task_id: int) -> Node:
        """The tree of a task's children, their children, and so on."""
        return self._tree(task_id, self.BEHIND, self.COUNT_BEHIND)

    def _tree(self, task_id: int, next_of: str, count_of: str) -> Node:
        """Grow a tree level by level, so that it has the nearest tasks. Each task grows once, even in a forged circle.

        `next_of` finds the tasks next to a task, `count_of` counts them.
        """
        level, grown = [task_id], dict[int, list[Node]]()
        seen = {task_id}
        while level and len(seen) < MAX_NODES:
            level = [new for one in level for new in self._grow(one, grown, seen, next_of)]
        return self._placed(Node(task_id, None, None, [], 0), grown, set(), count_of)

    def _grow(self, task_id: int, grown: dict[int, list[Node]], seen: set[int], next_of: str) -> list[int]:
        """Find the tasks next to a task, and put them into `grown`; the ids of tasks that were not seen yet."""
        room = min(MAX_BRANCHES, MAX_NODES - len(seen))
        ids = [row[0] for row in self._database.fetch(next_of, (task_id, room))] if room > 0 else []
        found = {row[0]: as_texts(row) for row in self._database.fetch_ids(self.NAMES, ids)}
        grown[task_id] = [Node._make([*found.get(one, [one, None, None]), [], 0, False]) for one in ids]
        new = [one for one in ids if one not in seen]
        seen.update(new)
        return new

    def _placed(self, node: Node, grown: dict[int, list[Node]], above: set[int], count_of: str) -> Node:
        """A node with the nodes behind it, at the first place, in reading order, where its task stands."""
        if node.id in above:
            return node._replace(is_above=True)
        above.add(node.id)
        nodes = [self._placed(one, grown, above, count_of) for one in grown.get(node.id, ())]
        count = self._database.fetch(count_of, (node.id,))[0][0]
        return node._replace(nodes=nodes, more=count - len(nodes))
