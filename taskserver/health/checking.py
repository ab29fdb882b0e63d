"""The judgement of `client.py check`: OK, warning or critical, by limits, on the overview that all others show.

Ready and fatal tasks, the oldest ready one, lapsed leases and silent workers are judged by limits. What the verdict
finds beside them counts as a warning where somebody has to act.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from enum import IntEnum
from math import isfinite
from typing import NamedTuple

from ..messages.text import age
from ..model.task import Status
from ..stores.queue.counts import Counts
from ..stores.records import ErrorCount, LastRun
from .acceptance import Acceptances, read_accepted
from .coverage import groups_in, late_after_seconds, names_all_groups, seconds_since_start
from .overview import Overview, Queue, read_overview, rows_by_group
from .verdict import MENDS, Level, VerdictReason, fatal_in_words, judge

SHORT_SECONDS = 1000
"""A shorter span is told in seconds, as its limits are."""


class State(IntEnum):
    """What monitoring programs call it; each is an exit code."""

    OK = 0
    WARNING = 1
    CRITICAL = 2


class Limit(NamedTuple):
    """The greatest values that are well, and that are no more than a warning."""

    warning: float
    critical: float | None = None
    """None: no value is critical."""

    def state_of(self, value: float) -> State:
        if self.critical is not None and value > self.critical:
            return State.CRITICAL
        return State.WARNING if value > self.warning else State.OK


class Limits(NamedTuple):
    """What one check is to hold."""

    ready: Limit | None = None
    age: Limit = Limit(3600, 3 * 3600)
    """Seconds for which a task may be ready."""
    fatal: Limit = Limit(0, 9)
    silence: Limit | None = None
    """Seconds since the last run began; None: as cron's own rhythm tells."""
    groups: tuple[int, ...] = ()
    """Those of which ready and fatal tasks count; none: all."""


class Count(NamedTuple):
    """How many tasks there are."""

    rows: int
    is_more: bool = False
    """Whether there are more, which were not counted."""

    def __str__(self) -> str:
        return f"{self.rows}{'+' if self.is_more else ''}"


class Measured(NamedTuple):
    """The values that limits are for."""

    ready: Count
    fatal: Count
    oldest_group: int | None
    """The group whose ready task has waited for the longest time; None where none waits."""
    oldest_seconds: float
    lapsed: int
    silence_seconds: float
    """Since the last run began; 0 while a worker is at work, infinite where none ran."""


class Problem(NamedTuple):
    """One thing that is not well."""

    name: str
    """As in verdict.VerdictReason."""
    state: State
    short: str
    """For a line that names them all."""
    words: str
    mend: str


class Judgement(NamedTuple):
    """What a check has found."""

    problems: Sequence[Problem]
    """The worst first."""
    accepted: Sequence[Problem]
    """Those that a person has accepted."""
    measured: Measured
    limits: Limits
    silence: Limit
    """The limit of silence that held."""
    acceptances: Acceptances
    errors: Sequence[ErrorCount]
    """What tasks failed with last; nothing where only some groups are judged."""
    now: str
    """The database's clock, as text in UTC."""

    @property
    def state(self) -> State:
        """The worst state of the problems."""
        return max((problem.state for problem in self.problems), default=State.OK)


def check(queue: Queue, limits: Limits) -> Judgement:
    """Judge a queue; changes nothing. Raises DatabaseError, also where the tables are not of this version."""
    overview = read_overview(queue)
    counts = Counts(queue.store.database)
    if limits.groups:  # an overview stops after so many groups
        overview = overview._replace(groups=rows_by_group(counts.by_group(limits.groups).counts))
    measured = measure(overview, limits, counts.up_to)
    return judge_by_limits(overview, limits, measured, read_accepted(queue.store))


# ---- values


def measure(overview: Overview, limits: Limits, up_to: Callable[[int, Status, Sequence[int]], int]) -> Measured:
    """The values of a queue; tasks of paused groups are not ready.

    `up_to` counts the rows of a status in these groups (none: in all), so many at most: an overview stops before.
    """
    groups = set(limits.groups or overview.groups).intersection(overview.groups)
    served = groups.difference(overview.paused_groups)

    def count(status: Status, limit: Limit | None, among: set[int]) -> Count:
        rows = sum(overview.groups[group].by_status[status] for group in among)
        most = int(max(limit.warning, limit.critical or 0)) if limit else -1
        if rows > most:
            return Count(rows, any(status in overview.groups[group].uncounted for group in among))
        is_all = not limits.groups and among == groups
        counted = up_to(most + 1, status, () if is_all else sorted(among)) if is_all or among else 0
        return Count(max(rows, counted), counted > most)

    waits = {group: seconds for group in served if (seconds := overview.groups[group].oldest_ready_seconds) is not None}
    oldest_group = max(waits, key=lambda group: (waits[group], -group), default=None)
    return Measured(
        ready=count(Status.NEW, limits.ready, served),
        fatal=count(Status.FATAL, limits.fatal, groups),
        oldest_group=oldest_group,
        oldest_seconds=0.0 if oldest_group is None else waits[oldest_group],
        lapsed=overview.lapsed.rows,
        silence_seconds=_silence(overview, limits.groups),
    )


def _serves(group_ids: str, groups: Sequence[int]) -> bool:
    """Whether a run of these groups takes tasks of one of those (none: of any)."""
    return not groups or names_all_groups(group_ids) or bool(groups_in(group_ids).intersection(groups))


def _runs(overview: Overview, groups: Sequence[int]) -> list[LastRun]:
    return [run for run in overview.runs if _serves(run.group_ids, groups)]


def _silence(overview: Overview, groups: Sequence[int]) -> float:
    """How long no run began that serves one of these groups (none: any); 0 while such a worker is at work."""
    if any(overview.is_at_work(one) and _serves(one.process.group_ids, groups) for one in overview.processes):
        return 0.0
    return max(min(map(seconds_since_start, _runs(overview, groups)), default=float("inf")), 0.0)


def _rhythm(runs: Sequence[LastRun]) -> Limit:
    """The silence after which all of these runs are late."""
    newest = min(map(seconds_since_start, runs), default=0.0)
    left = [late_after_seconds(run) - seconds_since_start(run) for run in runs]
    return Limit(max(newest, 0.0) + max(left) if left and isfinite(newest) else 0.0)


# ---- judgement


def judge_by_limits(overview: Overview, limits: Limits, measured: Measured, accepted: Acceptances) -> Judgement:
    """The judgement on these values; what was accepted does not count."""
    problems = sorted(_problems(overview, limits, measured), key=lambda problem: -problem.state)
    return Judgement(
        [problem for problem in problems if problem.name not in accepted.by_name],
        [problem for problem in problems if problem.name in accepted.by_name],
        measured,
        limits,
        limits.silence or _rhythm(_runs(overview, limits.groups)),
        accepted,
        () if limits.groups else overview.errors,
        overview.now,
    )


LOOKED_AT = ("failing", "schedules")
"""Reasons that are warnings, too, where tasks go on by themselves: a mail about them comes in time."""
BY_LIMITS = ("cron", "waiting", "ready", "fatal", "leases")
"""Names of what is judged here, and not by the verdict's own limits."""


def _problems(overview: Overview, limits: Limits, measured: Measured) -> Iterator[Problem]:
    reasons = judge(overview).reasons
    yield from _cron(overview, limits, measured)
    yield from _waiting(limits, measured)
    yield from _ready(limits, measured)
    yield from _fatal(limits, measured)
    for reason in reasons:
        if reason.name == "runs":
            state = State.CRITICAL if reason.level is Level.ACT else State.WARNING
            yield Problem("runs", state, "the last run failed before any task", reason.words, reason.mend)
        elif reason.name == "leases":
            yield Problem("leases", State.WARNING, f"{measured.lapsed} lapsed", reason.words, reason.mend)
        elif reason.name not in BY_LIMITS and (reason.level is Level.ACT or reason.name in LOOKED_AT):
            yield _of_verdict(reason)


def _of_verdict(reason: VerdictReason) -> Problem:
    return Problem(reason.name, State.WARNING, reason.words, reason.words, reason.mend)


def _cron(overview: Overview, limits: Limits, measured: Measured) -> Iterator[Problem]:
    seconds, runs = measured.silence_seconds, _runs(overview, limits.groups)
    state = (limits.silence or _rhythm(runs)).state_of(seconds)
    if state and (limits.silence is None or not runs):
        state = State.CRITICAL if _waits(overview, limits.groups) else State.WARNING
    if state and not overview.runs:
        yield Problem("cron", state, "no worker ran yet", "no worker ran yet", MENDS["cron"])
    elif state and not runs:
        words = f"no run serves group{'s' if len(limits.groups) > 1 else ''} {', '.join(map(str, limits.groups))}"
        yield Problem("cron", state, words, words, "name the group in the crontab line, or leave GROUP_IDS out there")
    elif state:
        short = f"no run for {span(seconds)}" if isfinite(seconds) else "the last run began at no instant that can be"
        yield Problem("cron", state, short, f"cron seems to have stopped: {short}", MENDS["cron"])


def _waits(overview: Overview, among: Sequence[int]) -> bool:
    """Whether a task is ready in one of these groups (none: in any) that is not paused."""
    groups = set(among or overview.groups).intersection(overview.groups).difference(overview.paused_groups)
    return any(overview.groups[group].by_status[Status.NEW] for group in groups)


def _waiting(limits: Limits, measured: Measured) -> Iterator[Problem]:
    state = limits.age.state_of(measured.oldest_seconds)
    if state:
        short = f"group {measured.oldest_group} waits {span(measured.oldest_seconds)}"
        words = f"a ready task of group {measured.oldest_group} has waited for {age(measured.oldest_seconds)}"
        yield Problem("waiting", state, short, words, MENDS["waiting"])


def _ready(limits: Limits, measured: Measured) -> Iterator[Problem]:
    state = limits.ready.state_of(measured.ready.rows) if limits.ready else State.OK
    if state:
        are = "task is" if str(measured.ready) == "1" else "tasks are"
        yield Problem("ready", state, f"{measured.ready} ready", f"{measured.ready} {are} ready", MENDS["waiting"])


def _fatal(limits: Limits, measured: Measured) -> Iterator[Problem]:
    state = limits.fatal.state_of(measured.fatal.rows)
    if state:
        words = fatal_in_words(str(measured.fatal))
        yield Problem("fatal", state, f"{measured.fatal} fatal", words, MENDS["fatal"])


def span(seconds: float) -> str:
    """A span of time as `412 s`, or `3 h` where it is long."""
    return f"{seconds:.0f} s" if seconds < SHORT_SECONDS else age(seconds)
