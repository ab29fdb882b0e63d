"""The state of a queue, read once: what `client.py status` shows, and whatever else watches a queue will.

Facts and numbers alone; whoever shows them makes text, JSON or a page of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ..errors import DatabaseError
from ..host.process_identity import has_ended
from ..model.task import Status
from ..server import TaskServer
from ..stores.database.records import LastRun, QueueCount, RunningTask, StoredTask, WorkerProcess
from ..stores.queue.claims import number_of
from ..stores.queue.schedules import Schedules, StoredSchedule
from ..stores.queue.stats import HOUR_SECONDS, HourStats, RecentStats, Stats
from ..worker.record import host_name
from .coverage import describe_paused, describe_unserved, paused_of, unserved

MIN_PACE_SECONDS = 300.0
"""At the begin of an hour, what was done in it so far counts as done in so long a time."""
MAX_RUNNING = 20
"""Running tasks in an overview."""


class RowCounts(NamedTuple):
    """The rows of one group, or of the whole queue."""

    by_status: Mapping[int, int]
    """Rows by status: every Status in order, then whatever other numbers the rows hold."""
    oldest_new_seconds: float | None
    """Age of the oldest new row; None where no row is new."""


class Pace(NamedTuple):
    """How fast the tasks of a group leave the queue."""

    ended_an_hour: float
    """Tasks that are done or fatal: in the hour before, or in this hour, whichever was faster."""
    seconds_left: float | None
    """How long the new tasks, and those in progress, will take at this pace; None where there are none."""


class AtWork(NamedTuple):
    """A worker that is at work, or was when it was seen last."""

    process: WorkerProcess
    is_here: bool
    """Whether it is one of this host."""
    has_ended: bool | None
    """Whether its process has ended; None where that cannot be known, as of most processes of other hosts."""


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
    paces: Mapping[int, Pace]
    """How fast the tasks of each group were done of late; only groups in which some were."""
    running: Sequence[RunningTask]
    """Running tasks, those that tell their progress first, then the oldest; at most MAX_RUNNING."""
    running_by_group: Mapping[int, int]
    """How many tasks are running, by group; others in progress are claimed, and wait for their turn."""
    claimed_by_number: Mapping[int, int]
    """How many claimed tasks wait for their turn, by the number of their worker."""
    processes: Sequence[AtWork]
    """The workers at work, the oldest first."""


def read_overview(server: TaskServer) -> Overview:
    """Read a queue; changes nothing. Raises DatabaseError, also where the tables are not of this version."""
    server.store.tables.check()
    counts, runs = server.store.views.counts(), server.store.views.runs()
    claims = server.store.claims
    paused = paused_of(counts, claims.paused_groups(), claims.are_all_paused())
    schedules = Schedules(server.store).all()
    recent = Stats(server.store).recent()
    groups = _by_group(counts)
    return Overview(
        table=server.settings.table,
        mode=server.settings.mode,
        database=server.settings.dsn.place,
        groups=groups,
        total=_row_counts(counts),
        runs=runs,
        paused_groups=paused.groups,
        are_all_paused=paused.are_all,
        unserved_groups=[count.group_id for count in unserved(counts, runs, paused.groups)],
        warnings=list(filter(None, [describe_unserved(counts, runs, paused.groups), describe_paused(counts, paused)])),
        schedules=schedules,
        this_hour=recent.this_hour,
        hour_before=recent.hour_before,
        paces=paces_of(groups, recent),
        running=server.store.views.running(MAX_RUNNING),
        running_by_group=server.store.views.running_counts(),
        claimed_by_number=server.store.views.claimed_counts(),
        processes=workers_at_work(server),
    )


def workers_at_work(server: TaskServer) -> list[AtWork]:
    """The workers of all hosts, the oldest first. Raises DatabaseError."""
    return [_at_work(process) for process in server.store.processes.all()]


def gone_among(server: TaskServer, tasks: Sequence[StoredTask]) -> set[int]:
    """The ids of the started tasks among these whose process has ended, as far as that is known here."""
    claims = {task.id: task.claim for task in tasks if task.status == Status.IN_PROGRESS and task.started_at}
    if not claims:
        return set()
    try:
        numbers = {one.process.number for one in workers_at_work(server) if one.has_ended}
    except DatabaseError:  # as without the right to read them
        return set()
    return {task_id for task_id, claim in claims.items() if isinstance(claim, int) and number_of(claim) in numbers}


def _at_work(process: WorkerProcess) -> AtWork:
    is_here = process.host == host_name()
    is_known = has_ended(process.pid, process.identity) if is_here else None
    return AtWork(process, is_here, True if process.ended_at else is_known)


def paces_of(groups: Mapping[int, RowCounts], recent: RecentStats) -> dict[int, Pace]:
    """The pace of each group in which tasks ended of late, in order of the group ids."""
    paces = {}
    for group_id, (this_hour, hour_before) in sorted(recent.by_group.items()):
        hours = max(recent.seconds, MIN_PACE_SECONDS) / HOUR_SECONDS
        an_hour = max(_ended(this_hour) / hours, float(_ended(hour_before)))
        if an_hour:
            by_status = groups[group_id].by_status if group_id in groups else {}
            left = by_status.get(Status.NEW, 0) + by_status.get(Status.IN_PROGRESS, 0)
            paces[group_id] = Pace(an_hour, left / an_hour * HOUR_SECONDS if left else None)
    return paces


def _ended(one: HourStats) -> int:
    return one.done + one.fatal


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
