"""How old rows are deleted, a portion a transaction: finished ones of the queue, those of the archive, and figures.

What is old is told by the instant at which a task ended, and by the database's clock. Tasks go by sweep.py.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import timedelta
from typing import NamedTuple

from ..errors import InvalidTask
from .store import Store
from .sweep import Sweep, Target

LONGEST_DAYS = 36_500
"""The calendars of databases begin somewhere."""


def seconds_of(older_than: float | timedelta) -> float:
    """Raises InvalidTask."""
    seconds = older_than.total_seconds() if isinstance(older_than, timedelta) else older_than
    if type(seconds) not in (int, float) or not 0 <= seconds <= LONGEST_DAYS * 86_400:
        raise InvalidTask(
            f"older_than is {older_than!r:.80}; allowed: seconds or a timedelta, from 0 to {LONGEST_DAYS} days"
        )
    return float(seconds)


class _Kind(NamedTuple):
    """Rows that can be pruned."""

    which: str
    delete: str
    table: str
    key: str
    hint: str
    has_keys: bool
    """Whether a unique_key in them keeps others from being added."""
    then: str = ""


# A mark that a row is finished may stand without its instant, where a person set it by hand.
OLD = "COALESCE(finished_at, updated_at) < {after}"
TOLD = "due_at IS NULL"
"""Not before those that wait for it know its end (dependencies.py)."""
FORGET = "DELETE FROM {dependencies} WHERE child_id IN ({ids})"
HOLDS_KEY = "unique_key IS NOT NULL"

_KINDS = {
    # The old ones come first in order of id, and are most of what stands there.
    "done": _Kind(f"status = 2 AND {TOLD}", "{delete_task}", "{table}", "id", "{by_key}", True),
    "fatal": _Kind(f"status = 4 AND {TOLD}", "{delete_task}", "{table}", "id", "{by_status}", True, FORGET),
    "archived": _Kind("status >= 0", "{delete_archived}", "{done}", "done_id", "{by_key}", False),
}
KINDS = (*_KINDS, "stats")
"""What can be named: tasks that are done, fatal, or in the archive; and figures."""
COMPLETED = ("done", "archived")
"""What is meant where nothing is named: nobody has to look at these any more."""


class Pruned(NamedTuple):
    """How many rows were deleted, or would be."""

    done: int = 0
    fatal: int = 0
    archived: int = 0
    stats: int = 0
    spared: int = 0
    """Old ones of the queue that were left, since they hold a unique_key."""
    held: int = 0
    """Those that others held all the time: left, too."""

    @property
    def deleted(self) -> int:
        return self.done + self.fatal + self.archived + self.stats


class Pruning:
    """Deletes rows of some kinds that are older than so many seconds."""

    def __init__(self, store: Store, older_than: float | timedelta, kinds: Collection[str], keys: bool) -> None:
        """With `keys` those rows of the queue, too, that hold a unique_key. Raises InvalidTask."""
        self._store = store
        self._seconds = seconds_of(older_than)
        self.kinds = [kind for kind in KINDS if kind in (kinds or COMPLETED)]
        self._keys = keys

    # ---- how many there are

    COUNT_HOURS = "SELECT COUNT(*) FROM {stats} WHERE hour < {after}"

    def count(self) -> Pruned:
        """What `run` would do."""
        counts = {kind: self._sweep(kind).count() for kind in self.kinds if kind != "stats"}
        if "stats" in self.kinds:
            counts["stats"] = self._store._alone(self._store._all, self.COUNT_HOURS, (-self._seconds,))[0][0]
        return Pruned(**counts, spared=self._spared())

    def _spared(self) -> int:
        kinds = [] if self._keys else [kind for kind in self.kinds if kind in _KINDS and _KINDS[kind].has_keys]
        return sum(Sweep(self._store, self._target(kind, HOLDS_KEY)).count() for kind in kinds)

    # ---- deleted: done, fatal, archived → gone

    def run(self, progress: Callable[[int], object] = lambda deleted: None) -> Pruned:
        """Delete them. May be broken off at any time: what was deleted is, and the rest is found by the next one.

        `progress` hears after each portion how many are gone.
        """
        spared = self._spared()
        deleted = 0

        def tell(more: int) -> None:
            nonlocal deleted
            deleted += more
            progress(deleted)

        swept = {kind: self._sweep(kind, tell).run() for kind in self.kinds if kind != "stats"}
        counts = {kind: one.changed for kind, one in swept.items()}
        if "stats" in self.kinds:
            counts["stats"] = self._delete_hours(tell)
        return Pruned(**counts, spared=spared, held=sum(len(one.held) for one in swept.values()))

    def _sweep(self, kind: str, tell: Callable[[int], object] = lambda more: None) -> Sweep:
        spares = _KINDS[kind].has_keys and not self._keys
        target = self._target(kind, "unique_key IS NULL" if spares else "")
        return Sweep(self._store, target, lambda ids: tell(len(ids)))

    def _target(self, kind: str, more: str = "") -> Target:
        rows = _KINDS[kind]
        which = " AND ".join(filter(None, [rows.which, OLD, more]))
        return Target(which, (-self._seconds,), rows.delete, (), rows.table, rows.key, rows.then, rows.hint)

    # ---- figures: an hour a statement, as that is what their key begins with

    OLDEST_HOUR = "SELECT MIN(hour) FROM {stats} WHERE hour < {after}"
    DELETE_HOUR = "DELETE FROM {stats} WHERE hour = ?"

    def _delete_hours(self, tell: Callable[[int], object]) -> int:
        store, deleted = self._store, 0
        while (hour := store._alone(store._all, self.OLDEST_HOUR, (-self._seconds,))[0][0]) is not None:
            gone = store._alone(store._write, self.DELETE_HOUR, (hour,))
            deleted += gone
            tell(gone)
        return deleted
