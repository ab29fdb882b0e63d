"""One write to many rows while workers run: operations.py and pruning.py have the verbs.

The rows are found without locks. Each portion is then locked by primary key, checked again, written and committed. So a
worker waits only for one portion, and an interrupted write keeps its finished portions. A single UPDATE would hold all
rows that it reads until its end: workers would wait or deadlock.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from ...errors import InvalidTask, SettingError
from ...model.selection import Selection, check_selection
from ...model.task import Status
from ..database import Database
from ..free_rows import work_free
from ..records import earliest
from ..retrying import Pauses, rest_after
from ..words import MAX_IDS_PER_STATEMENT, in_portions, marks

MAX_IDS_PER_LOOK = 10_000
HELD_SECONDS = 5.0
"""How long held rows are retried."""

Condition = tuple[str, Sequence[Any]]
"""A condition in SQL, and its values."""
OnWritten = Callable[[Sequence[int]], object]
"""Called with the ids of each written portion."""


class Verb(NamedTuple):
    """A write to many rows."""

    name: str
    done: str
    """What it did to a row: a participle."""
    applies_to: str
    """Its rows, in words."""
    statuses: Sequence[Status]
    """The rows' statuses; empty for the archive."""
    write: str
    """The statement, without its WHERE."""
    values: Sequence[Any] = ()
    """The statement's values."""
    only: str = "1 = 1"
    """A further condition of the rows."""
    then: Callable[[Database, Sequence[int]], object] | None = None
    """Further writes for written rows, by id, in the same transaction."""
    needs_decision: bool = False
    """Whether written rows may now be waiting for other tasks: a look must decide about them."""
    undone: str = ""
    """The condition of rows that are not written yet, with marks for `values`, so that no row is found twice."""
    table: str = "{table}"
    key: str = "id"
    hint: str = "{by_status}"
    """The hint for the index that finds the rows."""

    @property
    def condition(self) -> str:
        """Its rows in SQL, with `{status}` for the index's form of the status."""
        numbers = ", ".join(f"{status:d}" for status in self.statuses)
        return f"{{status}} IN ({numbers}) AND {self.only}" if numbers else self.only


class Written(NamedTuple):
    """The outcome of a write to many rows."""

    changed: int
    held: Sequence[int]
    """The ids of held rows, which were not written."""


class ManyRows:
    """The chosen rows to which a verb applies. Raises DatabaseError."""

    def __init__(
        self,
        database: Database,
        verb: Verb,
        chosen: Condition,
        on_written: OnWritten = lambda ids: None,
        before: OnWritten | None = None,
        portion: int | None = None,
    ) -> None:
        """`before` is called with the ids of at most `portion` locked rows before they are written."""
        self._database = database
        self._verb = verb
        self._on_written = on_written
        self._before = before
        self._portion = portion
        condition, self._chosen = chosen
        self._condition = f"{verb.condition} AND {condition}"
        where = f"WHERE {verb.key} IN ({{ids}}) AND {self._condition}"
        self._select_by_key = f"SELECT {verb.key} FROM {verb.table} {{by_key}} {where}"
        self._write_by_key = f"{verb.write} {where}"

    # ---- look, without locks

    def count(self) -> int:
        found: int = self._look("COUNT(*)")[0][0]
        return found

    def look(self, most: int, in_order: bool = True) -> list[int]:
        """The keys of `most` rows."""
        key = self._verb.key
        end = f"ORDER BY {key} LIMIT ?" if in_order else "LIMIT ?"
        return [row[0] for row in self._look(key, end, (most,))]

    def _look(self, what: str, end: str = "", values: Sequence[Any] = ()) -> Sequence[Sequence[Any]]:
        verb = self._verb
        # A look uses the index of status and group, a write the key.
        condition = self._condition.replace("{status}", "{group_status}")
        undone, its_values = (f"AND {verb.undone}", verb.values) if verb.undone else ("", ())
        sql = f"SELECT {what} FROM {verb.table} {verb.hint} WHERE {condition} {undone} {end}"
        with self._database.without_timeout():
            return self._database.fetch(sql, (*self._chosen, *its_values, *values))

    def look_among(self, ids: Iterable[int]) -> list[int]:
        """The keys among `ids`, in order."""
        found = self._database.fetch_ids(self._select_by_key, sorted(set(ids)), self._chosen)
        return sorted(row[0] for row in found)

    # ---- write, a portion a transaction

    def write(
        self, ids: Iterable[int] | None = None, limit: int | None = None, held_seconds: float = HELD_SECONDS
    ) -> Written:
        """Write to the rows: those among `ids`, the first `limit` by key, or all.

        Held rows are retried for `held_seconds`. An interrupted write keeps its finished portions.
        """
        if ids is not None:
            changed, left = self._write(self.look_among(ids)[:limit])
        elif limit is not None:
            changed, left = self._write(self.look(limit))
        else:
            changed, left = self._write_all()
        pauses = Pauses(0.05, 1.0)
        while (left := self.look_among(left)) and pauses.pause(held_seconds):
            more, left = self._write(left)
            changed += more
        return Written(changed, left)

    def _write_all(self) -> Written:
        changed = 0
        while True:
            found = self.look(MAX_IDS_PER_LOOK, in_order=False)
            more, left = self._write(sorted(found))
            changed += more
            if len(found) < MAX_IDS_PER_LOOK or not more:
                return Written(changed, left)

    def _write(self, ids: Sequence[int]) -> Written:
        """Write to the free rows."""
        database, left = self._database, set(ids)
        for portion in in_portions(ids, self._portion or MAX_IDS_PER_STATEMENT):
            began_at = time.monotonic()
            freed = work_free(
                database, portion, self._write_locked, self._select_by_key, self._chosen, database.conflict_seconds
            )
            if freed.ids:
                left.difference_update(freed.ids)
                self._on_written(sorted(freed.ids))
            if database.dialect.has_one_writer:
                rest_after(began_at)
        return Written(len(ids) - len(left), sorted(left))

    def _write_locked(self, ids: Sequence[int]) -> int:
        if self._before is not None:
            self._before(ids)
        # The condition again: with statement-based replication, the first write may restart the transaction without its
        # locks.
        self._database.write_ids(self._write_by_key, ids, self._verb.values, self._chosen)
        if self._verb.then is not None:
            self._verb.then(self._database, ids)
        return len(ids)


def chosen_by(selection: Selection) -> Condition:
    """The condition of the chosen rows. Raises InvalidTask."""
    check_selection(selection)
    found: list[Condition] = [("1 = 1", ())]
    if selection.groups is not None:
        found.append(
            (f"group_id IN ({marks(len(selection.groups))})" if selection.groups else "1 = 0", selection.groups)
        )
    if selection.task is not None:
        found.append(("task = ?", [selection.task]))
    if selection.error is not None:
        found.append(("{error_position} = 1", [selection.error]))  # LIKE of SQLite ignores case
    if (line := selection.error_line) is not None:
        found.append(("({error_bytes} = ? OR {error_position} = 1)", [line, f"{line}\n"]))
    if selection.status is not None:
        found.append(("{status} = ?", [int(selection.status)]))  # a driver may write the name of a Status
    if selection.since is not None:
        try:
            instant, value = earliest(selection.since)
        except SettingError as error:
            raise InvalidTask(str(error)) from None
        found.append((f"COALESCE(finished_at, updated_at) >= {instant}", [value]))
    return " AND ".join(sql for sql, _ in found), [value for _, values in found for value in values]
