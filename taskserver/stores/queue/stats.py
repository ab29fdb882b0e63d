"""The stats of a queue: counts and times by hour, group and task name. Workers add to them, operators read them.

A run without tasks does not import this file.
"""

# Annotations are not deferred here: named tuples compile deferred ones, which slows down each short run.

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta, timezone
from math import isfinite
from typing import Any, NamedTuple

from ...messages.text import Duration, utc
from ...model.task import MAX_SIGNED
from ..retrying import RetryPolicy, Scope
from ..words import in_portions
from .store import Store

CONFLICT_SECONDS = 2.0
"""How long an add is retried after conflicts."""
MAX_ROWS_PER_STATEMENT = 50
MAX_SUMS = 10_000
"""Sums that one look reads."""
HOUR_SECONDS = 3600
NO_CALLABLE = "(no callable)"
"""Stands for the empty task name."""
NO_HOUR = datetime(1970, 1, 1, tzinfo=timezone.utc)
"""Stands for an invalid hour, and for all hours together."""


class HourStats(NamedTuple):
    """The stats of one hour, group and task name."""

    hour: datetime
    """The start of the hour."""
    group_id: int
    task: str
    """Empty if the callable was not found, or if there were too many names."""
    begun: int = 0
    """First attempts of tasks."""
    attempts: int = 0
    """Attempts that are done, failed or lost."""
    done: int = 0
    failed: int = 0
    """Failed attempts, whether or not they are retried."""
    fatal: int = 0
    """Tasks that will not be retried: their last attempt failed or was lost, or they could not start."""
    lost: int = 0
    """Attempts whose worker died."""
    ran_seconds: float = 0.0
    """The sum over attempts that are done or failed; so are the next three."""
    slowest_seconds: float = 0.0
    waited_seconds: float = 0.0
    """The sum of the waits, from ready to started."""
    longest_wait_seconds: float = 0.0

    @property
    def mean_run_seconds(self) -> float | None:
        """None if no attempt is done or failed."""
        return self._mean(self.ran_seconds)

    @property
    def mean_wait_seconds(self) -> float | None:
        """From ready to started; None if no attempt is done or failed."""
        return self._mean(self.waited_seconds)

    def as_dict(self) -> dict[str, Any]:
        """All columns and the means, for JSON."""
        means = {"mean_run_seconds": self.mean_run_seconds, "mean_wait_seconds": self.mean_wait_seconds}
        return {**self._asdict(), "hour": f"{self.hour:%Y-%m-%dT%H:%M:%SZ}", **means}

    def _mean(self, seconds: float) -> float | None:
        ended = self.done + self.failed
        return seconds / ended if ended else None


class RecentStats(NamedTuple):
    """The stats of this hour so far and of the hour before."""

    this_hour: HourStats
    hour_before: HourStats
    by_group: dict[int, HourStats]
    """Both hours together, by group id; only groups with stats."""


KEY = ("hour", "group_id", "task")
COLUMNS = HourStats._fields[len(KEY) :]
GREATEST = ("slowest_seconds", "longest_wait_seconds")
"""Columns with the greatest value; all others have the sum."""


def totals_by(column: str, stats: Iterable[HourStats]) -> list[HourStats]:
    """One total for each value of a column (`hour`, `group_id` or `task`), in order of value."""
    by_value: dict[Any, list[HourStats]] = {}
    for one in stats:
        by_value.setdefault(getattr(one, column), []).append(one)
    return [total(by_value[value]) for value in sorted(by_value)]


def total(several: Sequence[HourStats]) -> HourStats:
    """All in one, with the hour, group and name of the first."""
    columns: dict[str, Any] = {
        name: (max if name in GREATEST else sum)(getattr(one, name) for one in several) for name in COLUMNS
    }
    return several[0]._replace(**columns)


class Stats:
    """The stats of one queue. Raises DatabaseError."""

    def __init__(self, store: Store) -> None:
        self._database = store.database

    # ---- add: a worker's counts since its last add

    # Rows are sorted by primary key, so that workers do not deadlock. The hour is by the database's clock.
    ADD = f"INSERT INTO {{stats}} ({', '.join(KEY + COLUMNS)}) VALUES "
    ADD_ROW = f"({{this_hour}}, {', '.join('?' * (len(HourStats._fields) - 1))})"

    def add(self, rows: Iterable[tuple[Any, ...]]) -> None:
        """Add to the stats of this hour; each row is a group, a name and COLUMNS.

        It is not retried after a broken connection: counts may be lost, but are never added twice. After a Conflict
        nothing was added.
        """
        policy = RetryPolicy(Scope.TRANSACTION, CONFLICT_SECONDS, is_repeatable=False)
        self._database.run(policy, self._add, sorted(rows))

    def _add(self, rows: Sequence[tuple[Any, ...]]) -> None:
        changes = self._database.upsert({column: self._added(column) for column in COLUMNS}, "", ", ".join(KEY))
        for portion in in_portions(rows, MAX_ROWS_PER_STATEMENT):
            sql = f"{self.ADD}{', '.join([self.ADD_ROW] * len(portion))} {changes}"
            self._database.execute(sql, [value for row in portion for value in row])

    def _added(self, column: str) -> str:
        words = self._database.words
        given, standing = words["given"].format(column), words["standing"].format("{stats}", column)
        return f"{{greatest}}({standing}, {given})" if column in GREATEST else f"{standing} + {given}"

    # ---- read, for operators

    SUMS = f"""
        SELECT {{columns}}, {", ".join(f"{'MAX' if name in GREATEST else 'SUM'}(1e0 * {name})" for name in COLUMNS)}
        FROM {{stats}} WHERE hour > {{begin}} GROUP BY {{keys}} ORDER BY SUM(1e0 * attempts + fatal) DESC LIMIT ?
    """
    THIS_HOUR = "SELECT {this_hour_text}"

    def hours(self, since: Duration | datetime | None = None) -> list[HourStats]:
        """The stats of this hour and of those that ended after `since`; None: of all hours.

        `since` is an aware datetime, or a duration before now. Raises SettingError.
        """
        from ..records import MAX_SINCE_SECONDS, earliest  # a worker only adds

        begin, value = earliest(MAX_SINCE_SECONDS if since is None else since, HOUR_SECONDS)
        return self._sums(KEY, begin, value, MAX_SIGNED)

    def sums(self, since_seconds: float, *keys: str) -> list[HourStats]:
        """The stats of the hours that ended in the last `since_seconds`, summed up by columns of KEY, in order.

        Only the MAX_SUMS largest sums. Other columns of KEY are empty or 0.
        """
        return self._sums(keys, "{after}", -since_seconds - HOUR_SECONDS, MAX_SUMS)

    def _sums(self, keys: Sequence[str], begin: str, value: Any, most: int) -> list[HourStats]:
        shown = ["{hour_text}" if key == "hour" else key for key in keys]
        sql = self.SUMS.replace("{columns}", ", ".join(shown)).replace("{keys}", ", ".join(keys))
        rows = self._database.fetch(sql.replace("{begin}", begin), (value, most))
        return sorted(_stats_of(keys, row) for row in rows)

    def recent(self) -> RecentStats:
        this_hour = _hour(self._database.fetch_value(self.THIS_HOUR))
        hours = this_hour, this_hour - timedelta(hours=1)
        found = [one for one in self.sums(HOUR_SECONDS, "hour", "group_id") if one.hour in hours]
        this, before = (total([HourStats(hour, 0, ""), *(one for one in found if one.hour == hour)]) for hour in hours)
        by_group = {one.group_id: total([two for two in found if two.group_id == one.group_id]) for one in found}
        return RecentStats(this, before, by_group)


def _stats_of(keys: Sequence[str], row: Sequence[Any]) -> HourStats:
    """The stats in a row of these `keys` and COLUMNS."""
    key = dict(zip(keys, row, strict=False))
    group_id = key.get("group_id", 0)
    # SQLite may store any type; the sums are numbers, perhaps infinite.
    group_id = group_id if type(group_id) is int else 0
    numbers: dict[str, Any] = {
        name: (float if name.endswith("_seconds") else int)(value if isfinite(value) else 0)
        for name, value in zip(COLUMNS, row[len(keys) :], strict=True)
    }
    return HourStats(_hour(key.get("hour")), group_id, str(key.get("task", "")), **numbers)


def _hour(text: object) -> datetime:
    return utc(str(text)[:19]) or NO_HOUR
