"""Deletes old rows, a portion a transaction: finished tasks, archived tasks, and stats.

A task's age counts from its end, by the database's clock.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from typing import NamedTuple

from ...messages.text import Duration
from ...model.checks import check_duration, check_kind
from ...model.task import Status
from ...settings.table import MAX_DAYS
from .many_rows import ManyRows, Verb
from .operations import DELETE
from .store import Store

PORTION = 1000
"""Rows at which one run looks."""

# A person who sets the status by hand may leave finished_at empty.
OLD = "COALESCE(finished_at, updated_at) < {after}"
_KINDS = {
    # By key, as the old rows come first in order of id, and are most of the table.
    "done": Verb("prune", "deleted", "done", (Status.DONE,), "{delete_task}", hint="{by_key}"),
    "fatal": DELETE._replace(statuses=(Status.FATAL,)),
    "cancelled": DELETE._replace(statuses=(Status.CANCELLED,)),
    "archived": Verb(
        "prune", "deleted", "archived", (), "{delete_archived}", table="{done}", key="done_id", hint="{by_key}"
    ),
}
YOUNG, HOLDS_KEY, PRUNABLE = range(3)
OLDEST = {
    # Done rows have no due_at, so that they stand in this index in order of id.
    "done": f"""
        SELECT id, CASE WHEN unique_key IS NOT NULL THEN {HOLDS_KEY} WHEN {OLD} THEN {PRUNABLE} ELSE {YOUNG} END
        FROM {{table}} {{by_due}} WHERE {{due_status}} = 2 AND due_at IS NULL AND id > ?
        ORDER BY {{undated_order_up}} id LIMIT ?
    """,
    "archived": f"""
        SELECT done_id, CASE WHEN {OLD} THEN {PRUNABLE} ELSE {YOUNG} END
        FROM {{done}} {{by_key}} WHERE done_id > ? ORDER BY done_id LIMIT ?
    """,
}
NEWEST = "SELECT MAX(id) FROM {table}"
KINDS = (*_KINDS, "stats")
"""The kinds that can be named: tasks that are done, fatal, cancelled or archived, and stats."""
COMPLETED = ("done", "archived")
"""The kinds that are meant if none is named: nobody has to look at these rows any more."""


class Pruned(NamedTuple):
    """How many rows of each kind were deleted, or would be."""

    done: int = 0
    fatal: int = 0
    cancelled: int = 0
    archived: int = 0
    stats: int = 0
    held: int = 0
    """Old rows that were left, since others held them all the time."""

    @property
    def deleted(self) -> int:
        return self.done + self.fatal + self.cancelled + self.archived + self.stats


class Pruning:
    """Deletes old rows of some kinds. Raises DatabaseError."""

    def __init__(self, store: Store, older_than: Duration, kinds: Collection[str], keys: bool) -> None:
        """`older_than` is an age, a duration. With `keys`, rows that hold a unique_key are deleted, too.

        Raises InvalidTask.
        """
        self._database = store.database
        self._ago = (-check_duration("older_than", older_than, MAX_DAYS),)
        self.kinds = [kind for kind in KINDS if kind in (kinds or COMPLETED)]
        self._keys = keys

    COUNT_HOURS = "SELECT COUNT(*) FROM {stats} WHERE hour < {after}"

    def count(self) -> Pruned:
        """How many rows `run` would delete."""
        counts = {kind: self._rows(kind).count() for kind in self.kinds if kind != "stats"}
        if "stats" in self.kinds:
            counts["stats"] = self._database.fetch_value(self.COUNT_HOURS, self._ago)
        return Pruned(**counts)

    def run(self) -> Pruned:
        """Done, fatal, cancelled, archived → gone for old rows.

        An interrupted run keeps its deletions; the next run finds the rest.
        """
        held, counts = 0, {}
        for kind in self.kinds:
            if kind == "stats":
                counts[kind] = self._delete_hours()
            else:
                written = self._rows(kind).write()
                counts[kind] = written.changed
                held += len(written.held)
        return Pruned(**counts, held=held)

    def run_portion(self, kind: str) -> int:
        """Done → gone for old ones among the first rows of an index: it costs the same however many stay."""

        def look(after: int) -> Sequence[Sequence[int]]:
            return self._database.fetch(OLDEST[kind], (*self._ago, after, PORTION))

        found = [*look(0)]
        if len(found) == PORTION and sum(state == HOLDS_KEY for _, state in found) > PORTION // 2:
            # These stay, whatever their age, and would hide the rows behind them from every run.
            last = found[-1][0]  # another run may have deleted it, and all behind it
            found += look(random.randint(last, max(last, self._database.fetch_value(NEWEST) or 0)))
        ids = [key for key, state in found if state == PRUNABLE][:PORTION]
        return self._rows(kind).write(ids, held_seconds=0).changed if ids else 0

    def _rows(self, kind: str) -> ManyRows:
        # The archive keeps no key from being used again.
        spares = not self._keys and kind != "archived"
        old = f"{OLD} AND unique_key IS NULL" if spares else OLD
        return ManyRows(self._database, _KINDS[kind], (old, self._ago))

    # An hour a statement, as the key of stats begins with the hour.
    OLDEST_HOUR = "SELECT {hour_text} FROM {stats} WHERE hour < {after} ORDER BY hour LIMIT 1"
    DELETE_HOUR = "DELETE FROM {stats} WHERE hour = {instant}"

    def _delete_hours(self) -> int:
        deleted = 0
        while (hour := self._database.fetch_value(self.OLDEST_HOUR, self._ago)) is not None:
            deleted += self._database.change(self.DELETE_HOUR, (hour,))
        return deleted


def prune(store: Store, older_than: Duration, keys: bool, *of_kinds: bool) -> Pruned:
    """Delete old rows of the KINDS that are true, as Pruning does. Raises SettingError, InvalidTask, DatabaseError."""
    kinds = dict(zip(KINDS, of_kinds, strict=True))
    for name, flag in (*kinds.items(), ("keys", keys)):
        check_kind(name, flag, bool, "True or False")
    return Pruning(store, older_than, [kind for kind, flag in kinds.items() if flag], keys).run()


def prune_portion(store: Store, keep_seconds: int) -> int:
    """Done → gone for the oldest of the rows that the queue's mode keeps, if they are so old; how many of a portion.

    Raises DatabaseError.
    """
    kind = {"mark": "done", "move": "archived"}.get(store.mode)
    return Pruning(store, keep_seconds, [kind], keys=False).run_portion(kind) if kind else 0
