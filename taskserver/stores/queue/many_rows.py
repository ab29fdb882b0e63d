"""One write to many rows, beside running workers: operations.py and pruning.py choose the rows.

The rows are looked for without locks. Each portion of them is then locked by primary key, checked again, written and
committed. So a worker waits no longer than one portion takes, and an interrupted write keeps its finished portions. One
UPDATE of all rows would lock each row that it reads until its end: workers would stand still, or deadlock with it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from ..database import MAX_IDS_PER_STATEMENT, Database
from ..free_rows import work_free
from ..retrying import Pauses, rest_after
from ..words import with_ids

MAX_IDS_PER_LOOK = 10_000
HELD_SECONDS = 5.0
"""Rows that others hold are tried again for so long."""

Then = Callable[[Database, Sequence[int]], object]
"""Further writes for the ids of written rows, in the same transaction."""
OnWritten = Callable[[Sequence[int]], object]
"""Called with the ids of each written portion."""


class Written(NamedTuple):
    """The outcome of a write to many rows."""

    changed: int
    held: Sequence[int]
    """The ids of rows that were left, as others held them."""


class ChosenRows(NamedTuple):
    """A write to many rows: their condition, and the statement."""

    condition: str
    """With `{status}` for the status by which an index has the rows."""
    values: Sequence[Any]
    write: str
    """The statement, without its WHERE."""
    write_values: Sequence[Any] = ()
    then: Then | None = None
    undone: str = ""
    """As in Verb."""
    table: str = "{table}"
    key: str = "id"
    hint: str = "{by_status}"
    """The hint for the index by which the rows are looked for."""


class ManyRows:
    """Rows of one condition, and a write to them. Raises DatabaseError."""

    def __init__(self, database: Database, chosen: ChosenRows, on_written: OnWritten = lambda ids: None) -> None:
        self._database = database
        self._chosen = chosen
        self._on_written = on_written
        self._changed = 0

    # ---- look, without locks

    def count(self) -> int:
        """How many rows there are."""
        found: int = self._look("SELECT COUNT(*)")[0][0]
        return found

    def look(self, most: int, order: str = "ORDER BY {key}") -> list[int]:
        """The keys of `most` rows."""
        return [row[0] for row in self._look("SELECT {key}", f"{order} LIMIT ?", (most,))]

    def _look(self, select: str, end: str = "", values: Sequence[Any] = ()) -> Sequence[Sequence[Any]]:
        chosen = self._chosen
        # A look reads the index of status and group; a write goes by key.
        condition = f"({chosen.condition.replace('{status}', '{group_status}')})"
        if chosen.undone:
            condition += f" AND {chosen.undone}"
        sql = f"{select} FROM {chosen.table} {chosen.hint} WHERE {condition} {end}".replace("{key}", chosen.key)
        undone = chosen.write_values if chosen.undone else ()
        with self._database.unhurried():
            return self._database.fetch(sql, (*chosen.values, *undone, *values))

    def look_among(self, ids: Iterable[int]) -> list[int]:
        """The keys among `ids`, in order."""
        found = self._database.fetch_ids(self._select_by_key(), sorted(set(ids)), self._chosen.values)
        return sorted(row[0] for row in found)

    def _select_by_key(self) -> str:
        chosen = self._chosen
        return f"SELECT {chosen.key} FROM {chosen.table} {{by_key}} {self._where_of_ids()}"

    def _where_of_ids(self) -> str:
        return f"WHERE {self._chosen.key} IN ({{ids}}) AND ({self._chosen.condition})"

    # ---- write, a portion a transaction

    def write(self, ids: Iterable[int] | None = None, limit: int | None = None) -> Written:
        """Write to the rows: to those of `ids`, to the first `limit` in order of their keys, or to all.

        An interrupted write keeps the portions that it wrote.
        """
        if ids is not None:
            left = self._write(self.look_among(ids)[:limit])
        elif limit is not None:
            left = self._write(self.look(limit))
        else:
            left = self._write_all()
        pauses = Pauses(0.05, 1.0)
        while (left := self.look_among(left)) and pauses.pause(HELD_SECONDS):
            left = self._write(left)
        return Written(self._changed, left)

    def _write_all(self) -> list[int]:
        """Write to all rows, whatever their order; the keys of rows that were left."""
        while True:
            found = self.look(MAX_IDS_PER_LOOK, order="")
            left = self._write(sorted(found))
            if len(found) < MAX_IDS_PER_LOOK or len(left) == len(found):
                return left

    def _write(self, ids: Sequence[int]) -> list[int]:
        """Write to the rows that nobody holds; the keys of the others."""
        left = set(ids)
        for first in range(0, len(ids), MAX_IDS_PER_STATEMENT):
            began_at = time.monotonic()
            portion = ids[first : first + MAX_IDS_PER_STATEMENT]
            seconds = self._database.conflict_seconds
            select, values = self._select_by_key(), self._chosen.values
            written = sorted(work_free(self._database, portion, self._write_locked, select, values, seconds).ids)
            left.difference_update(written)
            self._changed += len(written)
            if written:
                self._on_written(written)
            if self._database.dialect.has_one_writer:
                rest_after(began_at)
        return sorted(left)

    def _write_locked(self, ids: Sequence[int]) -> int:
        chosen = self._chosen
        # The condition once more: on servers with statement-based replication the first write may begin the transaction
        # again, and so without the locks.
        write = with_ids(f"{chosen.write} {self._where_of_ids()}", ids)
        self._database.write(write, (*chosen.write_values, *ids, *chosen.values))
        if chosen.then is not None:
            chosen.then(self._database, ids)
        return len(ids)
