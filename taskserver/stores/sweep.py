"""One write to many rows that an operator chose, beside running workers.

Ids are looked for without locks, many at a time. A portion of them is then locked by primary key, looked at again,
written and committed; rows that others hold are passed over, and come back to. So workers wait no longer than a portion
takes, what was done stays done when it is broken off, and of an id nothing is written twice.

An UPDATE of all of them at once would lock what it reads in the order of some index until its end: workers would stand
still meanwhile, or deadlock with it, and a database that goes away would undo everything.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from ..errors import Conflict
from .database import IDS_A_STATEMENT, with_ids
from .store import MOST_HELD, Store
from .tries import Pauses, Way

IDS_A_LOOK = 50_000
"""Each look reads all rows of the statuses that are meant, as no index has them in order of id: so there are few."""
COME_BACK_SECONDS = 5.0
"""So long after the last progress rows that others hold are come back to."""
LONGEST_PAUSE_SECONDS = 0.25

Told = Callable[[Sequence[int]], object]
"""Hears of the ids of each portion that is written."""


class Target(NamedTuple):
    """Which rows are meant, and what is done to them."""

    which: str
    """The condition that they meet."""
    values: Sequence[Any]
    write: str
    """The statement, without its WHERE."""
    write_values: Sequence[Any] = ()
    table: str = "{table}"
    key: str = "id"
    then: str = ""
    """Another statement, of the ids alone, in the same transaction."""
    hint: str = "{by_status}"
    """The index by which they are looked for."""


class Swept(NamedTuple):
    """What came of it."""

    changed: int
    held: Sequence[int] = ()
    """Rows that others held all the time, and that are as they were."""


class Sweep:
    """One write to the rows of a target."""

    def __init__(self, store: Store, target: Target, told: Told = lambda ids: None) -> None:
        self._store = store
        self._target = target
        self._told = told
        self._changed = 0
        self._limit: int | None = None
        self._held: list[int] = []

    def run(self, ids: Sequence[int] | None = None, limit: int | None = None) -> Swept:
        """Write to the rows that are meant, to those of these ids if given; at most `limit`, in order of id."""
        self._limit = limit
        for found in self._found(ids):
            self._write_all(found)
        self._come_back()
        return Swept(self._changed, self._held if self._room() else ())

    # ---- look, without locks

    def _found(self, ids: Sequence[int] | None) -> Iterator[list[int]]:
        if ids is not None:
            yield sorted(set(ids))
            return
        last = -1
        while self._room() and (found := self.look(last, IDS_A_LOOK)):
            yield found
            if len(found) < IDS_A_LOOK:
                return
            last = found[-1]

    def look(self, last: int, most: int) -> list[int]:
        """Ids of rows that are meant, after this one."""
        target = self._target
        sql = (
            f"SELECT {target.key} FROM {target.table} {target.hint} "
            f"WHERE ({target.which}) AND {target.key} > ? ORDER BY {target.key} LIMIT ?"
        )
        with self._store._unhurried():
            return [row[0] for row in self._store._alone(self._store._all, sql, (*target.values, last, most))]

    def count(self) -> int:
        """How many rows are meant."""
        sql = f"SELECT COUNT(*) FROM {self._target.table} {self._target.hint} WHERE {self._target.which}"
        with self._store._unhurried():
            found: int = self._store._alone(self._store._all, sql, self._target.values)[0][0]
        return found

    def look_among(self, ids: Sequence[int]) -> list[int]:
        """Which of these are meant."""
        sql = f"SELECT {self._target.key} FROM {self._target.table} {{by_key}} {self._which_of_ids()}"
        found: list[int] = []
        for first in range(0, len(ids), IDS_A_STATEMENT):
            portion = ids[first : first + IDS_A_STATEMENT]
            rows = self._store._alone(self._store._all, with_ids(sql, portion), (*portion, *self._target.values))
            found += (row[0] for row in rows)
        return sorted(found)

    def _which_of_ids(self) -> str:
        return f"WHERE {self._target.key} IN ({{ids}}) AND ({self._target.which})"

    # ---- write, a portion a transaction

    def _room(self) -> int:
        """How many the next portion may hold."""
        return IDS_A_STATEMENT if self._limit is None else min(self._limit - self._changed, IDS_A_STATEMENT)

    def _write_all(self, ids: Sequence[int]) -> None:
        done = 0
        while done < len(ids) and (room := self._room()):
            portion = ids[done : done + room]
            done += len(portion)
            began_at = time.monotonic()
            self._write_portion(portion)
            if self._store.one_writer:
                # Those who wait for their turn to write ask for it now and then: without a pause they would miss it.
                time.sleep(min(time.monotonic() - began_at, LONGEST_PAUSE_SECONDS))

    def _write_portion(self, ids: Sequence[int]) -> None:
        written = self._try(ids)
        if written is None:
            written = self._write_singly(ids) if len(ids) > 1 else []
        self._changed += len(written)
        if len(written) < len(ids):
            # What is meant still was not to be had.
            self._held += self.look_among(sorted(set(ids).difference(written)))
        if written:
            self._told(written)

    def _write_singly(self, ids: Sequence[int]) -> list[int]:
        """The same row by row, where the server cannot skip the rows that others hold: each of them costs a wait."""
        written: list[int] = []
        held = 0
        for row_id in random.sample(ids, len(ids)):
            one = self._try([row_id])
            written += one or ()
            held += one is None
            if held == MOST_HELD:
                break
        return written

    def _try(self, ids: Sequence[int]) -> list[int] | None:
        """The ids that were written; None where others are in the way of a row."""
        store = self._store
        seconds = store._conflict_seconds if store.one_writer else 0
        try:
            return store._locking(lambda end: store._do(Way(True, seconds), self._lock_and_write, ids, end))
        except Conflict:
            if store.one_writer:  # others write all the time: no row of ours is to blame
                raise
            return None

    def _lock_and_write(self, ids: Sequence[int], end: str) -> list[int]:
        """Lock those that are meant still, and write to them."""
        store, target = self._store, self._target
        lock = f"SELECT {target.key} FROM {target.table} {{by_key}} {self._which_of_ids()}{end}"
        locked = [row[0] for row in store._all(with_ids(lock, ids), (*ids, *target.values))]
        if locked:
            # Looked at once more: on servers with statement-based replication the first write begins a new transaction.
            write = with_ids(f"{target.write} {self._which_of_ids()}", locked)
            store._write(write, (*target.write_values, *locked, *target.values))
            if target.then:
                store._write_ids(target.then, locked)
        return locked

    def _come_back(self) -> None:
        """To the rows that others held."""
        pauses = _pauses()
        while self._held and self._room() and pauses.pause(COME_BACK_SECONDS):
            before = self._changed
            held, self._held = self._held, []
            self._write_all(held)
            if self._changed > before:
                pauses = _pauses()


def _pauses() -> Pauses:
    return Pauses(0.05, 1.0)
