"""What waits for what, as an operator sees it. Changes nothing; how it is settled stands in dependencies.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from .database import IDS_A_STATEMENT
from .store import Store

MOST_NODES = 30
"""Of a tree: so that it stays one to be looked at."""
MOST_BRANCHES = 8


class Links(NamedTuple):
    """The ids of the tasks around one, in order."""

    waits_for: list[int]
    """Those that are not done; of these the task waits for each."""
    awaited_by: list[int]


class Node(NamedTuple):
    """A task in a tree, and those behind it."""

    id: int
    task: str | None
    """None of one that is gone."""
    status: int | None
    nodes: list[Node]
    more: int
    """How many more there are behind it than those."""
    is_above: bool = False
    """Whether it stands in the tree already, with those behind it."""


class Chains:
    """The dependencies of one queue."""

    def __init__(self, store: Store) -> None:
        self._store = store

    # ---- next to some tasks

    PARENTS = "SELECT child_id, parent_id FROM {dependencies} WHERE child_id IN ({ids}) ORDER BY child_id, parent_id"
    CHILDREN = "SELECT parent_id, child_id FROM {dependencies} WHERE parent_id IN ({ids}) ORDER BY parent_id, child_id"

    def links(self, ids: Sequence[int]) -> dict[int, Links]:
        """What each of these waits for, and what waits for it."""
        found = {task_id: Links([], []) for task_id in ids}
        for first in range(0, len(ids), IDS_A_STATEMENT):
            portion = ids[first : first + IDS_A_STATEMENT]
            for child, parent in self._store.look(self.PARENTS, portion):
                found[child].waits_for.append(parent)
            for parent, child in self._store.look(self.CHILDREN, portion):
                found[parent].awaited_by.append(child)
        return found

    # ---- the trees before and behind one task

    BEFORE = "SELECT parent_id FROM {dependencies} WHERE child_id = ? ORDER BY parent_id LIMIT ?"
    BEHIND = "SELECT child_id FROM {dependencies} WHERE parent_id = ? ORDER BY child_id LIMIT ?"
    COUNT_BEFORE = "SELECT COUNT(*) FROM {dependencies} WHERE child_id = ?"
    COUNT_BEHIND = "SELECT COUNT(*) FROM {dependencies} WHERE parent_id = ?"
    NAMES = "SELECT id, task, status FROM {table} WHERE id IN ({ids})"

    def before(self, task_id: int) -> Node:
        """What a task waits for, what those wait for, and so on."""
        return self._tree(task_id, self.BEFORE, self.COUNT_BEFORE)

    def behind(self, task_id: int) -> Node:
        """What waits for a task, what waits for those, and so on."""
        return self._tree(task_id, self.BEHIND, self.COUNT_BEHIND)

    def _tree(self, task_id: int, next_of: str, count_of: str) -> Node:
        """Level by level, so that the nearest ones are in it; each task grows once, whatever circles were forged."""
        level, grown = [task_id], dict[int, list[Node]]()
        seen = {task_id}
        while level and len(seen) < MOST_NODES:
            level = [new for one in level for new in self._grow(one, grown, seen, next_of)]
        return self._placed(Node(task_id, None, None, [], 0), grown, set(), count_of)

    def _grow(self, task_id: int, grown: dict[int, list[Node]], seen: set[int], next_of: str) -> list[int]:
        """Find those behind a task; which of them were not seen yet."""
        room = min(MOST_BRANCHES, MOST_NODES - len(seen))
        ids = [row[0] for row in self._store.look(next_of, (task_id, room))] if room > 0 else []
        names = {row[0]: row[1:] for row in self._store.look(self.NAMES, ids)} if ids else {}
        grown[task_id] = [Node(one, *_shown(names.get(one)), [], 0) for one in ids]
        new = [one for one in ids if one not in seen]
        seen.update(new)
        return new

    def _placed(self, node: Node, grown: dict[int, list[Node]], above: set[int], count_of: str) -> Node:
        """In the order in which a tree is read: with those behind it at the first place where it stands."""
        if node.id in above:
            return node._replace(is_above=True)
        above.add(node.id)
        nodes = [self._placed(one, grown, above, count_of) for one in grown.get(node.id, ())]
        count = self._store.look(count_of, (node.id,))[0][0]
        return node._replace(nodes=nodes, more=count - len(nodes))


def _shown(row: Sequence[object] | None) -> tuple[str | None, int | None]:
    if row is None:
        return None, None
    task, status = row
    return task.decode(errors="backslashreplace") if isinstance(task, bytes) else str(task), int(str(status))
