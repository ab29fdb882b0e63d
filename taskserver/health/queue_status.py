"""A queue's state as `TaskServer.status` returns it: the overview and its verdict, with aware datetimes in UTC."""

# Annotations are not deferred here: named tuples compile deferred ones.

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from ..messages.text import utc
from ..stores.queue.schedules import StoredSchedule
from ..stores.queue.stats import HourStats
from ..stores.records import LastRun, RunningTask
from .acceptance import read_accepted
from .overview import AtWork, Overview, Queue, RowCounts, read_overview
from .task_rows import ErrorLine, error_line
from .verdict import VerdictReason, judge


class Finding(NamedTuple):
    """One thing about a queue that is not well."""

    name: str
    """A word that stays the same."""
    level: str
    """`look` or `act`."""
    words: str
    """What was found, in a sentence."""
    mend: str
    """What to do about it."""


class GroupStatus(NamedTuple):
    """The rows of one group, or of the whole queue."""

    rows: Mapping[int, int]
    """Rows by Status; by -1 those whose status is none, if there are any."""
    oldest_new_seconds: float | None
    """The age of the oldest new row; None where no row is new."""
    oldest_ready_seconds: float | None
    """The same since it is ready."""
    uncounted: frozenset[int]
    """The statuses of which there are more rows than were counted."""
    claimed: int
    """Tasks in progress that wait for their turn."""
    running: int
    ended_an_hour: float | None = None
    """Tasks that are done or fatal: in the hour before, or in this hour, whichever was faster. None where none ended,
    and for the whole queue."""
    seconds_left: float | None = None
    """How long the new tasks, and those in progress, will take at this pace; None where there are none."""


class RunStatus(NamedTuple):
    """The last run of one host and groups."""

    host: str
    groups: str
    """As `3,5,6`, or `all`."""
    pid: int
    started_at: datetime | None
    ended_at: datetime | None
    """None while it runs, or where it was killed."""
    reason: str | None
    """Why it ended, a value of taskserver.Reason."""
    taken: int
    done: int
    failed: int
    fatal: int
    lost: int
    released: int
    every_seconds: float | None
    """From the begin of the run before to the begin of this one; None where that is not known."""


class WorkerStatus(NamedTuple):
    """A worker that is at work, or was when it was seen last."""

    number: int
    """Random; a RunningTask names it."""
    host: str
    groups: str
    """As `3,5,6`, or `all`."""
    pid: int
    started_at: datetime | None
    seen_seconds_ago: float | None
    """The age of its counts."""
    ended_at: datetime | None
    """When a run on its host found that the process is gone."""
    taken: int
    done: int
    failed: int
    fatal: int
    lost: int
    released: int
    is_here: bool
    """Whether it is one of this host."""
    has_ended: bool | None
    """Whether its process has ended; None where that cannot be known, as of most processes of other hosts."""


class ScheduleStatus(NamedTuple):
    """A periodic task."""

    name: str
    task: str
    args: str | None
    """The arguments as JSON text."""
    group_id: int
    priority: int
    every_seconds: int | None
    cron: str | None
    timezone: str
    next_at: datetime | None
    fault: str | None
    """Why no task can be added; None without a reason."""
    held: str | None
    """The task that has its key and has not ended, in a sentence; None without one."""


class QueueStatus(NamedTuple):
    """The state of a queue at one instant."""

    table: str
    mode: str
    now: datetime | None
    """The database's clock."""
    level: str
    """The verdict: `well`, `look` or `act`."""
    words: str
    """The verdict in one sentence."""
    findings: Sequence[Finding]
    """Its reasons, the worst first."""
    accepted: Sequence[Finding]
    """Those that a person has accepted; they do not count."""
    total: GroupStatus
    groups: Mapping[int, GroupStatus]
    """By group id; only groups that have rows."""
    paused_groups: Sequence[int]
    are_all_paused: bool
    """Whether all groups are paused, those that come up later included."""
    unserved_groups: Sequence[int]
    """Groups that have new tasks, are not paused, and that no worker served of late."""
    runs: Sequence[RunStatus]
    workers: Sequence[WorkerStatus]
    """The oldest first."""
    running: Sequence[RunningTask]
    """At most 20: those that tell their progress first, then the oldest."""
    schedules: Sequence[ScheduleStatus]
    """The next first."""
    names: Mapping[str, Mapping[int, int]]
    """Rows by Status, by task name, the most frequent first: 50 names at most, of the first 1,000 rows of a status."""
    errors: Sequence[ErrorLine]
    """What the tasks failed with that failed last, the most frequent first; at most 20 lines."""
    this_hour: HourStats
    hour_before: HourStats
    hours: Sequence[HourStats]
    """Those of the last 24 hours in which something was done, the oldest first."""
    lapsed: int
    """Claims that no run took back, though their lease ended a lease ago or more."""
    lapsed_seconds: float
    """The time since the end of the oldest of these leases."""


def read_status(queue: Queue) -> QueueStatus:
    """Read a queue; changes nothing. Raises DatabaseError."""
    overview = read_overview(queue)
    verdict = judge(overview, read_accepted(queue.store).by_name)
    return QueueStatus(
        table=overview.table,
        mode=overview.mode,
        now=utc(overview.now),
        level=verdict.level.name.lower(),
        words=verdict.words,
        findings=[_finding(reason) for reason in verdict.reasons],
        accepted=[_finding(reason) for reason in verdict.accepted],
        total=_total(overview),
        groups={group_id: _group(overview, group_id, rows) for group_id, rows in overview.groups.items()},
        paused_groups=overview.paused_groups,
        are_all_paused=overview.are_all_paused,
        unserved_groups=overview.unserved_groups,
        runs=[_run(run) for run in overview.runs],
        workers=[_worker(at_work) for at_work in overview.processes],
        running=overview.running,
        schedules=[_schedule(stored) for stored in overview.schedules],
        names={one.task: one.by_status for one in overview.names},
        errors=[error_line(one) for one in overview.errors],
        this_hour=overview.this_hour,
        hour_before=overview.hour_before,
        hours=overview.hours,
        lapsed=overview.lapsed.rows,
        lapsed_seconds=overview.lapsed.oldest_seconds,
    )


def _finding(reason: VerdictReason) -> Finding:
    return Finding(reason.name, reason.level.name.lower(), reason.words, reason.mend)


def _group(overview: Overview, group_id: int, rows: RowCounts) -> GroupStatus:
    counts, pace = overview.in_progress.get(group_id, (0, 0)), overview.paces.get(group_id)
    return GroupStatus(*rows, *counts, *(pace or (None, None)))


def _total(overview: Overview) -> GroupStatus:
    claimed, running = (sum(counts) for counts in zip((0, 0), *overview.in_progress.values(), strict=True))
    return GroupStatus(*overview.total, claimed, running)


def _run(run: LastRun) -> RunStatus:
    return RunStatus(**_of_both(run), reason=run.reason, every_seconds=run.every_seconds)


def _worker(at_work: AtWork) -> WorkerStatus:
    process = at_work.process
    return WorkerStatus(
        **_of_both(process),
        number=process.number,
        seen_seconds_ago=process.seen_seconds_ago,
        is_here=at_work.is_here,
        has_ended=at_work.has_ended,
    )


def _of_both(row: Any) -> dict[str, Any]:
    """What the record of a run and that of a worker's process have in common."""
    counts = {name: getattr(row, name) for name in ("taken", "done", "failed", "fatal", "lost", "released")}
    place = {"host": row.host, "groups": row.group_ids, "pid": row.pid}
    return {**place, "started_at": utc(row.started_at), "ended_at": utc(row.ended_at), **counts}


def _schedule(stored: StoredSchedule) -> ScheduleStatus:
    return ScheduleStatus(*stored.schedule, utc(stored.next_at), stored.fault, stored.held)
