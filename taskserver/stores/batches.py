"""Starts, renewals and finishes of several tasks in one write, for callables that take several at once.

Verbs over a store, apart from store.py, whose verbs are those of one task. The tasks given to one of them are of one
claim, and at most as many as one statement takes ids. Where others hold one of the rows, the others are locked and
written without it: a page's open transaction must not hold up what stands beside its row. What a completion could not
be written for is left to the verbs of single tasks, which know every special case.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

from ..errors import Conflict
from ..lifecycle import ClaimedTask
from .database import Write, with_ids
from .store import MOST_HELD, Store
from .tries import Way


def _of_many(sql: str) -> str:
    return sql.replace("id = ?", "id IN ({ids})", 1)


class _Change(NamedTuple):
    """What is done to rows: its writes, of which the first tells how many there were."""

    writes: Sequence[Write]
    """With the values that stand before the ids; the claim follows them."""
    which: str
    """The rows that the first one matches, as a condition that ends with the claim."""


class _Written(NamedTuple):
    ids: Sequence[int]
    """Of the rows that were changed."""
    may_be_more: bool
    """Whether a connection broke whose last write may have taken effect."""


class _NotAll(Exception):
    """A write matched fewer rows than it was to, and is undone."""


class Batches:
    """Verbs for the tasks of one call."""

    def __init__(self, store: Store) -> None:
        self._store = store

    # ---- start: in progress, unstarted → in progress, started

    START = _of_many(Store.START)
    STARTABLE = "status = 1 AND started_at IS NULL AND claim = ?"
    STARTED = "status = 1 AND started_at IS NOT NULL AND claim = ?"
    WHICH_STARTED = f"SELECT id FROM {{table}} {{by_key}} WHERE id IN ({{ids}}) AND {STARTED}"
    WHICH_UNSTARTED = f"SELECT id FROM {{table}} {{by_key}} WHERE id IN ({{ids}}) AND {STARTABLE}"

    def start(self, tasks: Sequence[ClaimedTask], max_attempts: int) -> set[int]:
        """In progress, unstarted → in progress, started. The ids of those that are; others hold the rest, or took it.

        `max_attempts` is how often each may start whose row does not say it.
        """
        change = _Change([(self.START, (max_attempts, self._store._lease_seconds))], self.STARTABLE)
        matched = self._write_some(change, tasks)
        # An earlier try whose connection broke may have started the others.
        return {task.id for task in tasks} if matched == len(tasks) else self.started(tasks)

    def unstarted(self, tasks: Sequence[ClaimedTask]) -> set[int]:
        """The ids of those which this worker still has, and did not start."""
        return self._ids(self.WHICH_UNSTARTED, tasks)

    def started(self, tasks: Sequence[ClaimedTask]) -> set[int]:
        """The ids of those which this worker started and still has."""
        return self._ids(self.WHICH_STARTED, tasks)

    # ---- while they run: the lease anew

    RENEW = _of_many(Store.RENEW)
    WHICH_CANCELLED = f"{WHICH_STARTED} AND {{is_cancelled}} = 1"

    def renew(self, tasks: Sequence[ClaimedTask]) -> bool:
        """Let the leases of started tasks begin anew, but for rows that others hold. Whether any claim still stands."""
        change = _Change([(self.RENEW, (self._store._lease_seconds,))], self.STARTED)
        return bool(self._write_some(change, tasks) or self.started(tasks))

    def cancelled(self, tasks: Sequence[ClaimedTask]) -> set[int]:
        """The ids of those which a person cancelled while they ran."""
        return self._ids(self.WHICH_CANCELLED, tasks)

    # ---- finish: in progress, started → done

    COMPLETABLE = "status = 1 AND attempts > 0 AND awaited = 0 AND claim = ?"

    def complete(self, tasks: Sequence[ClaimedTask]) -> tuple[set[int], bool]:
        """In progress, started → gone, archived or done. The ids of those that are; others are left to `advance`:

        those of a claim that was taken away, changed or awaited ones, rows that somebody holds. And whether they may be
        done all the same, as a connection broke whose last write may have taken effect.
        """
        writes = [(_of_many(sql), ()) for sql in self._store.COMPLETE[self._store.mode]]
        completed = self._write_all_or_free(_Change(writes, self.COMPLETABLE), tasks)
        return set(completed.ids), completed.may_be_more

    # ---- start again: in progress, started → in progress, started once more

    # Not one that a person changed, retried or cancelled meanwhile.
    START_AGAIN = """
        UPDATE {table} {by_key}
        SET attempts = attempts + 1, started_at = {now}, due_at = {after}, progress = NULL, updated_at = {now}
        WHERE id = ? AND status = 1 AND claim = ? AND started_at IS NOT NULL AND attempts = ? AND {is_cancelled} = 0
    """
    WAS_STARTED_AGAIN = "SELECT 1 FROM {table} WHERE id = ? AND status = 1 AND claim = ? AND attempts = ?"

    def start_again(self, task: ClaimedTask) -> bool:
        """Count another attempt at a started task, and let its lease begin anew. Whether it is as its start left it."""
        store, attempts = self._store, task.attempts + 1
        values = (store._lease_seconds, task.id, task.claim, attempts)
        if store._alone(store._write, self.START_AGAIN, values):
            return True
        if not store._may_have_taken_effect():
            return False
        return bool(store._alone(store._all, self.WAS_STARTED_AGAIN, (task.id, task.claim, attempts + 1)))

    # ---- writes to several rows

    def _write_some(self, change: _Change, tasks: Sequence[ClaimedTask]) -> int:
        """How many rows were changed, by one statement: those that are as they should be, and that nobody holds."""
        store, ids, claim = self._store, _ids_of(tasks), tasks[0].claim
        [(sql, before)] = change.writes
        try:
            way = Way(None, self._conflict_seconds())
            return store._do(way, store._write, with_ids(sql, ids), (*before, *ids, claim))
        except Conflict:
            if store.one_writer:
                raise
            return len(self._write_free(change, ids, claim).ids)

    def _write_all_or_free(self, change: _Change, tasks: Sequence[ClaimedTask]) -> _Written:
        """In one commit of several writes, of which each matches all of the rows; else those that nobody holds."""
        store, ids, claim = self._store, _ids_of(tasks), tasks[0].claim
        try:
            store._do(Way(True, self._conflict_seconds()), self._write_all, change, ids, claim)
            return _Written(ids, False)
        except Conflict:
            if store.one_writer:
                raise
        except _NotAll:
            pass
        may_be_more = store._may_have_taken_effect()
        written = self._write_free(change, ids, claim)
        return written._replace(may_be_more=may_be_more or written.may_be_more)

    def _conflict_seconds(self) -> float:
        """Where others hold a row, the free ones are written at once; where only one can write, they are waited for."""
        return self._store._conflict_seconds if self._store.one_writer else 0

    def _write_free(self, change: _Change, ids: Sequence[int], claim: int) -> _Written:
        """Rows that others hold are passed over."""
        store, way = self._store, Way(True, self._conflict_seconds())
        try:
            written = store._locking(lambda end: store._do(way, self._lock_and_write, change, ids, claim, end))
            return _Written(written, store._may_have_taken_effect())
        except (_NotAll, Conflict):
            return self._write_singly(change, ids, claim, store._may_have_taken_effect())

    def _write_singly(self, change: _Change, ids: Sequence[int], claim: int, may_be_more: bool) -> _Written:
        """The same row by row, where the server cannot pass over what others hold: each such row costs a wait."""
        written: list[int] = []
        held = 0
        for row_id in random.sample(ids, len(ids)):
            try:
                self._store._do(Way(True, 0), self._write_all, change, [row_id], claim)
                written.append(row_id)
            except (_NotAll, Conflict) as error:
                may_be_more = may_be_more or self._store._may_have_taken_effect()
                held += isinstance(error, Conflict)
                if held == MOST_HELD:
                    break
        return _Written(written, may_be_more)

    def _write_all(self, change: _Change, ids: Sequence[int], claim: int) -> None:
        for sql, before in change.writes:
            if self._store._write(with_ids(sql, ids), (*before, *ids, claim)) < len(ids):
                raise _NotAll

    def _lock_and_write(self, change: _Change, ids: Sequence[int], claim: int, end: str) -> Sequence[int]:
        lock = f"SELECT id FROM {{table}} {{by_key}} WHERE id IN ({{ids}}) AND {change.which}{end}"
        locked = [row[0] for row in self._store._all(with_ids(lock, ids), (*ids, claim))]
        if locked:
            self._write_all(change, locked, claim)
        return locked

    def _ids(self, sql: str, tasks: Sequence[ClaimedTask]) -> set[int]:
        ids = _ids_of(tasks)
        rows = self._store._alone(self._store._all, with_ids(sql, ids), (*ids, tasks[0].claim))
        return {row[0] for row in rows}


def _ids_of(tasks: Sequence[ClaimedTask]) -> list[int]:
    """In order: rows are locked so by whoever locks several."""
    return sorted([task.id for task in tasks])
