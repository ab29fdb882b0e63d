"""How many rows a queue has, by group, status and name, how old the new ones are, and which may need a person.

Pages reload often, and counting every row takes time. So each statement reads a limited number of index entries and
takes no lock. None may sort: MariaDB sorts all rows of a status for `due_at IS NULL ORDER BY due_at, id`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ...model.results import as_texts
from ...model.task import Status
from ..database import Database, Row
from ..records import OTHER, QueueCount
from ..words import in_portions, marks

MAX_COUNTED = 100_000
"""Rows that one look counts, with an equal share for each group and status."""
MIN_SHARE = 100
MAX_OF_STATUS = 1000
"""Groups of a status; rows of more groups are not counted."""
MAX_GROUPS_BY_PRIORITY = 200
LOOKS_PER_STATEMENT = 50
NAMES_SAMPLE = 1000
"""How many rows of a status are read for names, and of new ones for ages."""
HEADS = 20
"""How many first rows of a group's last priority are read for ages."""
MAX_EXPIRED = 10_000
"""Expired claims that are counted."""
NO_STATUS = ("= 6", "> 7")
"""Conditions for numbers that are no Status."""
BY_AGE = (Status.NEW, Status.IN_PROGRESS, Status.ERROR, Status.WAITING)
"""Names are read from their first rows; for other statuses, from the newest."""

Look = tuple[str, Sequence[Any]]
"""A SELECT and its values."""


class NameCount(NamedTuple):
    """How many rows have this name, group and status."""

    task: str
    group_id: int
    status: int
    rows: int


class Counted(NamedTuple):
    """Rows by group and status."""

    counts: list[QueueCount]
    cut: frozenset[int]
    """Statuses with groups that were not counted."""


class ExpiredClaims(NamedTuple):
    """Claims with an expired lease that were not reclaimed."""

    rows: int
    oldest_seconds: float
    """Since the oldest lease expired."""


class Counts:
    """The counts of one queue. Raises DatabaseError."""

    def __init__(self, database: Database) -> None:
        self._database = database

    # ---- by group and status

    COUNT = """
        SELECT ? AS status, ? AS group_id, COUNT(*) FROM (
            SELECT 1 FROM {table} {by_status} WHERE {group_status} = ? AND group_id = ? LIMIT ?
        ) AS counted
    """
    OTHERS = f"""
        SELECT {OTHER} AS status, group_id, COUNT(*) FROM (
            SELECT group_id FROM {{table}} {{by_status}} WHERE {{group_status}} {{is_other}} LIMIT ?
        ) AS others GROUP BY group_id
    """

    def by_group(self, groups: Sequence[int] = ()) -> Counted:
        """Rows by group and status, in that order, of these groups; none: of all, with OTHER."""
        pairs = [(int(status), group) for status in Status for group in groups] if groups else self._pairs()
        share = max(MAX_COUNTED // max(len(pairs), 1), MIN_SHARE)
        looks: list[Look] = [(self.COUNT, (*pair, *pair, share + 1)) for pair in pairs]
        if not groups:
            looks += [(self.OTHERS.replace("{is_other}", condition), (share + 1,)) for condition in NO_STATUS]
        found = sorted((int(group), int(status), rows) for status, group, rows in self._rows_of(looks) if rows)
        ages = self._ages([group for group, status, _ in found if status == Status.NEW])
        counts = []
        for group, status, rows in found:
            added, ready = ages.get(group, (None, None)) if status == Status.NEW else (None, None)
            counts.append(QueueCount(group, status, min(rows, share), added, ready, rows > share))
        cut = [status for status in Status if sum(pair[0] == status for pair in pairs) >= MAX_OF_STATUS and not groups]
        return Counted(counts, frozenset(cut))

    def _pairs(self) -> list[tuple[int, int]]:
        """The pairs of status and group in the queue, up to MAX_OF_STATUS for a status."""
        sql = f"SELECT * FROM ({self._database.words['groups_of_status']}) AS grouped"
        looks: list[Look] = [(sql.format("{table}", "{by_status}", int(status)), (MAX_OF_STATUS,)) for status in Status]
        return [(int(status), int(group)) for status, group in self._rows_of(looks)]

    def _rows_of(self, looks: Sequence[Look]) -> list[Row]:
        """The rows of several SELECTs, in few round trips."""
        rows: list[Row] = []
        for some in in_portions(looks, LOOKS_PER_STATEMENT):
            joined = " UNION ALL ".join(sql for sql, _ in some)
            rows += self._database.fetch(joined, [value for _, values in some for value in values])
        return rows

    # The first rows by id, of any group and priority. A new row has been ready since its updated_at.
    AGES = """
        SELECT group_id, MAX({created_at_age}), MAX({updated_at_age}) FROM (
            SELECT group_id, created_at, updated_at FROM {table} {by_due}
            WHERE {due_status} = 0 AND due_at IS NULL LIMIT ?
        ) AS first_ones GROUP BY group_id
    """
    # A starving priority is the last of its group.
    AGES_OF_LAST = """
        SELECT ? AS group_id, MAX({created_at_age}), MAX({updated_at_age}) FROM (
            SELECT created_at, updated_at, due_at FROM {table} {by_status}
            WHERE {group_status} = 0 AND group_id = ? AND priority = (
                SELECT priority FROM {table} {by_status} WHERE {group_status} = 0 AND group_id = ?
                ORDER BY priority DESC LIMIT 1
            ) ORDER BY id LIMIT ?
        ) AS heads WHERE due_at IS NULL OR due_at <= {now}
    """

    def _ages(self, groups: Sequence[int]) -> dict[int, tuple[float, float]]:
        """For each group, the seconds since its oldest new row was added, and since one has been ready.

        Reads only the first new rows, and the first ones of each group's last priority.
        """
        if not groups:
            return {}
        looks: list[Look] = [(self.AGES, (NAMES_SAMPLE,))]
        looks += [(self.AGES_OF_LAST, (one, one, one, HEADS)) for one in groups[:MAX_GROUPS_BY_PRIORITY]]
        ages: dict[int, tuple[float, float]] = {}
        for group, added, ready in self._rows_of(looks):
            if added is not None and ready is not None:
                before = ages.get(int(group), (0.0, 0.0))  # a producer's clock may be ahead
                ages[int(group)] = max(before[0], float(added)), max(before[1], float(ready))
        return ages

    UP_TO = """
        SELECT COUNT(*) FROM (
            SELECT 1 FROM {table} {by_status} WHERE {group_status} = ?{groups} LIMIT ?
        ) AS counted
    """

    def up_to(self, most: int, status: Status, groups: Sequence[int] = ()) -> int:
        """How many rows of a status these groups have (none: all groups), at most `most`."""
        condition = f" AND group_id IN ({marks(len(groups))})" if groups else ""
        found: int = self._database.fetch_value(self.UP_TO.replace("{groups}", condition), (status, *groups, most))
        return found

    # ---- by name

    NAMES = " UNION ALL ".join(
        f"""
        SELECT {status:d} AS status, task, group_id, COUNT(*) FROM (
            SELECT task, group_id FROM {{table}} {{by_due}} WHERE {{due_status}} = {status:d}
            ORDER BY {"due_at, id" if status in BY_AGE else "due_at DESC, id DESC"} LIMIT ?
        ) AS named_{status:d} GROUP BY task, group_id
        """
        for status in Status
    )

    def by_name(self) -> list[NameCount]:
        """Rows by name, group and status, among the first NAMES_SAMPLE rows of each status (the newest if ended)."""
        rows = self._database.fetch(self.NAMES, [NAMES_SAMPLE] * len(Status))
        return [NameCount(str(task), group, status, count) for status, task, group, count in map(as_texts, rows)]

    # ---- rows that may need a person

    EXPIRED = f"""
        SELECT COUNT(*), MAX({{due_at_age}}) FROM (
            SELECT due_at FROM {{table}} {{by_due}} WHERE {{due_status}} = 1 AND due_at < {{after}} LIMIT {MAX_EXPIRED}
        ) AS expired
    """
    UNDATED = """
        SELECT COUNT(*) + (
            SELECT COUNT(*) FROM (
                SELECT id FROM {table} {by_due} WHERE {due_status} = 3 AND due_at IS NULL LIMIT ?
            ) AS failed
        ) FROM (
            SELECT id FROM {table} {by_due} WHERE {due_status} = 5 AND due_at IS NULL LIMIT ?
        ) AS waiting WHERE NOT EXISTS (SELECT 1 FROM {dependencies} WHERE child_id = waiting.id)
    """
    ORPHANED = """
        SELECT COUNT(*) FROM (
            SELECT id FROM {table} {by_due} WHERE {due_status} = 5 AND due_at IS NULL LIMIT ?
        ) AS waiting WHERE EXISTS (SELECT 1 FROM {dependencies} WHERE child_id = waiting.id) AND NOT EXISTS (
            SELECT 1 FROM {dependencies} AS edge JOIN {table} AS parent ON parent.id = edge.parent_id
            WHERE edge.child_id = waiting.id AND parent.status NOT IN (2, 4, 7)
        )
    """

    def expired(self, seconds: float) -> ExpiredClaims:
        """Claims with a lease that ended more than `seconds` ago."""
        rows, oldest = self._database.fetch(self.EXPIRED, [-seconds])[0]
        return ExpiredClaims(rows, float(oldest or 0))

    def undated(self) -> int:
        """How many tasks in error, and of the oldest waiting ones, wait for neither an instant nor a task."""
        rows: int = self._database.fetch_value(self.UNDATED, [NAMES_SAMPLE] * 2)
        return rows

    def orphaned(self) -> int:
        """How many of the oldest waiting tasks wait only for deleted or ended tasks."""
        rows: int = self._database.fetch_value(self.ORPHANED, [NAMES_SAMPLE])
        return rows
