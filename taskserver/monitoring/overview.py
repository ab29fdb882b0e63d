"""The state of a queue, read once: what `client.py status` shows, and whatever else watches a queue will.

Facts and numbers alone; whoever shows them makes text, JSON or a page of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ..model.task import Status
from ..server import TaskServer
from ..stores.database.records import LastRun, QueueCount, TellingTask
from ..stores.queue.schedules import Schedules, StoredSchedule
from ..stores.queue.stats import HourStats, Stats
from .coverage import describe_paused, describe_unserved, paused_of, unserved

MAX_RUNNING = 20
"""Running tasks in an overview."""


class RowCounts(NamedTuple):
    """The rows of one group, or of the whole queue."""

    by_status: Mapping[int, int]
    """Rows by status: every Status in order, then whatever other numbers the rows hold."""
    oldest_new_seconds: float | None
    """Age of the oldest new row; None where no row is new."""


class Overview(NamedTuple):
    """A queue at one instant; instants inside its records are text in UTC."""

    table: str
    mode: str
    """What becomes of a completed row: one of MODES."""
    database: str
    """The database's address, without user and password."""
    groups: Mapping[int, RowCounts]
    """Rows by group id, in order of the ids; only groups that have rows."""
    total: RowCounts
    runs: Sequence[LastRun]
    """The last run of each host and groups."""
    paused_groups: Sequence[int]
    are_all_paused: bool
    """Whether all groups are paused, those that come up later included."""
    unserved_groups: Sequence[int]
    """Groups with new tasks that no run serves."""
    warnings: Sequence[str]
    """Sentences for a person about unserved and paused groups."""
    schedules: Sequence[StoredSchedule]
    this_hour: HourStats
    """What was done since the hour began, by the database's clock: all groups and task names together."""
    hour_before: HourStats
    running: Sequence[TellingTask]
    """The first running tasks that tell their progress, at most MAX_RUNNING."""
    has_more_running: bool
    """Whether more running tasks tell their progress than `running` holds."""


def read_overview(server: TaskServer) -> Overview:
    """Read a queue; changes nothing. Raises DatabaseError, also where the tables are not of this version."""
    server.store.tables.check()
    counts, runs = server.store.views.counts(), server.store.views.runs()
    claims = server.store.claims
    paused = paused_of(counts, claims.paused_groups(), claims.are_all_paused())
    schedules = Schedules(server.store).all()
    this_hour, hour_before = Stats(server.store).recent()
    running = server.store.views.telling(MAX_RUNNING + 1)
    return Overview(
        table=server.settings.table,
        mode=server.settings.mode,
        database=server.settings.dsn.place,
        groups=_by_group(counts),
        total=_row_counts(counts),
        runs=runs,
        paused_groups=paused.groups,
        are_all_paused=paused.are_all,
        unserved_groups=[count.group_id for count in unserved(counts, runs, paused.groups)],
        warnings=list(filter(None, [describe_unserved(counts, runs, paused.groups), describe_paused(counts, paused)])),
        schedules=schedules,
        this_hour=this_hour,
        hour_before=hour_before,
        running=running[:MAX_RUNNING],
        has_more_running=len(running) > MAX_RUNNING,
    )


def sum_of(several: Sequence[RowCounts]) -> RowCounts:
    """The rows of several groups as those of one."""
    by_status: dict[int, int] = {}
    for rows in several:
        for status, count in rows.by_status.items():
            by_status[status] = by_status.get(status, 0) + count
    ages = (rows.oldest_new_seconds for rows in several if rows.oldest_new_seconds is not None)
    return RowCounts(by_status, max(ages, default=None))


def _by_group(counts: Sequence[QueueCount]) -> dict[int, RowCounts]:
    of_group: dict[int, list[QueueCount]] = {}
    for count in counts:
        of_group.setdefault(count.group_id, []).append(count)
    return {group_id: _row_counts(of_group[group_id]) for group_id in sorted(of_group)}


def _row_counts(counts: Sequence[QueueCount]) -> RowCounts:
    by_status: dict[int, int] = dict.fromkeys(Status, 0)
    for count in counts:
        by_status[count.status] = by_status.get(count.status, 0) + count.rows
    ages = (count.oldest_seconds for count in counts if count.oldest_seconds is not None)
    return RowCounts(by_status, max(ages, default=None))
