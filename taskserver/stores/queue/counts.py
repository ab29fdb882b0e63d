"""How many rows a queue has, by group, status and name, and how old the new ones are: bounded, however many there are.

A count of every row takes as long as the rows are many, and a page that shows it is loaded again and again. So each of
these statements reads so many entries of an index at most, and what was not counted to its end says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ...model.results import as_texts
from ...model.task import Status
from ..database import Database, Row
from ..records import QueueCount
from ..statements import marks

MAX_COUNTED = 100_000
"""Rows that one look counts, all groups and statuses together."""
FIRST_SHARE = 4
"""The first look takes this part of MAX_COUNTED, the same for each group and status; the second has what is left."""
MAX_GROUPS = 1000
"""Groups of a status; rows of further ones are not counted."""
MAX_STRANGE = 5
"""Numbers that are no status, which rows may hold all the same."""
PAIRS_PER_STATEMENT = 50
SAMPLE = 1000
"""Rows of a status whose names are read."""
HEADS = 20
"""Rows at the head of a priority, or at a place, among which the oldest is looked for."""
PLACES = 30
"""Places, evenly among the ids of new rows, from which some are looked at."""
PRIORITIES = 10
"""Priorities of a group that are looked at, the last ones."""
MAX_GROUPS_BY_PRIORITY = 200
MAX_PRIORITY = 2**31 - 1


class NameCount(NamedTuple):
    """How many rows have a name, a group and a status."""

    task: str
    group_id: int
    status: int
    rows: int


class Counted(NamedTuple):
    """Rows by group and status."""

    counts: list[QueueCount]
    cut: frozenset[int]
    """The statuses of which there may be further groups, which were not counted."""
    oldest: Ages
    """Of all new rows that were looked at, those of further groups, too."""


class Ages(NamedTuple):
    """Ages in seconds of a group's oldest new rows; None where the row holds no instant."""

    since_added: float | None
    since_ready: float | None


class Counts:
    """The counts of one queue."""

    def __init__(self, database: Database) -> None:
        self._database = database

    # ---- by group and status

    COUNT = """
        SELECT ? AS status, ? AS group_id, COUNT(*) FROM (
            SELECT 1 FROM {table} {by_status} WHERE {group_status} = ? AND group_id = ? LIMIT ?
        ) AS counted
    """

    def by_group(self, groups: Sequence[int] = ()) -> Counted:
        """Rows by group and status, in that order; of these groups alone (none: of all)."""
        statuses = [*map(int, Status), *self._strange()]
        cut: list[int] = []
        if groups:
            pairs = [(status, group) for status in statuses for group in groups]
        else:
            pairs = self._pairs(statuses)
            cut = [status for status in statuses if sum(pair[0] == status for pair in pairs) >= MAX_GROUPS]
        few = MAX_COUNTED // (FIRST_SHARE * len(pairs) or 1)
        most = dict.fromkeys(pairs, few)
        found = self._count(most)
        more = [pair for pair, rows in found.items() if rows > few]
        if more:
            left = MAX_COUNTED - sum(min(rows, few) for rows in found.values())
            share = _rounded(few + left // len(more))
            if share > few:
                most |= dict.fromkeys(more, share)
                found |= self._count(dict.fromkeys(more, share))
        ages = self._ages([group for (status, group), rows in found.items() if status == Status.NEW and rows])
        counts = [
            QueueCount(
                group,
                status,
                min(rows, most[status, group]),
                *_ages_of(ages, status, group),
                rows > most[status, group],
            )
            for (status, group), rows in sorted(found.items(), key=lambda one: (one[0][1], one[0][0]))
            if rows
        ]
        oldest = Ages(None, None)
        for one in ages.values():
            oldest = Ages(*map(_older, oldest, one))
        return Counted(counts, frozenset(cut), oldest)

    STRANGE = "SELECT MIN({group_status}) FROM {table} {by_status} WHERE {group_status} > ?"

    def _strange(self) -> list[int]:
        """The numbers that are no status, in which rows stand all the same."""
        found: list[int] = []
        while len(found) < MAX_STRANGE:
            status = self._database.fetch_value(self.STRANGE, ([*map(int, Status), *found][-1],))
            if status is None:
                break
            found.append(int(status))
        return found

    def _pairs(self, statuses: Sequence[int]) -> list[tuple[int, int]]:
        """Each status and group that rows have, up to MAX_GROUPS of a status."""
        sql = f"SELECT * FROM ({self._database.words['groups_of_status']}) AS grouped"
        each = [sql.format("{table}", "{by_status}", one) for one in statuses]
        rows = self._database.fetch(" UNION ALL ".join(each), [MAX_GROUPS] * len(each))
        return [(int(status), int(group)) for status, group in rows]

    def _count(self, most: Mapping[tuple[int, int], int]) -> dict[tuple[int, int], int]:
        """The rows of each pair of a status and a group, one more than `most` where there are more."""
        wanted = [(*pair, *pair, rows + 1) for pair, rows in most.items()]
        return {(status, group): rows for status, group, rows in self._of_each(self.COUNT, wanted)}

    def _of_each(self, sql: str, wanted: Sequence[tuple[Any, ...]]) -> list[Row]:
        """The rows of a SELECT with each of these values, in few round trips."""
        rows: list[Row] = []
        for first in range(0, len(wanted), PAIRS_PER_STATEMENT):
            some = wanted[first : first + PAIRS_PER_STATEMENT]
            rows += self._database.fetch(
                " UNION ALL ".join([sql] * len(some)), [value for one in some for value in one]
            )
        return rows

    UP_TO = (
        "SELECT COUNT(*) FROM (SELECT 1 FROM {table} {by_status} WHERE {group_status} = ?{groups} LIMIT ?) AS counted"
    )

    def up_to(self, most: int, status: Status, groups: Sequence[int] = ()) -> int:
        """The rows of a status in these groups (none: in all); `most` where there are more."""
        condition = f" AND group_id IN ({marks(len(groups))})" if groups else ""
        sql = self.UP_TO.replace("{groups}", condition)
        found: int = self._database.fetch_value(sql, (status, *groups, most))
        return found

    # ---- ages of new rows

    # The index by due_at has all new rows in the order of their ids, whatever their groups and priorities are; due_at
    # stands in that order, too, or PostgreSQL would sort. The updated_at of a new row tells since when it is ready.
    AGES = """
        SELECT group_id, MAX({created_at_age}), MAX({updated_at_age}) FROM (
            SELECT group_id, created_at, updated_at FROM {table} {by_due}
            WHERE {due_status} = 0 AND due_at IS NULL ORDER BY due_at, id LIMIT ?
        ) AS first_ones GROUP BY group_id
    """
    # Retried rows keep their ids: those at the head may be young, and others behind them old.
    LAST_NEW = """
        SELECT id FROM {table} {by_due} WHERE {due_status} = 0 AND due_at IS NULL ORDER BY due_at DESC, id DESC LIMIT 1
    """
    FIRST_NEW = LAST_NEW.replace("DESC", "ASC")
    AGES_AT = """
        SELECT group_id, MAX({created_at_age}), MAX({updated_at_age}) FROM (
            SELECT group_id, created_at, updated_at FROM {table} {by_due}
            WHERE {due_status} = 0 AND due_at IS NULL AND id >= ? ORDER BY due_at, id LIMIT ?
        ) AS these GROUP BY group_id
    """
    # A priority that never has its turn is the last of its group: so each priority is looked at, from the last on.
    LAST_PRIORITY = """
        SELECT ? AS group_id, MAX(priority) FROM {table} {by_status}
        WHERE {group_status} = 0 AND group_id = ? AND priority < ?
    """
    AGES_OF_PRIORITY = """
        SELECT ? AS group_id, MAX({created_at_age}), MAX({updated_at_age}) FROM (
            SELECT created_at, updated_at, due_at FROM {table} {by_status}
            WHERE {group_status} = 0 AND group_id = ? AND priority = ? ORDER BY id LIMIT ?
        ) AS heads WHERE due_at IS NULL OR due_at <= {now}
    """

    def _ages(self, groups: Sequence[int]) -> dict[int, Ages]:
        """The ages of the oldest new rows of each group, among the first ones of all and of each priority."""
        if not groups:
            return {}
        rows = list(self._database.fetch(self.AGES, (SAMPLE,)))
        rows += self._of_each(f"SELECT * FROM ({self.AGES_AT}) AS at_place", [(at, HEADS) for at in self._places()])
        wanted = [(group, group, MAX_PRIORITY + 1) for group in groups[:MAX_GROUPS_BY_PRIORITY]]
        for _ in range(PRIORITIES):
            found = [row for row in self._of_each(self.LAST_PRIORITY, wanted) if row[1] is not None]
            if not found:
                break
            rows += self._of_each(self.AGES_OF_PRIORITY, [(group, group, last, HEADS) for group, last in found])
            wanted = [(group, group, last) for group, last in found]
        ages: dict[int, Ages] = {}
        for group, *more in rows:
            before = ages.get(group, Ages(None, None))
            ages[group] = Ages(*(_older(one, _seconds(other)) for one, other in zip(before, more, strict=True)))
        return ages

    def _places(self) -> list[int]:
        """Ids at the begin of PLACES parts of the new rows' ids; none where all are looked at anyway."""
        first, last = (self._database.fetch_value(sql) for sql in (self.FIRST_NEW, self.LAST_NEW))
        if first is None or last - first < SAMPLE:
            return []
        return [first + (last - first) * part // PLACES for part in range(1, PLACES)]

    # ---- by name

    NAMES = " UNION ALL ".join(
        f"""
        SELECT {status} AS status, task, group_id, COUNT(*) FROM (
            SELECT task, group_id FROM {{table}} {{by_due}} WHERE {{due_status}} = {status} ORDER BY {order} LIMIT ?
        ) AS named_{status} GROUP BY task, group_id
        """
        for status, order in {
            Status.NEW.value: "due_at, id",
            Status.IN_PROGRESS.value: "due_at, id",
            Status.DONE.value: "due_at DESC, id DESC",
            Status.ERROR.value: "due_at, id",
            Status.FATAL.value: "due_at DESC, id DESC",
            Status.WAITING.value: "due_at, id",
        }.items()
    )

    def by_name(self) -> list[NameCount]:
        """Rows by name, group and status: of each status the first SAMPLE rows; of done and fatal ones the newest."""
        rows = self._database.fetch(self.NAMES, [SAMPLE] * len(Status))
        return [NameCount(str(task), group, status, count) for status, task, group, count in map(as_texts, rows)]


def _ages_of(ages: Mapping[int, Ages], status: int, group: int) -> Ages:
    return ages.get(group, Ages(None, None)) if status == Status.NEW else Ages(None, None)


def _older(one: float | None, other: float | None) -> float | None:
    return max((age for age in (one, other) if age is not None), default=None)


def _rounded(rows: int) -> int:
    """With two digits: `more than 30,000` is what a person reads."""
    step: int = 10 ** max(len(str(rows)) - 2, 0)
    return rows - rows % step


def _seconds(value: Any) -> float | None:
    return None if value is None else max(float(value), 0.0)  # the clock of who added it may be ahead
