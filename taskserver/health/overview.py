"""The state of a queue, read once: what `client.py status`, `check` and `metrics` and the page show.

Facts and numbers alone; whoever shows them makes text, JSON or a page of them, and verdict.py judges them. Every
statement behind it is bounded, so that it costs little however many rows there are, and none takes a lock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from ..errors import DatabaseError
from ..host.process_identity import has_ended
from ..model.task import Status
from ..settings.load import Settings
from ..stores import Store
from ..stores.queue.claims import number_of
from ..stores.queue.counts import SAMPLE, Counts, ExpiredClaims, NameCount
from ..stores.queue.schedules import Schedules, StoredSchedule
from ..stores.queue.stats import HOUR_SECONDS, HourStats, RecentStats, Stats
from ..stores.records import OTHER, ErrorCount, LastRun, QueueCount, RunningTask, StoredTask, WorkerProcess
from ..worker.record import host_name
from .coverage import describe_paused, describe_resuming, describe_unserved, paused_of, unserved

MIN_PACE_SECONDS = 300.0
"""At the begin of an hour, what was done in it so far counts as done in so long a time."""
MAX_RUNNING = 20
"""Running tasks in an overview."""
SEEN_SECONDS = 600.0
"""A worker that gave no sign of life for longer may be gone: its task runs, or it was killed."""
MAX_NAMES = 50
MAX_ERRORS = 20
HOURS = 24
MAX_STATEMENT_SECONDS = 8
"""Less than we wait for an answer, so that nothing goes on at the server for a program that gave up."""


class Queue(Protocol):
    """An opened queue, as a TaskServer is one."""

    settings: Settings
    store: Store


class RowCounts(NamedTuple):
    """The rows of one group, or of the whole queue."""

    by_status: Mapping[int, int]
    """Rows by status: every Status in order, then OTHER if rows hold numbers that are none."""
    oldest_new_seconds: float | None
    """Age of the oldest new row, since it was added; None where no row is new."""
    oldest_ready_seconds: float | None = None
    """The same since it is ready: a delayed or retried task was added long before."""
    uncounted: frozenset[int] = frozenset()
    """The statuses of which there are more rows than were counted."""


class Pace(NamedTuple):
    """How fast the tasks of a group leave the queue."""

    ended_an_hour: float
    """Tasks that are done or fatal: in the hour before, or in this hour, whichever was faster."""
    seconds_left: float | None
    """How long the new tasks, and those in progress, will take at this pace; None where there are none, or they are
    paused."""


class AtWork(NamedTuple):
    """A worker that is at work, or was when it was seen last."""

    process: WorkerProcess
    is_here: bool
    """Whether it is one of this host."""
    has_ended: bool | None
    """Whether its process has ended; None where that cannot be known, as of most processes of other hosts."""


class NameCounts(NamedTuple):
    """The rows of one task name, of those whose names are read: of each status the first SAMPLE."""

    task: str
    by_status: Mapping[int, int]


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
    has_more_groups: bool
    """Whether there may be further groups, which were not counted."""
    runs: Sequence[LastRun]
    """The last run of each host and groups."""
    paused_groups: Sequence[int]
    are_all_paused: bool
    """Whether all groups are paused, those that come up later included."""
    unserved_groups: Sequence[int]
    """Groups with new tasks that no run serves."""
    unserved: str | None
    """The same in a sentence for a person."""
    paused: str | None
    """The paused groups in a sentence for a person."""
    resuming: str
    """What ends that pause, for a person."""
    schedules: Sequence[StoredSchedule]
    """All that there are, the next first."""
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
    names: Sequence[NameCounts]
    """Rows by task name, the most frequent first; at most MAX_NAMES."""
    unnamed: frozenset[int]
    """The statuses of which there are more rows than had their names read."""
    errors: Sequence[ErrorCount]
    """What the tasks failed with that failed last, the most frequent first; at most MAX_ERRORS lines."""
    hours: Sequence[HourStats]
    """What was done in each of the last HOURS hours in which something was, the oldest first."""
    lapsed: ExpiredClaims
    """Claims that no run took back, though their lease ended one lease ago or more."""
    undated: int
    """Tasks that wait for nothing, neither an instant nor a task: no worker ever takes them."""
    now: str
    """The database's clock, as text in UTC."""

    @property
    def strange(self) -> int:
        """Rows whose status is none: no worker ever takes them."""
        return self.total.by_status.get(OTHER, 0)

    def is_at_work(self, one: AtWork) -> bool:
        """Whether a worker is at work, by what the database tells: the same for whoever looks, from whatever host.

        It was seen of late, or the leases hold of tasks that it runs: in the midst of a long one it may be quiet.
        """
        if one.process.ended_at:
            return False
        holds = not self.lapsed.rows and any(task.number == one.process.number for task in self.running)
        return holds or is_heard_of(one)

    @property
    def is_worked_at(self) -> bool:
        """Whether any worker is at work."""
        return any(map(self.is_at_work, self.processes))

    @property
    def in_progress(self) -> dict[int, tuple[int, int]]:
        """By group that has any: tasks that are claimed and wait for their turn, and running ones."""
        counts = {}
        for group_id, rows in self.groups.items():
            in_progress, running = rows.by_status[Status.IN_PROGRESS], self.running_by_group.get(group_id, 0)
            if in_progress or running:
                # Counted apart: they may differ by an instant.
                counts[group_id] = max(in_progress - running, 0), running
        return counts

    @property
    def warnings(self) -> list[str]:
        """The sentences about unserved and paused groups."""
        paused = self.paused and f"{self.paused}: {self.resuming}"
        return [words for words in (self.unserved, paused) if words]


def read_overview(queue: Queue) -> Overview:
    """Read a queue; changes nothing. Raises DatabaseError, Conflict if the database is too busy to answer in time."""
    with queue.store.database.statements_limited(MAX_STATEMENT_SECONDS):
        return _read(queue)


def _read(queue: Queue) -> Overview:
    queue.store.tables.check()
    look, views = Counts(queue.store.database), queue.store.views
    runs, in_progress = views.runs(), views.in_progress()
    counted = look.by_group()
    counts = counted.counts
    paused = paused_of(counts, *queue.store.claims.paused())
    schedules = Schedules(queue.store).all()
    stats = Stats(queue.store)
    recent = stats.recent()
    names = look.by_name()
    groups = rows_by_group(counts)
    return Overview(
        table=queue.settings.table,
        mode=queue.settings.mode,
        database=queue.settings.dsn.place,
        groups=groups,
        total=_row_counts(counts, counted.cut),
        has_more_groups=bool(counted.cut),
        runs=runs,
        paused_groups=paused.groups,
        are_all_paused=paused.are_all,
        unserved_groups=[count.group_id for count in unserved(counts, runs, paused.groups)],
        unserved=describe_unserved(counts, runs, paused.groups),
        paused=describe_paused(counts, paused),
        resuming=describe_resuming(paused),
        schedules=schedules,
        this_hour=recent.this_hour,
        hour_before=recent.hour_before,
        paces=paces_of(groups, recent, paused.groups),
        running=views.running(MAX_RUNNING),
        running_by_group=in_progress.running,
        claimed_by_number=in_progress.claimed,
        processes=workers_at_work(queue),
        names=_by_name(names),
        unnamed=frozenset(status for status in Status if _rows_of(names, status) >= SAMPLE),
        errors=views.recent_errors(MAX_ERRORS),
        hours=stats.sums((HOURS - 1) * HOUR_SECONDS, "hour"),
        lapsed=look.expired(queue.settings.lease_seconds),
        undated=look.undated(),
        now=views.now(),
    )


def is_heard_of(at_work: AtWork) -> bool:
    """Whether a worker gave a sign of life of late, and its end was not found."""
    return not at_work.process.ended_at and (at_work.process.seen_seconds_ago or 0.0) <= SEEN_SECONDS


def lives(at_work: AtWork) -> bool:
    """Whether a worker's process lives, as far as that is known here."""
    return not at_work.has_ended and (at_work.has_ended is not None or is_heard_of(at_work))


def workers_at_work(queue: Queue) -> list[AtWork]:
    """The workers of all hosts, the oldest first. Raises DatabaseError."""
    return [_at_work(process) for process in queue.store.processes.all()]


def gone_among(queue: Queue, tasks: Sequence[StoredTask]) -> set[int]:
    """The ids of the started tasks among these whose process has ended, as far as that is known here."""
    claims = {task.id: task.claim for task in tasks if task.status == Status.IN_PROGRESS and task.started_at}
    if not claims:
        return set()
    try:
        numbers = {one.process.number for one in workers_at_work(queue) if one.has_ended}
    except DatabaseError:  # as without the right to read them
        return set()
    return {task_id for task_id, claim in claims.items() if isinstance(claim, int) and number_of(claim) in numbers}


def _at_work(process: WorkerProcess) -> AtWork:
    is_here = process.host == host_name()
    is_known = has_ended(process.pid, process.identity) if is_here else None
    return AtWork(process, is_here, True if process.ended_at else is_known)


def paces_of(
    groups: Mapping[int, RowCounts], recent: RecentStats, paused_groups: Sequence[int] = ()
) -> dict[int, Pace]:
    """The pace of each group in which tasks ended of late, in order of the group ids."""
    paces = {}
    for group_id, (this_hour, hour_before) in sorted(recent.by_group.items()):
        hours = max(recent.seconds, MIN_PACE_SECONDS) / HOUR_SECONDS
        an_hour = max(_ended(this_hour) / hours, float(_ended(hour_before)))
        if an_hour:
            is_worked_off = group_id in groups and group_id not in paused_groups
            by_status = groups[group_id].by_status if is_worked_off else {}
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
    return RowCounts(
        by_status,
        _greatest(rows.oldest_new_seconds for rows in several),
        _greatest(rows.oldest_ready_seconds for rows in several),
        frozenset().union(*(rows.uncounted for rows in several)),
    )


def rows_by_group(counts: Sequence[QueueCount]) -> dict[int, RowCounts]:
    """The rows of each group, in order of the ids."""
    of_group: dict[int, list[QueueCount]] = {}
    for count in counts:
        of_group.setdefault(count.group_id, []).append(count)
    return {group_id: _row_counts(of_group[group_id]) for group_id in sorted(of_group)}


def _row_counts(counts: Sequence[QueueCount], cut: frozenset[int] = frozenset()) -> RowCounts:
    by_status: dict[int, int] = dict.fromkeys(Status, 0)
    for count in counts:
        by_status[count.status] = by_status.get(count.status, 0) + count.rows
    return RowCounts(
        by_status,
        _greatest(count.oldest_seconds for count in counts),
        _greatest(count.ready_seconds for count in counts),
        cut.union(count.status for count in counts if count.is_more),
    )


def _greatest(ages: Iterable[float | None]) -> float | None:
    return max((age for age in ages if age is not None), default=None)


def _by_name(names: Sequence[NameCount]) -> list[NameCounts]:
    by_name: dict[str, dict[int, int]] = {}
    for one in names:
        by_status = by_name.setdefault(one.task, {})
        by_status[one.status] = by_status.get(one.status, 0) + one.rows
    ordered = sorted(by_name.items(), key=lambda item: (-sum(item[1].values()), item[0]))
    return [NameCounts(task, by_status) for task, by_status in ordered[:MAX_NAMES]]


def _rows_of(names: Sequence[NameCount], status: int) -> int:
    return sum(one.rows for one in names if one.status == status)
