"""Tasks that wait for others: held back, let go when all of these are done, and given up when one of them is fatal.

A row of the table of dependencies, an edge, says that a child waits for a parent; it goes once the parent is done.
A task that no other waits for costs nothing more: its own row says in `awaited` whether others may wait for it, and the
writes that end a task (finish_writes.py) ask for 0. Where it is 1, they leave the row done or fatal, with an instant in
due_at: the sign that the children have not been told. A waiting row with an instant in due_at is a child whose parents
have not been looked at. So a look for due rows finds both (`Due.linked`), and its worker settles them, in portions. An
interrupted portion is found again, and settling a row twice is as good as once.

No child is missed. Its edges are deleted under its lock, and the worker that deletes the last one lets it go. The child
is made to wait under the same lock, after `awaited` was written to each of its parents that is not over.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from functools import partial
from itertools import starmap
from logging import getLogger
from typing import ClassVar, NamedTuple

from ...errors import Conflict, DatabaseError, is_refusal
from ...model.task import Status
from ..database import Row
from ..free_rows import FreeRows, Work
from ..retrying import HELD_PATIENCE_SECONDS, RetryPolicy, Scope
from ..statements import with_ids
from .edges import MAX_EDGES_PER_LOOK, Edges
from .store import Store

LOG = getLogger("taskserver")

MAX_SETTLING_SECONDS = 5.0
"""Stop settling after so long; leave the rest for the next look: a worker has tasks to run, and signals to hear."""
MAX_CHILD_SECONDS = 10.0
"""So much longer for the first child: it may have ten thousands of parents."""
MAX_PRODUCER_SECONDS = 0.5
"""The same for a producer: its page waits for one held row at most, which is a second."""

GIVEN_UP = "dependency: task "
"""The begin of the error_text of a task that was given up because of another one."""
IS_GIVEN_UP = f"status = 4 AND error_text LIKE '{GIVEN_UP}%'"


class GivenUp(NamedTuple):
    """A task that became fatal because of another one."""

    id: int
    task: str
    group_id: int
    error_text: str


class _Ends(NamedTuple):
    """Parents by their ends; a parent that is in none of these sets is not over, and knows that it is awaited."""

    done: set[int]
    """Parents that are done, or gone."""
    fatal: set[int]
    unknown: set[int]
    """Parents whose row others hold, so that `awaited` could not be written, or that are not committed yet."""


class _Findings(NamedTuple):
    """The outcome of a look at the parents of some children."""

    doomed: dict[int, int]
    """The children to be given up, each with the first parent because of which it is."""
    undecided: set[int]
    """The doomed children, and children of which nobody can say yet whether they have to wait."""
    put_off: set[int]
    """The undecided children with a parent whose row others hold."""


class Dependencies:
    """The edges of one queue: its tasks that wait for others."""

    def __init__(self, store: Store, on_given_up: Callable[[GivenUp], object] = lambda given_up: None) -> None:
        """`on_given_up` is called with each task that is given up."""
        self._store = store
        self._database = store.database
        self._edges = Edges(store.database)
        self._on_given_up = on_given_up
        self._until = 0.0
        self._free_rows = FreeRows(store.database, self._has_time)

    # ---- settle: a row with a sign → its children are told, and the sign is gone

    SIGNED = """
        SELECT id, status, awaited, {due_at_sign} FROM {table}
        WHERE id IN ({ids}) AND status IN (2, 4, 5) AND due_at <= {now}
    """
    # A sign on a row that is not awaited: no verb of ours writes one.
    UNSIGN = """
        UPDATE {table} {by_key} SET due_at = NULL, updated_at = updated_at
        WHERE id IN ({ids}) AND status IN (2, 4) AND awaited = 0
    """

    def settle(self, ids: Sequence[int], max_seconds: float = MAX_SETTLING_SECONDS) -> int:
        """Settle rows that a look has found; how many. Rows that others hold are left for the next look.

        Children of a parent that is done: waiting → new. Children of a fatal parent: waiting → fatal. Awaited parents
        that are done → gone, archived or done, as the mode says. Raises DatabaseError.
        """
        if not ids:
            return 0
        self._until = time.monotonic() + max_seconds
        rows = self._fetch(self.SIGNED, ids)
        waiting = {row[0]: bool(row[2]) for row in rows if row[1] == Status.WAITING}
        done = [row[0] for row in rows if row[1] == Status.DONE and row[2]]
        fatal = {row[0]: row[3] for row in rows if row[1] == Status.FATAL and row[2]}
        forged = [row[0] for row in rows if row[1] != Status.WAITING and not row[2]]
        settled = (
            self._settle_waiting(waiting) + self._settle_done(done) + sum(starmap(self._settle_fatal, fatal.items()))
        )
        return settled + self._free_rows.write_ids(self.UNSIGN, forged)

    def _has_time(self, more_seconds: float = 0.0) -> bool:
        return time.monotonic() < self._until + more_seconds

    # ---- a parent is done: its children are let go

    HAS_NONE = "NOT EXISTS (SELECT 1 FROM {dependencies} WHERE child_id = id)"
    LET_GO = f"""
        UPDATE {{table}} {{by_key}} SET status = 0, updated_at = {{now}}
        WHERE id IN ({{ids}}) AND status = 5 AND due_at IS NULL AND {HAS_NONE}
    """
    # The child may wait for other parents, too: the instant in due_at has it looked at anew.
    REVIVE = f"""
        UPDATE {{table}} {{by_key}} SET status = 5, due_at = {{now}}, error_text = NULL, finished_at = NULL,
            updated_at = {{now}}
        WHERE id IN ({{ids}}) AND {IS_GIVEN_UP}
    """
    # The parent may have run again since the look, with new children.
    WAS_AWAITED = """
        WHERE id IN ({ids}) AND status = 2 AND awaited <> 0
            AND NOT EXISTS (SELECT 1 FROM {dependencies} WHERE parent_id = id)
    """
    NO_SIGN = "awaited = 0, due_at = NULL, updated_at = updated_at"
    END: ClassVar = {
        "delete": (f"{{delete_task}} {WAS_AWAITED}",),
        "mark": (f"UPDATE {{table}} {{by_key}} SET {NO_SIGN} {WAS_AWAITED}",),
        "stay": (f"UPDATE {{table}} {{by_key}} SET unique_key = NULL, {NO_SIGN} {WAS_AWAITED}",),
        "move": (
            f"UPDATE {{table}} {{by_key}} SET status = 6, {NO_SIGN} {WAS_AWAITED}",
            "INSERT INTO {done} ({columns}) SELECT {archived_columns} FROM {table} WHERE id IN ({ids}) AND status = 6",
            "{delete_task} WHERE id IN ({ids}) AND status = 6",
        ),
    }

    def _settle_done(self, parents: Sequence[int]) -> int:
        """Let the children of done parents go, then end these parents; how many rows were settled."""
        unready: set[int] = set()
        let_go = 0
        for edges in self._edges.of_parents(parents):
            held = self._let_go(edges)
            let_go += len([child for _, child in edges if child not in held])
            unready.update(parent for parent, child in edges if child in held)
            if not self._has_time():
                return let_go
        ready = [parent for parent in parents if parent not in unready]
        return (self._end(ready, self._store.mode) if ready else 0) or let_go

    def _let_go(self, edges: Sequence[Row]) -> set[int]:
        """Delete edges whose parents are done; children without other edges: waiting → new.

        Returns the children that others hold, which keep their edges.
        """
        return self._held_after(partial(self._let_go_locked, edges), {child for _, child in edges})

    def _let_go_locked(self, edges: Sequence[Row], children: Sequence[int]) -> None:
        chosen = set(children)
        self._edges.delete([edge for edge in edges if edge[1] in chosen])
        self._database.write_ids(self.LET_GO, children)
        self._database.write_ids(self.REVIVE, children)

    def _end(self, parents: Sequence[int], mode: str) -> int:
        """Awaited parents that are done and have no edges → gone, archived or done; how many. 0 if others hold one."""
        writes = [(with_ids(sql, parents), parents) for sql in self.END[mode]]
        try:
            return self._database.write_together(writes, HELD_PATIENCE_SECONDS)[0][0]
        except Conflict:
            return 0
        except DatabaseError as error:
            if mode in ("mark", "stay") or not is_refusal(error):
                raise
            # The database does not let one of them go.
            one_by_one, how = ([parents], "stay") if len(parents) == 1 else ([[parent] for parent in parents], mode)
            if how == "stay":
                LOG.warning("task %d is done, and its row stays: the database does not let it go: %s", *parents, error)
            return sum(self._end(some, how) for some in one_by_one)

    # ---- a parent is fatal: its children become fatal. The edges stay, so that a retry of the parent revives them

    # The parent may have been retried since the look, and be done: then nothing would revive its children.
    WAITS = "status = 5 AND EXISTS (SELECT 1 FROM {dependencies} WHERE child_id = id AND parent_id = ?)"
    GIVE_UP = f"""
        UPDATE {{table}} {{by_key}} SET status = 4, due_at = CASE WHEN awaited <> 0 THEN {{now}} END, error_text = ?,
            finished_at = {{now}}, updated_at = {{now}}
        WHERE id IN ({{ids}}) AND {WAITS}
    """
    STILL_WAIT = f"SELECT id, task, group_id FROM {{table}} WHERE id IN ({{ids}}) AND {WAITS}"
    # Only the sign that the look has found: a later end of the task has another one.
    UNSIGN_FATAL = """
        UPDATE {table} {by_key} SET due_at = NULL, updated_at = updated_at
        WHERE id IN ({ids}) AND status = 4 AND {due_at_sign} = ?
    """

    def _settle_fatal(self, parent: int, sign: str) -> int:
        """Give up the children of a fatal parent, then take its sign away; how many rows were settled."""
        given_up = held = 0
        for children in self._edges.children(parent, Status.WAITING):
            left = self._give_up(children, parent)
            held += len(left)
            given_up += len(children) - len(left)
            if not self._has_time():
                return given_up
        return given_up if held else self._free_rows.write_ids(self.UNSIGN_FATAL, [parent], (sign,))

    def _give_up(self, children: Sequence[int], parent: int) -> set[int]:
        """Waiting → fatal for children of this parent. Returns the children that others hold."""
        is_older = all(parent < child for child in children)
        text = f"{GIVEN_UP}{parent}, for which it waits, is {'fatal' if is_older else 'not older than this one'}"
        given_up: dict[int, GivenUp] = {}
        held = self._held_after(partial(self._give_up_locked, parent, text, given_up), children)
        for one in given_up.values():
            if one.id not in held:
                self._on_given_up(one)
        return held

    def _give_up_locked(self, parent: int, text: str, given_up: dict[int, GivenUp], children: Sequence[int]) -> None:
        for task_id, task, group_id in self._database.rows(with_ids(self.STILL_WAIT, children), (*children, parent)):
            given_up[task_id] = GivenUp(task_id, str(task), group_id, text)
        self._database.write(with_ids(self.GIVE_UP, children), (text, *children, parent))

    # ---- a child: does it have to wait?

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

    # Move the child to the end of the due order, so that stuck rows don't starve others.
    PUT_OFF = """
        UPDATE {table} {by_key} SET due_at = {now}, updated_at = updated_at
        WHERE id IN ({ids}) AND status = 5 AND due_at <= {now}
    """

    def _settle_waiting(self, children: dict[int, bool]) -> int:
        """Waiting → new, waiting without an instant until it is let go, or fatal; how many children were settled.

        `children` says of each child whether others wait for it.
        """
        findings = self._look_at(sorted(children), _Findings({}, set(), set()), MAX_CHILD_SECONDS)
        settled = 0
        for parent in set(findings.doomed.values()):
            doomed = [child for child, because_of in findings.doomed.items() if because_of == parent]
            settled += len(doomed) - len(self._give_up(doomed, parent))
        self._free_rows.write_ids(self.PUT_OFF, sorted(findings.put_off))
        rest = [child for child in children if child not in findings.undecided]
        rest = [child for child in rest if not children[child] or self._revive_children(child)]
        held = self._held_after(partial(self._database.write_ids, self.DECIDE), rest)
        return settled + len(rest) - len(held)

    def _look_at(self, children: Sequence[int], findings: _Findings, more_seconds: float) -> _Findings:
        """Delete the edges from parents that are done, and write `awaited` to parents that are not over."""
        for edges in self._edges.of_children(children):
            ends = self._await(sorted({parent for parent, child in edges if parent < child}))
            findings.undecided.update(self._let_go([edge for edge in edges if edge[0] in ends.done]))
            for parent, child in edges:
                if parent in ends.fatal or parent >= child:
                    findings.doomed.setdefault(child, parent)
                if parent in ends.fatal or parent in ends.unknown or parent >= child:
                    findings.undecided.add(child)
                if parent in ends.unknown:
                    findings.put_off.add(child)
            last = edges[-1][1]
            is_first = last == children[0] and last not in findings.doomed
            if len(edges) == MAX_EDGES_PER_LOOK and not self._has_time(more_seconds if is_first else 0):
                behind = [child for child in children if child > last]
                findings.undecided.update([last] if is_first else [last, *behind])
                if is_first:
                    findings.put_off.add(last)
                    self._until = time.monotonic() + MAX_PRODUCER_SECONDS  # each look is to decide one
                    self._look_at(behind, findings, 0)
                break
        return findings

    def _await(self, parents: Sequence[int]) -> _Ends:
        """Write `awaited` to parents that are not over, then read the ends of all.

        From then on, whoever ends one of these parents, or retries a fatal one, knows that it is awaited. Once no
        time is left, no lock is waited for: these parents count as held.
        """
        if not parents:
            return _Ends(set(), set(), set())
        seen = {row[0] for row in self._fetch(self.ENDS, parents)}
        unseen = set(parents) - seen
        gone = self._free_rows.gone(sorted(unseen)) if self._has_time() else set()
        if self._has_time():
            self._free_rows.write_ids(self.AWAIT, sorted(seen))
        rows = self._fetch(self.ENDS, sorted(seen)) if seen else ()
        gone |= seen.difference(row[0] for row in rows)  # it was committed, and has ended since
        done = gone | {row[0] for row in rows if row[1] == Status.DONE}
        fatal = {row[0] for row in rows if row[1] == Status.FATAL}
        return _Ends(done, fatal, (unseen | {row[0] for row in rows if not row[2]}) - done - fatal)

    def _revive_children(self, parent: int) -> bool:
        """Fatal → waiting for children that were given up because of this parent, which is not fatal any more.

        Whether nobody held one of them.
        """
        revive = partial(self._database.write_ids, self.REVIVE)
        held = [self._held_after(revive, children) for children in self._edges.children(parent, Status.FATAL)]
        return not any(held)

    # ---- under the locks of children

    EXIST = "SELECT id FROM {table} WHERE id IN ({ids})"

    def _held_after(self, work: Work, rows: Collection[int]) -> set[int]:
        """Do work to these rows under their locks; returns the rows that others hold, to which it was not done.

        The work is done for rows that are gone, too: their edges may stand.
        """
        ids = sorted(set(rows))
        if not ids:
            return set()
        try:
            done = self._free_rows.work(ids, work).ids
        except Conflict:  # the database has one writer, and another process writes
            return set(ids)
        left = sorted(set(ids).difference(done))
        held = {row[0] for row in self._fetch(self.EXIST, left)} if left else set()
        if gone := [row_id for row_id in left if row_id not in held]:  # no row is there to be locked
            try:
                self._database.run(RetryPolicy(Scope.TRANSACTION, HELD_PATIENCE_SECONDS), work, gone)
            except Conflict:
                held.update(gone)
        return held

    def _fetch(self, sql: str, ids: Sequence[int], *values: int) -> Sequence[Row]:
        return self._database.fetch(with_ids(sql, ids), (*ids, *values))
