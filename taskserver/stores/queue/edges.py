"""The rows of the table of dependencies, edges: read in portions, in order, and deleted."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from ..database import Database, Row
from ..statements import with_ids

MAX_EDGES_PER_LOOK = 400


class Edges:
    """The edges of one queue, each a parent and a child that waits for it."""

    def __init__(self, database: Database) -> None:
        self._database = database

    OF_PARENTS = """
        SELECT parent_id, child_id FROM {dependencies}
        WHERE parent_id IN ({ids}) AND (parent_id > ? OR parent_id = ? AND child_id > ?)
        ORDER BY parent_id, child_id LIMIT ?
    """

    def of_parents(self, parents: Sequence[int]) -> Iterator[Sequence[Row]]:
        """The edges from these parents, in portions."""
        parent = child = 0
        while parents and (edges := self._fetch(self.OF_PARENTS, parents, parent, parent, child, MAX_EDGES_PER_LOOK)):
            yield edges
            parent, child = edges[-1]

    OF_CHILDREN = """
        SELECT parent_id, child_id FROM {dependencies}
        WHERE child_id IN ({ids}) AND (child_id > ? OR child_id = ? AND parent_id > ?)
        ORDER BY child_id, parent_id LIMIT ?
    """

    def of_children(self, children: Sequence[int]) -> Iterator[Sequence[Row]]:
        """The edges to these children, in portions."""
        parent = child = 0
        while children and (edges := self._fetch(self.OF_CHILDREN, children, child, child, parent, MAX_EDGES_PER_LOOK)):
            yield edges
            parent, child = edges[-1]

    # Only children with work left, by their status: settling that was interrupted begins anew.
    CHILDREN = """
        SELECT child_id FROM {dependencies}
        WHERE parent_id = ? AND child_id > ? AND (SELECT status FROM {table} WHERE id = child_id) = ?
        ORDER BY child_id LIMIT ?
    """

    def children(self, parent: int, status: int) -> Iterator[list[int]]:
        """The children of a parent that have this status, in portions."""
        last = 0
        while children := [
            row[0] for row in self._fetch(self.CHILDREN, (), parent, last, int(status), MAX_EDGES_PER_LOOK)
        ]:
            yield children
            last = children[-1]

    DELETE_OF_PARENT = "DELETE FROM {dependencies} WHERE child_id IN ({ids}) AND parent_id = ?"
    DELETE_OF_CHILD = "DELETE FROM {dependencies} WHERE parent_id IN ({ids}) AND child_id = ?"

    def delete(self, edges: Collection[Row]) -> None:
        """Delete edges, by a statement for each parent or for each child: whichever are fewer."""
        of_parent: dict[int, list[int]] = {}
        of_child: dict[int, list[int]] = {}
        for parent, child in edges:
            of_parent.setdefault(parent, []).append(child)
            of_child.setdefault(child, []).append(parent)
        if len(of_parent) <= len(of_child):
            sql, groups = self.DELETE_OF_PARENT, of_parent
        else:
            sql, groups = self.DELETE_OF_CHILD, of_child
        for one, others in sorted(groups.items()):
            self._database.write_ids(sql, others, (one,))

    def _fetch(self, sql: str, ids: Sequence[int], *values: int) -> Sequence[Row]:
        return self._database.fetch(with_ids(sql, ids), (*ids, *values))
