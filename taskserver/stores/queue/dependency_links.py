"""The tasks next to a task: those that it waits for, and those that wait for it. dependencies.py changes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ...model.results import as_texts
from .store import Store


class Links(NamedTuple):
    """The ids of a task's parents and children, each in order."""

    waits_for: list[int]
    """The parents that are not done; the task waits for all of them."""
    awaited_by: list[int]
    """The children, which wait for the task."""


class Linked(NamedTuple):
    """A task next to another one."""

    id: int
    task: str
    status: int


class DependencyLinks:
    """The dependencies of one queue, for operators."""

    def __init__(self, store: Store) -> None:
        self._database = store.database

    PARENTS = "SELECT child_id, parent_id FROM {dependencies} WHERE child_id IN ({ids}) ORDER BY child_id, parent_id"
    CHILDREN = "SELECT parent_id, child_id FROM {dependencies} WHERE parent_id IN ({ids}) ORDER BY parent_id, child_id"
    LINKED = "SELECT id, task, status FROM {table} WHERE id IN ({ids})"

    def links(self, ids: Sequence[int]) -> dict[int, Links]:
        """The parents and children of each of these tasks."""
        found = {task_id: Links([], []) for task_id in ids}
        for child, parent in self._database.fetch_ids(self.PARENTS, ids):
            found[child].waits_for.append(parent)
        for parent, child in self._database.fetch_ids(self.CHILDREN, ids):
            found[parent].awaited_by.append(child)
        return found

    def linked(self, ids: Sequence[int]) -> dict[int, Linked]:
        """Those of these tasks that stand in the queue."""
        return {row[0]: Linked(*as_texts(row)) for row in self._database.fetch_ids(self.LINKED, ids)}
