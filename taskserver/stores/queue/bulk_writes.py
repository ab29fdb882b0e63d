"""One write to many rows that an operator chose, beside running workers.

The ids are looked for without locks, many at a time. Each portion of them is then locked by primary key, checked
again, written and committed. Rows that others hold are passed over, and tried again later. So a worker waits no longer
than one portion takes, an interrupted write keeps its finished portions, and no row is written twice.

A single UPDATE of all rows would lock every row that it reads, in the order of some index, until its end. Meanwhile
workers would stand still, or deadlock with it; and a database that goes away would undo everything.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from ..database import MAX_IDS_PER_STATEMENT
from ..free_rows import work_free
from ..retrying import Pauses, rest_after
from ..words import with_ids
from .store import Store

MAX_IDS_PER_LOOK = 50_000
"""No index has the rows of some statuses in order of id, so each look reads all of them: the looks must be few."""
COME_BACK_SECONDS = 5.0
"""Rows that others hold are tried again until so long after the last progress."""

OnWritten = Callable[[Sequence[int]], object]
"""Called with the ids of each written portion."""


class BulkWrite(NamedTuple):
    """A write to many rows: the rows' condition, and the statement."""

    condition: str
    """The condition that the rows meet, with `{status}` for the status by which an index has them."""
    values: Sequence[Any]
    """The values for the condition's marks."""
    write: str
    """The statement, without its WHERE."""
    write_values: Sequence[Any] = ()
    """The values for the statement's marks."""
    table: str = "{table}"
    key: str = "id"
    """The table's primary key."""
    then: str = ""
    """Another statement with `{ids}` alone, in the same transaction."""
    relate: Callable[[Sequence[int]], object] | None = None
    """Writes to rows that depend on the written ones, given their ids; in the same transaction."""
    hint: str = "{by_status}"
    """The hint for the index by which the rows are looked for."""

    @property
    def looked_for(self) -> str:
        """The condition in a look, which goes by the index of status and group; a write goes by key."""
        return self.condition.replace("{status}", "{group_status}")


class Written(NamedTuple):
    """The outcome of a bulk write."""

    changed: int
    held: Sequence[int] = ()
    """The ids of rows that others held all the time; they are unchanged."""


class BulkWriter:
    """One bulk write, and its progress."""

    def __init__(self, store: Store, bulk_write: BulkWrite, on_written: OnWritten = lambda ids: None) -> None:
        self._store = store
        self._database = store.database
        self._bulk_write = bulk_write
        self._on_written = on_written
        self._changed = 0
        self._limit: int | None = None
        self._held: list[int] = []

    def run(self, ids: Sequence[int] | None = None, limit: int | None = None) -> Written:
        """Write to the chosen rows, or to the chosen ones of `ids`; to `limit` rows at most, in order of id.

        Raises DatabaseError; the portions that were written stay written.
        """
        self._limit = limit
        for found in self._found(ids):
            self._write_all(found)
        self._come_back()
        return Written(self._changed, self._held if self._room_left() else ())

    # ---- look, without locks

    def _found(self, ids: Sequence[int] | None) -> Iterator[list[int]]:
        """The ids of the chosen rows, of one look at a time."""
        if ids is not None:
            yield sorted(set(ids))
            return
        last = None
        while self._room_left() and (found := self.look(last, MAX_IDS_PER_LOOK)):
            yield found
            if len(found) < MAX_IDS_PER_LOOK:
                return
            last = found[-1]

    def look(self, last: int | None, most: int) -> list[int]:
        """The ids of chosen rows above `last`, in order; `most` at most. None: of all, as SQLite has ids below 0."""
        bulk = self._bulk_write
        above = "" if last is None else f" AND {bulk.key} > ?"
        values = (*bulk.values, most) if last is None else (*bulk.values, last, most)
        sql = (
            f"SELECT {bulk.key} FROM {bulk.table} {bulk.hint} "
            f"WHERE ({bulk.looked_for}){above} ORDER BY {bulk.key} LIMIT ?"
        )
        with self._database.unhurried():
            return [row[0] for row in self._database.fetch(sql, values)]

    def count(self) -> int:
        """How many rows are chosen."""
        bulk = self._bulk_write
        sql = f"SELECT COUNT(*) FROM {bulk.table} {bulk.hint} WHERE {bulk.looked_for}"
        with self._database.unhurried():
            found: int = self._database.fetch_value(sql, self._bulk_write.values)
        return found

    def look_among(self, ids: Sequence[int]) -> list[int]:
        """The chosen rows among `ids`, in order."""
        sql = f"SELECT {self._bulk_write.key} FROM {self._bulk_write.table} {{by_key}} {self._where_of_ids()}"
        return sorted(row[0] for row in self._database.fetch_ids(sql, ids, self._bulk_write.values))

    def _where_of_ids(self) -> str:
        return f"WHERE {self._bulk_write.key} IN ({{ids}}) AND ({self._bulk_write.condition})"

    # ---- write, a portion a transaction

    def _room_left(self) -> int:
        """How many rows the next portion may have."""
        return MAX_IDS_PER_STATEMENT if self._limit is None else min(self._limit - self._changed, MAX_IDS_PER_STATEMENT)

    def _write_all(self, ids: Sequence[int]) -> None:
        done = 0
        while done < len(ids) and (room := self._room_left()):
            portion = ids[done : done + room]
            done += len(portion)
            began_at = time.monotonic()
            self._write_portion(portion)
            if self._store.has_one_writer:
                rest_after(began_at)

    def _write_portion(self, ids: Sequence[int]) -> None:
        """Write to the rows of `ids` that nobody holds; note the held rows. Raises Conflict (one writer)."""
        bulk = self._bulk_write
        select = f"SELECT {bulk.key} FROM {bulk.table} {{by_key}} {self._where_of_ids()}"
        seconds = self._database.conflict_seconds
        written = sorted(work_free(self._database, ids, self._write_locked, select, bulk.values, seconds).ids)
        self._changed += len(written)
        if len(written) < len(ids):
            # A row that still meets the condition was held.
            self._held += self.look_among(sorted(set(ids).difference(written)))
        if written:
            self._on_written(written)

    def _write_locked(self, ids: Sequence[int]) -> int:
        bulk = self._bulk_write
        # The condition once more: on servers with statement-based replication the first write may begin the transaction
        # anew, and so without the locks.
        write = with_ids(f"{bulk.write} {self._where_of_ids()}", ids)
        self._database.write(write, (*bulk.write_values, *ids, *bulk.values))
        if bulk.then:
            self._database.write_ids(bulk.then, ids)
        if bulk.relate:
            bulk.relate(ids)
        return len(ids)

    def _come_back(self) -> None:
        """Try again the rows that others held."""
        pauses = _pauses()
        while self._held and self._room_left() and pauses.pause(COME_BACK_SECONDS):
            before = self._changed
            held, self._held = self._held, []
            self._write_all(held)
            if self._changed > before:
                pauses = _pauses()


def _pauses() -> Pauses:
    return Pauses(0.05, 1.0)
