"""Deletes old rows in portions: finished tasks, archived tasks, and stats; writes them to a file before.

A task's age counts from its end, by the database's clock.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from contextlib import closing, nullcontext
from pathlib import Path
from types import NoneType
from typing import NamedTuple

from ...host.files import JsonLines
from ...messages.text import Duration, utc
from ...model.checks import check_duration, check_kind
from ...model.task import Status
from ...settings.table import MAX_DAYS
from ..words import with_ids
from .many_rows import ManyRows, Verb
from .operations import DELETE
from .stats import COLUMNS, KEY
from .store import Store

PORTION = 1000
"""Rows that one run checks."""
WRITTEN_AT_ONCE = 100
"""Rows of a portion that is written to a file: each may have arguments of a megabyte."""

# A person who changes the status may leave finished_at empty.
OLD = "COALESCE(finished_at, updated_at) < {after}"
_KINDS = {
    # By key: the old rows have the first ids and are most of the table.
    "done": Verb("prune", "deleted", "done", (Status.DONE,), "{delete_task}", hint="{by_key}"),
    "fatal": DELETE._replace(statuses=(Status.FATAL,)),
    "cancelled": DELETE._replace(statuses=(Status.CANCELLED,)),
    "archived": Verb(
        "prune", "deleted", "archived", (), "{delete_archived}", table="{done}", key="done_id", hint="{by_key}"
    ),
}
YOUNG, HOLDS_KEY, PRUNABLE = range(3)
OLDEST = {
    # Done rows have no due_at, so this index has them in order of id.
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
"""Tasks that are done, fatal, cancelled or archived, and stats."""
COMPLETED = ("done", "archived")
"""The default kinds, which need nobody's attention."""


class Pruned(NamedTuple):
    """How many rows of each kind were or would be deleted."""

    done: int = 0
    fatal: int = 0
    cancelled: int = 0
    archived: int = 0
    stats: int = 0
    held: int = 0
    """Old rows that were held, and so not deleted."""

    @property
    def deleted(self) -> int:
        return self.done + self.fatal + self.cancelled + self.archived + self.stats


class Pruning:
    """Deletes old rows of some kinds. Raises DatabaseError."""

    def __init__(
        self,
        store: Store,
        older_than: Duration,
        kinds: Collection[str],
        keys: bool,
        archive_to: Path | None = None,
    ) -> None:
        """With `keys`, rows that have a unique_key are deleted too. Raises InvalidTask.

        `run` adds each row to the file `archive_to` before it deletes the row. After a crash in between, the next run
        adds the row again.
        """
        self._database = store.database
        self._ago = (-check_duration("older_than", older_than, MAX_DAYS),)
        self.kinds = [kind for kind in KINDS if kind in (kinds or COMPLETED)]
        self._keys = keys
        self._archive_to = archive_to
        self._archive: JsonLines | None = None

    COUNT_HOURS = "SELECT COUNT(*) FROM {stats} WHERE hour < {after}"

    def count(self) -> Pruned:
        """How many rows `run` would delete."""
        counts = {kind: self._rows(kind).count() for kind in self.kinds if kind != "stats"}
        if "stats" in self.kinds:
            counts["stats"] = self._database.fetch_value(self.COUNT_HOURS, self._ago)
        return Pruned(**counts)

    def run(self) -> Pruned:
        """Done, fatal, cancelled, archived → gone for old rows.

        An interrupted run keeps its deletions; the next run finds the rest. Raises SettingError or HostLimit if the
        file cannot be written; the rows that are not in it stay.
        """
        with nullcontext() if self._archive_to is None else closing(JsonLines(self._archive_to)) as self._archive:
            return self._run()

    def _run(self) -> Pruned:
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
        """Done → gone for old rows among the first of an index: a large table costs no more than a small one."""

        def look(after: int) -> Sequence[Sequence[int]]:
            return self._database.fetch(OLDEST[kind], (*self._ago, after, PORTION))

        found = [*look(0)]
        if len(found) == PORTION and sum(state == HOLDS_KEY for _, state in found) > PORTION // 2:
            # Rows with a key stay, and would hide the rows after them from every run.
            last = found[-1][0]  # another run may have deleted it and all rows after it
            found += look(random.randint(last, max(last, self._database.fetch_value(NEWEST) or 0)))
        ids = [key for key, state in found if state == PRUNABLE][:PORTION]
        return self._rows(kind).write(ids, held_seconds=0).changed if ids else 0

    def _rows(self, kind: str) -> ManyRows:
        # Keys in the archive are not unique and may be deleted.
        keeps_keys = not self._keys and kind != "archived"
        old = f"{OLD} AND unique_key IS NULL" if keeps_keys else OLD
        verb, archive = _KINDS[kind], self._archive
        if archive is None:
            return ManyRows(self._database, verb, (old, self._ago))
        from ..records import task_row  # a run does not write files

        read = f"SELECT {{readable}}, {kind == 'archived':d} FROM {verb.table} WHERE {verb.key} IN ({{ids}})"

        def write_to_file(ids: Sequence[int]) -> None:
            archive.add(task_row(row).as_dict() for row in self._database.rows(with_ids(read, ids), ids))

        return ManyRows(self._database, verb, (old, self._ago), before=write_to_file, portion=WRITTEN_AT_ONCE)

    # One statement for each hour: the key of stats begins with the hour.
    OLDEST_HOUR = "SELECT {hour_text} FROM {stats} WHERE hour < {after} ORDER BY hour LIMIT 1"
    HOUR = f"SELECT {{hour_text}}, {', '.join((*KEY[1:], *COLUMNS))} FROM {{stats}} WHERE hour = {{instant}}"
    DELETE_HOUR = "DELETE FROM {stats} WHERE hour = {instant}"

    def _delete_hours(self) -> int:
        deleted = 0
        while (hour := self._database.fetch_value(self.OLDEST_HOUR, self._ago)) is not None:
            if self._archive is not None:
                rows = self._database.fetch(self.HOUR, (hour,))
                names = (*KEY, *COLUMNS)
                self._archive.add(dict(zip(names, (utc(row[0]), *row[1:]), strict=True)) for row in rows)
            deleted += self._database.change(self.DELETE_HOUR, (hour,))
        return deleted


def prune(store: Store, older_than: Duration, keys: bool, archive_to: str | Path | None, *of_kinds: bool) -> Pruned:
    """Delete old rows of the KINDS that are true. Raises SettingError, InvalidTask, DatabaseError."""
    kinds = dict(zip(KINDS, of_kinds, strict=True))
    for name, flag in (*kinds.items(), ("keys", keys)):
        check_kind(name, flag, bool, "True or False")
    check_kind("archive_to", archive_to, (str, Path, NoneType), "the path of a file, or None")
    file = None if archive_to is None else Path(archive_to)
    return Pruning(store, older_than, [kind for kind, flag in kinds.items() if flag], keys, file).run()


def prune_portion(store: Store, keep_seconds: int) -> int:
    """Done → gone for a portion of the old rows that the queue's mode keeps; how many. Raises DatabaseError."""
    kind = {"mark": "done", "move": "archived"}.get(store.mode)
    return Pruning(store, keep_seconds, [kind], keys=False).run_portion(kind) if kind else 0
