"""Tasks that wait for others: a child starts once all its parents are done.

If a parent becomes fatal or cancelled, the child becomes fatal.

An edge, a row of the table of dependencies, says that a child waits for a parent. `awaited` in a parent's row says
whether it has children. The usual writes that end a task require 0 there (finishes.py), so other tasks pay nothing.
`end` ends a parent with children, in one transaction with them. A new child has an instant in due_at, so a look for due
rows finds it, and `Dependencies.decide` decides whether it must wait.

No child is missed, because each side locks the rows of the child and the parent. If the parent ends first, the child
sees that; if the child is first, the parent's end finds the edge. Locks are taken from parents to children in order of
id, and a child has the greater id, so there are no deadlocks. Galera compares the writes of its nodes, not their locks,
so a decision also writes the rows that it depends on.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ...errors import Conflict
from ...model.task import Status
from ..database import Database
from ..dialect import Rows
from ..free_rows import MAX_HELD
from ..retrying import HELD_PATIENCE_SECONDS, RetryPolicy, Scope
from ..words import MAX_IDS_PER_STATEMENT, in_portions, with_ids

GIVEN_UP = "dependency: task "
"""The error_text of a child of a fatal or cancelled task starts with this."""
IS_GIVEN_UP = f"status = 4 AND error_text LIKE '{GIVEN_UP}%'"
WHY_GIVEN_UP: dict[int, str] = {Status.FATAL: "is fatal", Status.CANCELLED: "was cancelled"}
"""A parent with one of these statuses gives up its children."""


class GivenUp(NamedTuple):
    """A task that became fatal because of another."""

    id: int
    task: str
    group_id: int
    error_text: str


class Links(NamedTuple):
    """The ids of a task's parents and children, each in order."""

    waits_for: list[int]
    """The parents that are not done."""
    awaited_by: list[int]


class _Locked(NamedTuple):
    id: int
    status: int
    awaited: int
    is_given_up: int
    task: Any
    group_id: int


LOCK = f"""
    SELECT id, status, awaited, CASE WHEN {IS_GIVEN_UP} THEN 1 ELSE 0 END, task, group_id
    FROM {{table}} {{by_key}} WHERE id IN ({{ids}}) ORDER BY id
"""
CHILDREN = "SELECT child_id FROM {dependencies} WHERE parent_id = ? ORDER BY child_id {lock_edges}"
EDGES_OF_CHILDREN = "SELECT parent_id, child_id FROM {dependencies} WHERE child_id IN ({ids})"
EDGES_OF_PARENTS = "SELECT parent_id, child_id FROM {dependencies} WHERE parent_id IN ({ids})"
DELETE_CHILDREN = "{delete_edges} WHERE child_id IN ({ids}) AND parent_id = ?"
DELETE_PARENTS = "{delete_edges} WHERE parent_id IN ({ids}) AND child_id = ?"
HAS_NONE = "NOT EXISTS (SELECT 1 FROM {dependencies} WHERE child_id = id)"

# ---- the end of a parent, in the transaction that ends it and has its row's lock

# A child with an instant in due_at stays waiting: a later look decides.
RELEASE = f"""
    UPDATE {{table}} {{by_key}} SET status = CASE WHEN due_at IS NULL AND {HAS_NONE} THEN 0 ELSE 5 END,
        updated_at = {{now}}
    WHERE id IN ({{ids}}) AND status = 5
"""
# The child may have other parents: with an instant in due_at, the next look decides again.
REVIVE = f"""
    UPDATE {{table}} {{by_key}} SET status = 5, due_at = {{now}}, error_text = NULL, finished_at = NULL,
        updated_at = {{now}}
    WHERE id IN ({{ids}}) AND {IS_GIVEN_UP}
"""
GIVE_UP = """
    UPDATE {table} {by_key} SET status = 4, due_at = NULL, error_text = ?, finished_at = {now}, updated_at = {now}
    WHERE id IN ({ids}) AND status = 5
"""


def end(place: Rows, parent: int, status: Status) -> list[GivenUp]:
    """Children of a done parent: waiting → new if they have no other. Of a fatal or cancelled one: waiting → fatal.

    Returns the tasks that became fatal. Runs in the transaction that ends the parent and holds its row.
    """
    if status != Status.DONE:
        return give_up_children(place, [parent], status)
    for children in _children(place, parent):
        _lock(place, children)
        place.write_ids(DELETE_CHILDREN, children, after=(parent,))
        place.write_ids(RELEASE, children)
        place.write_ids(REVIVE, children)  # if the parent was fatal and then retried
    return []


def give_up_children(place: Rows, parents: Sequence[int], status: Status = Status.FATAL) -> list[GivenUp]:
    """Waiting → fatal for all descendants of parents with this status; those tasks. Edges stay, for a retry."""
    given_up: list[GivenUp] = []
    failed = [(parent, status) for parent in parents]
    for parent, ended in failed:  # the list grows
        error_text = f"{GIVEN_UP}{parent}, for which it waits, {WHY_GIVEN_UP[ended]}"
        for children in _children(place, parent):
            waiting = [child for child in _lock(place, children) if child.status == Status.WAITING]
            if waiting:
                place.write_ids(GIVE_UP, [child.id for child in waiting], before=(error_text,))
            given_up += [GivenUp(child.id, str(child.task), child.group_id, error_text) for child in waiting]
            failed += [(child.id, Status.FATAL) for child in waiting if child.awaited]
    return given_up


def revive_children(place: Rows, parents: Sequence[int]) -> None:
    """Fatal → waiting and due, for all descendants that were given up for these parents."""
    level = list(parents)
    while level:
        edges = [edge for ids in in_portions(level) for edge in place.rows(with_ids(EDGES_OF_PARENTS, ids), ids)]
        children = sorted({child for _, child in edges})
        level = []
        for ids in in_portions(children):
            level += [child.id for child in _lock(place, ids) if child.is_given_up]
        for ids in in_portions(level):
            place.write_ids(REVIVE, ids)


def _children(place: Rows, parent: int) -> Iterator[Sequence[int]]:
    return in_portions([row[0] for row in place.rows(CHILDREN, (parent,))])


def _lock(place: Rows, ids: Sequence[int], end: str = " {for_update}") -> list[_Locked]:
    return [_Locked._make(row) for row in place.rows(with_ids(LOCK, ids) + end, ids)]


# ---- must a child wait?

# The parent's end must see that it has children. The value toggles, so that each child writes the row.
AWAIT = """
    UPDATE {table} {by_key} SET awaited = CASE awaited WHEN 1 THEN 2 ELSE 1 END, updated_at = updated_at
    WHERE id IN ({ids}) AND status <> 2
"""
DECIDE = f"""
    UPDATE {{table}} {{by_key}}
    SET due_at = CASE WHEN {{is_undated}} AND {HAS_NONE} THEN due_at END,
        status = CASE WHEN {HAS_NONE} THEN 0 ELSE 5 END, updated_at = {{now}}
    WHERE id IN ({{ids}}) AND status = 5 AND due_at <= {{now}}
"""
# Orphans: waiting tasks with deleted or ended parents, so that no end will release them.
IS_ORPHAN = """
    {due_status} = 5 AND due_at IS NULL AND EXISTS (SELECT 1 FROM {dependencies} WHERE child_id = id) AND NOT EXISTS (
        SELECT 1 FROM {dependencies} AS edge JOIN {table} AS parent ON parent.id = edge.parent_id
        WHERE edge.child_id = {table}.id AND parent.status NOT IN (2, 4, 7))
"""
ORPHANS = f"SELECT id FROM {{table}} {{by_status}} WHERE {IS_ORPHAN} AND id > ? ORDER BY id LIMIT ?"
MAKE_DUE = "UPDATE {table} {by_key} SET due_at = {now} WHERE id IN ({ids}) AND status = 5 AND due_at IS NULL"


class Dependencies:
    """Decides whether due children must wait. Raises DatabaseError."""

    def __init__(self, database: Database, given_up: list[GivenUp] | None = None) -> None:
        """Appends tasks that become fatal to `given_up`."""
        self._database = database
        self._given_up = [] if given_up is None else given_up

    def decide(self, children: Sequence[int]) -> int:
        """Waiting and due → new, waiting without an instant, or fatal; how many children were decided.

        If a child or its parent is held, the next look decides.
        """
        if not children:
            return 0
        try:
            return self._decide_together(children)
        except Conflict:
            if len(children) == 1 or self._database.dialect.has_one_writer:
                return 0
        decided = held = 0
        for child in random.sample(children, len(children)):  # in order, a held one would always block the same ones
            try:
                decided += self._decide_together([child])
            except Conflict:
                held += 1
                if held == MAX_HELD:
                    break
        return decided

    def _decide_together(self, children: Sequence[int]) -> int:
        policy = RetryPolicy(Scope.TRANSACTION, HELD_PATIENCE_SECONDS)
        decided, given_up = self._database.locking(
            self._database.dialect.for_update_at_once,
            lambda end: self._database.run(policy, self._lock_and_decide, children, end),
        )
        self._given_up += given_up
        return decided

    def _lock_and_decide(self, children: Sequence[int], end: str) -> tuple[int, list[GivenUp]]:
        database = self._database
        edges = database.rows(with_ids(EDGES_OF_CHILDREN, children), children)
        parents = {parent for parent, child in edges if parent < child}
        every = sorted(parents.union(children))
        locked = {row.id: row for ids in in_portions(every) for row in _lock(database, ids, end)}
        over = {one for one in parents if one not in locked or locked[one].status == Status.DONE}
        over_of: dict[int, list[int]] = {}
        for parent, child in edges:
            if parent in over:
                over_of.setdefault(child, []).append(parent)
        for child, its_parents in over_of.items():
            for ids in in_portions(its_parents):
                database.write_ids(DELETE_PARENTS, ids, after=(child,))
        for ids in in_portions(sorted(parents - over)):
            database.write_ids(AWAIT, ids)
        error_texts = _error_texts(edges, locked)
        given_up: list[GivenUp] = []
        for child, error_text in sorted(error_texts.items()):
            if database.write_ids(GIVE_UP, [child], before=(error_text,)):  # else an earlier child gave it up
                given_up.append(GivenUp(child, str(locked[child].task), locked[child].group_id, error_text))
                given_up += give_up_children(database, [child])
        rest = [child for child in children if child not in error_texts]
        return (database.write_ids(DECIDE, rest) if rest else 0) + len(given_up), given_up

    def find_orphans(self) -> int:
        """Make orphans due, so that the next look decides about them; how many."""
        last = found = 0
        while orphans := [row[0] for row in self._database.fetch(ORPHANS, (last, MAX_IDS_PER_STATEMENT))]:
            found += self._database.change(with_ids(MAKE_DUE, orphans), orphans)
            last = orphans[-1]
        return found


def _error_texts(edges: Sequence[Sequence[int]], locked: Mapping[int, _Locked]) -> dict[int, str]:
    """The error_text of each waiting child that must be given up."""
    error_texts: dict[int, str] = {}
    for parent, child in edges:
        why = WHY_GIVEN_UP.get(locked[parent].status) if parent in locked else None
        if parent >= child:
            why = "is not older than this one"
        if why and child in locked and locked[child].status == Status.WAITING:
            error_texts.setdefault(child, f"{GIVEN_UP}{parent}, for which it waits, {why}")
    return error_texts


def links(database: Database, ids: Sequence[int]) -> dict[int, Links]:
    """The parents and children of each of these tasks."""
    found = {task_id: Links([], []) for task_id in ids}
    for parent, child in database.fetch_ids(f"{EDGES_OF_CHILDREN} ORDER BY child_id, parent_id", ids):
        found[child].waits_for.append(parent)
    for parent, child in database.fetch_ids(f"{EDGES_OF_PARENTS} ORDER BY parent_id, child_id", ids):
        found[parent].awaited_by.append(child)
    return found
