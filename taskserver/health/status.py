"""The state of a queue, read once: `server.status()` returns it; command, page, check and metrics show it.

Only facts; judge.py judges them. Its statements are bounded, so they stay cheap with many rows, and none takes a lock.
"""

# No deferred annotations here, as named tuples would compile them.

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from ..errors import DatabaseError
from ..host.process_identity import has_ended, host_name
from ..messages.finding import Finding, Level, worst
from ..messages.text import plain
from ..model.task import Status, name_of_status
from ..settings.load import Settings
from ..stores import Store
from ..stores.queue.claims import number_of
from ..stores.queue.counts import NAMES_SAMPLE, Counts, NameCount
from ..stores.queue.schedules import Schedules, StoredSchedule
from ..stores.queue.stats import HOUR_SECONDS, HourStats, Stats
from ..stores.records import OTHER, ErrorCount, LastRun, QueueCount, RunningTask, TaskRow, WorkerProcess
from .accepted import Accepted
from .coverage import serves, unserved

MAX_RUNNING = 20
"""Running tasks in a status."""
SEEN_SECONDS = 600.0
"""A worker without a sign of life for longer may be dead, or runs a long task."""
MIN_TASK_SECONDS = 0.002
"""Least cost of a start and a finish, besides the task itself."""
MAX_NAMES = 50
MAX_ERRORS = 20
HOURS = 24
MAX_STATEMENT_SECONDS = 8
"""Less than our timeout for an answer, so that the server stops before we give up."""


class Count(NamedTuple):
    """A number of tasks."""

    rows: int
    is_more: bool = False
    """Whether there are more that were not counted."""

    def __str__(self) -> str:
        return f"{self.rows}{'+' if self.is_more else ''}"


class GroupStatus(NamedTuple):
    """The rows of one group, or of the whole queue."""

    rows: Mapping[int, int]
    """Rows by status: every Status in order, then -1 for unknown numbers, if there are any."""
    oldest_new_seconds: float | None = None
    """Since the oldest new row was added; None if no row is new."""
    oldest_ready_seconds: float | None = None
    """Since it became ready, which is later for a delayed or retried task."""
    uncounted: frozenset[int] = frozenset()
    """Statuses that have more rows than were counted."""
    claimed: int = 0
    """Tasks in progress that wait for their turn."""
    running: int = 0
    seconds_left: float | None = None
    """How long its new and running tasks will take at the recent pace; None if no worker has any of them, and for the
    whole queue."""

    def as_dict(self) -> dict[str, Any]:
        """For JSON, with the counts by names of statuses."""
        uncounted = [name_of_status(status) for status in sorted(self.uncounted)]
        return {**by_name(self.rows), **self._asdict(), "uncounted": uncounted}


class QueueStatus(NamedTuple):
    """A queue at one moment."""

    table: str
    mode: str
    """One of MODES."""
    database: str
    """The database's address, without user and password."""
    now: datetime
    """The database's clock."""
    total: GroupStatus
    groups: Mapping[int, GroupStatus]
    """By group id, in order; only groups that have rows."""
    has_more_groups: bool
    """Whether there may be more groups that were not counted."""
    chosen_groups: Sequence[int]
    """The groups of this status; empty: all."""
    ready: Count
    """New tasks outside of paused groups."""
    fatal: Count
    paused_groups: Sequence[int]
    are_all_paused: bool
    """Whether all groups are paused, including future ones."""
    unserved_groups: Sequence[int]
    """Groups with new tasks that no run serves and that are not paused."""
    runs: Sequence[LastRun]
    """The last run of each host and groups."""
    workers: Sequence[WorkerProcess]
    """Running workers, oldest first."""
    running: Sequence[RunningTask]
    """At most MAX_RUNNING: those with progress first, then the oldest."""
    schedules: Sequence[StoredSchedule]
    """The next first."""
    names: Mapping[str, Mapping[int, int]]
    """Rows by status, by task name, most frequent first: at most MAX_NAMES."""
    unnamed: frozenset[int]
    """Statuses that have more rows than names were read."""
    errors: Sequence[ErrorCount]
    """Recent errors, most frequent first: at most MAX_ERRORS."""
    this_hour: HourStats
    """All groups since the hour began."""
    hour_before: HourStats
    hours: Sequence[HourStats]
    """Those of the last 24 with any work, oldest first."""
    lapsed: int
    """Claims whose lease expired at least one lease ago, and that no run reclaimed."""
    lapsed_seconds: float
    """Since the oldest of these leases expired."""
    undated: int
    """Tasks that wait for neither a time nor a task: no worker ever takes them."""
    orphaned: int
    """Tasks that wait only for tasks that were deleted or have ended."""
    findings: Sequence[Finding] = ()
    """Findings that are not ok, worst first."""
    accepted: Sequence[Accepted] = ()
    """Findings that a person has accepted; they do not count."""

    @property
    def level(self) -> Level:
        """The worst level of the findings."""
        return worst(self.findings)

    @property
    def words(self) -> str:
        """The worst finding in one sentence."""
        first = self.findings[0].words if self.level else "all is well"
        return f"{first[0].upper()}{first[1:]}"

    @property
    def strange(self) -> int:
        """Rows with an unknown status: no worker ever takes them."""
        return self.total.rows.get(OTHER, 0)

    def is_at_work(self, worker: WorkerProcess) -> bool:
        """Whether a worker seems to work: it was seen recently, or its tasks have a lease (a long task is silent)."""
        holds = not self.lapsed and any(task.number == worker.number for task in self.running)
        return not worker.has_ended and (holds or (worker.seen_seconds_ago or 0.0) <= SEEN_SECONDS)

    def as_dict(self) -> dict[str, Any]:
        """For JSON: times such as 2026-01-31T12:00:00.000000Z, statuses by their names."""
        report: dict[str, Any] = plain(self._asdict())
        report |= {"level": str(self.level), "words": self.words, "unnamed": list(map(name_of_status, self.unnamed))}
        # Also at the top, for monitoring scripts.
        ages = {key: report["total"][key] for key in ("oldest_new_seconds", "oldest_ready_seconds")}
        report |= {**ages, "all_paused": report.pop("are_all_paused")}
        report["groups"] = [{"group_id": group, **plain(rows)} for group, rows in self.groups.items()]
        report["names"] = [{"task": task, **by_name(rows)} for task, rows in self.names.items()]
        for rows in (report["total"], *report["groups"]):
            del rows["rows"]
        for worker in report["workers"]:
            del worker["identity"]
        report["schedules"] = [{**one.pop("schedule"), **one} for one in report["schedules"]]
        return report


def by_name(rows: Mapping[int, int]) -> dict[str, int]:
    """Counts by names of statuses."""
    return {name_of_status(status): count for status, count in rows.items()}


# ---- read


def read_status(
    store: Store, settings: Settings, groups: Sequence[int] = (), up_to: Mapping[Status, int] | None = None
) -> QueueStatus:
    """Read a queue, or some of its groups; changes nothing. Raises DatabaseError, such as Conflict after a timeout.

    `up_to`: how many new and fatal tasks are counted exactly.
    """
    with store.database.with_statement_timeout(MAX_STATEMENT_SECONDS):
        return _read(store, settings, groups, up_to or {})


def _read(store: Store, settings: Settings, chosen: Sequence[int], up_to: Mapping[Status, int]) -> QueueStatus:
    store.tables.check()
    look, views = Counts(store.database), store.views
    runs = [run for run in views.runs() if serves(run.group_ids, chosen)]
    counted, stats, in_progress = look.by_group(chosen), Stats(store), views.in_progress()
    recent = stats.recent()
    groups = {
        group: _group(rows, in_progress.running.get(group, 0), recent.by_group.get(group))
        for group, rows in by_group(counted.counts).items()
    }
    total = _group(counted.counts, sum(one.running for one in groups.values()))
    paused, are_all_paused = store.claims.paused()
    if are_all_paused:
        paused = sorted({*paused, *groups})
    served = [group for group in groups if group not in paused]

    def count(status: Status, among: Sequence[int]) -> Count:
        rows = sum(groups[group].rows[status] for group in among)
        is_more = status in counted.cut or any(status in groups[group].uncounted for group in among)
        most = up_to.get(status, 0)
        if is_more and rows <= most:
            is_all = not chosen and len(among) == len(groups)
            rows = max(rows, look.up_to(most + 1, status, () if is_all else sorted(among)))
            is_more = rows > most
        return Count(rows, is_more)

    names = look.by_name()
    expired = look.expired(settings.lease_seconds)
    return QueueStatus(
        table=settings.table,
        mode=settings.mode,
        database=settings.dsn.place,
        now=store.database.now(),
        total=total._replace(seconds_left=None, uncounted=total.uncounted | counted.cut),
        groups=groups,
        has_more_groups=bool(counted.cut),
        chosen_groups=chosen,
        ready=count(Status.NEW, served),
        fatal=count(Status.FATAL, list(groups)),
        paused_groups=paused,
        are_all_paused=are_all_paused,
        unserved_groups=unserved([group for group in served if groups[group].rows[Status.NEW]], runs),
        runs=runs,
        workers=[one for one in workers_of(store, in_progress.claimed) if serves(one.group_ids, chosen)],
        running=views.running(MAX_RUNNING),
        schedules=Schedules(store).all(),
        names=_by_task(names),
        unnamed=frozenset(status for status in Status if _rows_of(names, status) >= NAMES_SAMPLE),
        errors=views.recent_errors(MAX_ERRORS, chosen),
        this_hour=recent.this_hour,
        hour_before=recent.hour_before,
        hours=stats.sums((HOURS - 1) * HOUR_SECONDS, "hour"),
        lapsed=expired.rows,
        lapsed_seconds=expired.oldest_seconds,
        undated=look.undated(),
        orphaned=look.orphaned(),
    )


# ---- rows


def by_group(counts: Sequence[QueueCount]) -> dict[int, list[QueueCount]]:
    """The counts of each group, in order of ids."""
    of_group: dict[int, list[QueueCount]] = {}
    for count in sorted(counts, key=lambda one: one.group_id):
        of_group.setdefault(count.group_id, []).append(count)
    return of_group


def _group(counts: Sequence[QueueCount], running: int, recent: HourStats | None = None) -> GroupStatus:
    rows: dict[int, int] = dict.fromkeys(Status, 0)
    for count in counts:
        rows[count.status] = rows.get(count.status, 0) + count.rows
    # The counts may be from different moments.
    claimed = max(rows[Status.IN_PROGRESS] - running, 0)
    status = GroupStatus(
        rows,
        _greatest(count.oldest_seconds for count in counts),
        _greatest(count.ready_seconds for count in counts),
        frozenset(count.status for count in counts if count.is_more),
        claimed,
        running,
    )
    return status._replace(seconds_left=seconds_left(status, recent))


def seconds_left(group: GroupStatus, recent: HourStats | None) -> float | None:
    """How long a group will take, by its mean time in this hour and the one before, and the number of running tasks."""
    mean = recent and recent.mean_run_seconds
    if mean is None or not (group.claimed or group.running):
        return None
    left = group.rows[Status.NEW] + group.claimed + group.running
    return left * max(mean, MIN_TASK_SECONDS) / max(group.running, 1)


def sum_of(several: Sequence[GroupStatus]) -> GroupStatus:
    """Several groups as one."""
    rows: dict[int, int] = {}
    for one in several:
        for status, count in one.rows.items():
            rows[status] = rows.get(status, 0) + count
    return GroupStatus(
        rows,
        _greatest(one.oldest_new_seconds for one in several),
        _greatest(one.oldest_ready_seconds for one in several),
        frozenset().union(*(one.uncounted for one in several)),
        sum(one.claimed for one in several),
        sum(one.running for one in several),
    )


def _greatest(ages: Iterable[float | None]) -> float | None:
    return max((age for age in ages if age is not None), default=None)


def _by_task(names: Sequence[NameCount]) -> dict[str, dict[int, int]]:
    by_task: dict[str, dict[int, int]] = {}
    for one in names:
        rows = by_task.setdefault(one.task, {})
        rows[one.status] = rows.get(one.status, 0) + one.rows
    ordered = sorted(by_task.items(), key=lambda item: (-sum(item[1].values()), item[0]))
    return dict(ordered[:MAX_NAMES])


def _rows_of(names: Sequence[NameCount], status: int) -> int:
    return sum(one.rows for one in names if one.status == status)


# ---- workers


def workers_of(store: Store, claimed: Mapping[int, int]) -> list[WorkerProcess]:
    """The workers of all hosts, oldest first; `claimed` has their unstarted tasks. Raises DatabaseError."""
    here, workers = host_name(), []
    for worker in store.processes.all():
        is_here = worker.host == here
        ended = True if worker.ended_at else has_ended(worker.pid, worker.identity) if is_here else None
        workers.append(worker._replace(claimed=claimed.get(worker.number, 0), is_here=is_here, has_ended=ended))
    return workers


def mark_gone(store: Store, tasks: Sequence[TaskRow]) -> int:
    """Mark tasks whose process is known to have ended. Returns how many."""
    running = [task for task in tasks if task.state == "running"]
    try:
        numbers = {worker.number for worker in workers_of(store, {}) if worker.has_ended} if running else ()
    except DatabaseError:  # e.g. without the right to read them
        return 0
    for task in running:
        claim = task.columns["claim"]
        task.is_gone = isinstance(claim, int) and number_of(claim) in numbers
    return sum(task.is_gone for task in running)
