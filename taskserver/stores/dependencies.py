"""Tasks that wait for others: held back, let go when all of these are done, and given up when one of them is fatal.

Beside the verbs of store.py, on the same connections. A row of the table of dependencies says that a child waits for a
parent; it goes once the parent is done. A task that nothing waits for pays nothing: `awaited` says in its own row that
something may, and the writes that end a task (store.py) ask for 0. Where it is 1 they leave the row done or fatal with
an instant in due_at, the sign that those which wait for it have not been told. A waiting row with such an instant has
not been looked at itself. So a look for what is due finds both (`Due.linked`), and whoever found them settles them, in
portions: what is broken off is found again, and done twice is as good as once.

No child is missed. Its rows are deleted under its lock, by whoever lets it go with the last of them; and it is told to
wait under the same lock, after `awaited` was written to each of its parents that is not over.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from itertools import starmap
from typing import ClassVar, NamedTuple

from ..errors import Conflict
from ..lifecycle import Status
from .database import Row, with_ids
from .store import HELD_PATIENCE_SECONDS, MOST_HELD, Store
from .tries import Way

EDGES_A_LOOK = 400
LONGEST_SECONDS = 5.0
"""After so long the rest is left to the next look: a worker has tasks to run, and signals to hear."""

Edge = tuple[int, int]
"""A parent's id and a child's."""
Work = Callable[[Sequence[int]], object]
"""What is done to some rows under their locks."""

GIVEN_UP = "dependency: task "
"""What the error_text of a task begins with that was given up because of another one."""
IS_GIVEN_UP = f"status = 4 AND error_text LIKE '{GIVEN_UP}%'"


class GivenUp(NamedTuple):
    """A task that became fatal because of another one."""

    id: int
    task: str
    group_id: int
    error_text: str


class _Ends(NamedTuple):
    """What some parents have come to."""

    done: set[int]
    """Gone, too."""
    fatal: set[int]
    unknown: set[int]
    """Not over, and held by others, so that `awaited` could not be written."""


class _Looked(NamedTuple):
    """What came of a look at some children."""

    doomed: dict[int, list[int]]
    """By the parents because of which they are to be given up."""
    left: set[int]
    """Those, and others of which it cannot be said yet whether they have to wait."""
    late: set[int]
    """Of these such that wait for what others hold."""


class Dependencies:
    """What waits for what in one queue."""

    def __init__(self, store: Store, told: Callable[[GivenUp], object] = lambda given_up: None) -> None:
        """`told` hears of each task that is given up."""
        self._store = store
        self._told = told
        self._until = 0.0

    # ---- settle: what has a sign → those that wait for it told, and the sign gone

    # In hex, as what SQLite holds for a text may be none.
    SIGN_READ = "HEX({due_at_text})"
    WHICH = f"""
        SELECT id, status, awaited, {SIGN_READ} FROM {{table}}
        WHERE id IN ({{ids}}) AND status IN (2, 4, 5) AND due_at <= {{now}}
    """
    # Nobody here wrote such a sign.
    UNSIGN = """
        UPDATE {table} {by_key} SET due_at = NULL, updated_at = updated_at
        WHERE id IN ({ids}) AND status IN (2, 4) AND awaited = 0
    """

    def settle(self, ids: Sequence[int]) -> int:
        """Settle what a look has found. How many; those that others hold are left to the next look."""
        if not ids:
            return 0
        self._until = time.monotonic() + LONGEST_SECONDS
        rows = self._look(self.WHICH, ids)
        waiting = {row[0]: bool(row[2]) for row in rows if row[1] == Status.WAITING}
        done = [row[0] for row in rows if row[1] == Status.DONE and row[2]]
        fatal = {row[0]: row[3] for row in rows if row[1] == Status.FATAL and row[2]}
        forged = [row[0] for row in rows if row[1] != Status.WAITING and not row[2]]
        settled = (
            self._settle_waiting(waiting) + self._settle_done(done) + sum(starmap(self._settle_fatal, fatal.items()))
        )
        return settled + self._store._write_free(self.UNSIGN, forged)

    def _has_time(self) -> bool:
        return time.monotonic() < self._until

    # ---- a parent is done: its children are let go

    EDGES_OF_PARENTS = """
        SELECT parent_id, child_id FROM {dependencies}
        WHERE parent_id IN ({ids}) AND (parent_id > ? OR parent_id = ? AND child_id > ?)
        ORDER BY parent_id, child_id LIMIT ?
    """
    DELETE_OF_PARENT = "DELETE FROM {dependencies} WHERE child_id IN ({ids}) AND parent_id = ?"
    DELETE_OF_CHILD = "DELETE FROM {dependencies} WHERE parent_id IN ({ids}) AND child_id = ?"
    HAS_NONE = "NOT EXISTS (SELECT 1 FROM {dependencies} WHERE child_id = id)"
    LET_GO = f"""
        UPDATE {{table}} {{by_key}} SET status = 0, updated_at = {{now}}
        WHERE id IN ({{ids}}) AND status = 5 AND due_at IS NULL AND {HAS_NONE}
    """
    # It may wait for others, too: so it is looked at anew.
    REVIVE = f"""
        UPDATE {{table}} {{by_key}} SET status = 5, due_at = {{now}}, error_text = NULL, finished_at = NULL,
            updated_at = {{now}}
        WHERE id IN ({{ids}}) AND {IS_GIVEN_UP}
    """
    # Since it was looked at it may have run again, with others that wait for it.
    WAS_AWAITED = """
        WHERE id IN ({ids}) AND status = 2 AND awaited <> 0
            AND NOT EXISTS (SELECT 1 FROM {dependencies} WHERE parent_id = id)
    """
    NO_SIGN = "awaited = 0, due_at = NULL, updated_at = updated_at"
    END: ClassVar = {
        "delete": (f"{{delete_task}} {WAS_AWAITED}",),
        "mark": (f"UPDATE {{table}} {{by_key}} SET {NO_SIGN} {WAS_AWAITED}",),
        "move": (
            f"UPDATE {{table}} {{by_key}} SET status = 6, {NO_SIGN} {WAS_AWAITED}",
            "INSERT INTO {done} ({columns}) SELECT {archived_columns} FROM {table} WHERE id IN ({ids}) AND status = 6",
            "{delete_task} WHERE id IN ({ids}) AND status = 6",
        ),
    }

    def _settle_done(self, parents: Sequence[int]) -> int:
        left: set[int] = set()
        told = 0
        for edges in self._edges_of_parents(parents):
            held = self._let_go(edges)
            told += len([child for _, child in edges if child not in held])
            left.update(parent for parent, child in edges if child in held)
            if not self._has_time():
                return told
        ready = [parent for parent in parents if parent not in left]
        return (self._end(ready) if ready else 0) or told

    def _edges_of_parents(self, parents: Sequence[int]) -> Iterator[Sequence[Row]]:
        parent = child = 0
        while parents and (edges := self._look(self.EDGES_OF_PARENTS, parents, parent, parent, child, EDGES_A_LOOK)):
            yield edges
            parent, child = edges[-1]

    def _let_go(self, edges: Sequence[Row]) -> set[int]:
        """Delete these, whose parents are done; children that have no others become new. Those that others hold."""
        return self._held_of(partial(self._let_go_locked, edges), {child for _, child in edges})

    def _let_go_locked(self, edges: Sequence[Row], children: Sequence[int]) -> None:
        chosen = set(children)
        self._delete([edge for edge in edges if edge[1] in chosen])
        self._store._write_ids(self.LET_GO, children)
        self._store._write_ids(self.REVIVE, children)

    def _delete(self, edges: Collection[Row]) -> None:
        """A statement for each parent or for each child: of which there are fewer."""
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
            self._store._write_ids(sql, others, (one,))

    def _end(self, parents: Sequence[int]) -> int:
        """Done, with nothing that waits for it → gone, archived, or done."""
        writes = [(with_ids(sql, parents), parents) for sql in self.END[self._store.mode]]
        try:
            return self._store._together(writes, HELD_PATIENCE_SECONDS)[0]
        except Conflict:
            return 0

    # ---- a parent is fatal: so are its children. Their rows stay, to revive them with it

    # Those alone to which something is to be done: a look that was broken off begins anew.
    CHILDREN = """
        SELECT child_id FROM {dependencies}
        WHERE parent_id = ? AND child_id > ? AND (SELECT status FROM {table} WHERE id = child_id) = ?
        ORDER BY child_id LIMIT ?
    """
    # Since the parent was looked at it may have been retried, and done: then nothing would revive them.
    WAITS = "status = 5 AND EXISTS (SELECT 1 FROM {dependencies} WHERE child_id = id AND parent_id = ?)"
    GIVE_UP = f"""
        UPDATE {{table}} {{by_key}} SET status = 4, due_at = CASE WHEN awaited <> 0 THEN {{now}} END, error_text = ?,
            finished_at = {{now}}, updated_at = {{now}}
        WHERE id IN ({{ids}}) AND {WAITS}
    """
    STILL_WAIT = f"SELECT id, task, group_id FROM {{table}} WHERE id IN ({{ids}}) AND {WAITS}"
    # Not the sign of another end than the one that was looked at.
    TOLD = f"""
        UPDATE {{table}} {{by_key}} SET due_at = NULL, updated_at = updated_at
        WHERE id IN ({{ids}}) AND status = 4 AND {SIGN_READ} = ?
    """

    def _settle_fatal(self, parent: int, sign: str) -> int:
        told = held = 0
        for children in self._children(parent, Status.WAITING):
            left = self._give_up(children, parent)
            held += len(left)
            told += len(children) - len(left)
            if not self._has_time():
                return told
        return told if held else self._store._write_free(self.TOLD, [parent], (sign,))

    def _children(self, parent: int, status: int) -> Iterator[list[int]]:
        last = 0
        while children := [row[0] for row in self._look(self.CHILDREN, (), parent, last, int(status), EDGES_A_LOOK)]:
            yield children
            last = children[-1]

    def _give_up(self, children: Sequence[int], parent: int) -> set[int]:
        """Waiting → fatal. Those that others hold."""
        is_older = all(parent < child for child in children)
        text = f"{GIVEN_UP}{parent}, for which it waits, is {'fatal' if is_older else 'not older than this one'}"
        given_up: dict[int, GivenUp] = {}
        held = self._held_of(partial(self._give_up_locked, parent, text, given_up), children)
        for one in given_up.values():
            if one.id not in held:
                self._told(one)
        return held

    def _give_up_locked(self, parent: int, text: str, given_up: dict[int, GivenUp], children: Sequence[int]) -> None:
        for task_id, task, group_id in self._store._all(with_ids(self.STILL_WAIT, children), (*children, parent)):
            given_up[task_id] = GivenUp(task_id, str(task), group_id, text)
        self._store._write(with_ids(self.GIVE_UP, children), (text, *children, parent))

    # ---- a child: has it to wait?

    EDGES_OF_CHILDREN = """
        SELECT parent_id, child_id FROM {dependencies}
        WHERE child_id IN ({ids}) AND (child_id > ? OR child_id = ? AND parent_id > ?)
        ORDER BY child_id, parent_id LIMIT ?
    """
    AWAIT = """
        UPDATE {table} {by_key} SET awaited = 1, updated_at = updated_at
        WHERE id IN ({ids}) AND status <> 2 AND awaited = 0
    """
    ENDS = "SELECT id, status, awaited FROM {table} WHERE id IN ({ids})"
    DECIDE = f"""
        UPDATE {{table}} {{by_key}} SET due_at = NULL, status = CASE WHEN {HAS_NONE} THEN 0 ELSE 5 END,
            updated_at = {{now}}
        WHERE id IN ({{ids}}) AND status = 5 AND due_at <= {{now}}
    """

    # Behind all else that is due, which would not be found for as long as so many are left.
    PUT_OFF = """
        UPDATE {table} {by_key} SET due_at = {now}, updated_at = updated_at
        WHERE id IN ({ids}) AND status = 5 AND due_at <= {now}
    """

    def _settle_waiting(self, children: dict[int, bool]) -> int:
        """Waiting → new, waiting until it is let go, or fatal. Each child, and whether others wait for it."""
        looked = self._look_at(sorted(children))
        settled = 0
        for parent, doomed in looked.doomed.items():
            settled += len(doomed) - len(self._give_up(doomed, parent))
        self._store._write_free(self.PUT_OFF, sorted(looked.late))
        rest = [child for child in children if child not in looked.left]
        rest = [child for child in rest if not children[child] or self._revive_children(child)]
        held = self._held_of(partial(self._store._write_ids, self.DECIDE), rest)
        return settled + len(rest) - len(held)

    def _look_at(self, children: Sequence[int]) -> _Looked:
        """Let go of what is done among those that they wait for, and have the others know that they are awaited."""
        looked = _Looked({}, set(), set())
        for edges in self._edges_of(children):
            ends = self._ends_of(sorted({parent for parent, child in edges if parent < child}))
            looked.left.update(self._let_go([edge for edge in edges if edge[0] in ends.done]))
            for parent, child in edges:
                if parent in ends.fatal or parent >= child:
                    looked.doomed.setdefault(parent, []).append(child)
                if parent in ends.fatal or parent in ends.unknown or parent >= child:
                    looked.left.add(child)
                if parent in ends.unknown:
                    looked.late.add(child)
            last = edges[-1][1]
            if last > children[0] and not self._has_time():
                looked.left.update(child for child in children if child >= last)
                break
        return looked

    def _edges_of(self, children: Sequence[int]) -> Iterator[Sequence[Row]]:
        parent = child = 0
        while children and (edges := self._look(self.EDGES_OF_CHILDREN, children, child, child, parent, EDGES_A_LOOK)):
            yield edges
            parent, child = edges[-1]

    def _ends_of(self, parents: Sequence[int]) -> _Ends:
        """After this, whoever ends one of these, or retries one that is fatal, knows that it is awaited."""
        if not parents:
            return _Ends(set(), set(), set())
        self._store._write_free(self.AWAIT, parents)
        rows = self._look(self.ENDS, parents)
        done = {row[0] for row in rows if row[1] == Status.DONE} | set(parents).difference(row[0] for row in rows)
        fatal = {row[0] for row in rows if row[1] == Status.FATAL}
        return _Ends(done, fatal, {row[0] for row in rows if not row[2]} - done - fatal)

    def _revive_children(self, parent: int) -> bool:
        """Those that were given up because of this one, which is not fatal any more. Whether none was held."""
        revive = partial(self._store._write_ids, self.REVIVE)
        held = [self._held_of(revive, children) for children in self._children(parent, Status.FATAL)]
        return not any(held)

    # ---- for operators

    ORPHANS = f"SELECT id FROM {{table}} {{by_status}} WHERE {Store.IS_ORPHAN} AND id > ? ORDER BY id LIMIT ?"
    SIGN = "UPDATE {table} {by_key} SET due_at = {now} WHERE id IN ({ids}) AND status = 5 AND due_at IS NULL"

    def sign_orphans(self) -> int:
        """Have those looked at that wait for tasks which a person deleted: nobody else would let them go. How many."""
        last = signed = 0
        while orphans := [row[0] for row in self._look(self.ORPHANS, (), last, EDGES_A_LOOK)]:
            signed += self._store._write_free(self.SIGN, orphans)
            last = orphans[-1]
        return signed

    # ---- under the locks of children

    LOCK = "SELECT id FROM {table} {by_key} WHERE id IN ({ids})"
    EXIST = "SELECT id FROM {table} WHERE id IN ({ids})"

    def _held_of(self, work: Work, rows: Collection[int]) -> set[int]:
        """Do work to these rows under their locks, in one transaction, but for those that others hold: which."""
        ids = sorted(set(rows))
        if not ids:
            return set()
        try:
            return self._try(work, ids)
        except Conflict:
            return self._singly(work, ids) if len(ids) > 1 else set(ids)

    def _singly(self, work: Work, ids: Sequence[int]) -> set[int]:
        """The same row by row, where the server cannot skip the rows that others hold: each of them costs a wait."""
        held, conflicts = set(ids), 0
        for row_id in random.sample(ids, len(ids)):
            try:
                if not self._try(work, [row_id]):
                    held.remove(row_id)
            except Conflict:
                conflicts += 1
                if conflicts == MOST_HELD:
                    break
        return held

    def _try(self, work: Work, ids: Sequence[int]) -> set[int]:
        store = self._store
        way = Way(True, HELD_PATIENCE_SECONDS if store.one_writer else 0)
        return store._locking(lambda end: store._do(way, self._under_locks, work, ids, end))

    def _under_locks(self, work: Work, ids: Sequence[int], end: str) -> set[int]:
        store = self._store
        locked = {row[0] for row in store._all(with_ids(self.LOCK + end, ids), ids)}
        others = [row_id for row_id in ids if row_id not in locked]
        # Of rows that are gone there is nothing to lock.
        held = {row[0] for row in store._all(with_ids(self.EXIST, others), others)} if others else set()
        free = [row_id for row_id in ids if row_id not in held]
        if free:
            work(free)
        return held

    def _look(self, sql: str, ids: Sequence[int], *values: int) -> Sequence[Row]:
        return self._store._alone(self._store._all, with_ids(sql, ids), (*ids, *values))
