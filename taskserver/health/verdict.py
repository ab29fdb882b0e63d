"""The verdict on a queue: well, look or act, with its reasons in words and what to do about each."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from enum import IntEnum
from typing import NamedTuple

from ..messages.programs import CLIENT, WORKER
from ..messages.text import age, time_of_day
from ..model.task import Status
from ..stores.records import LastRun
from .coverage import in_time, is_stuck, seconds_since_start
from .overview import Overview

LONG_WAIT_SECONDS = 3600.0
"""A ready task that waits for longer is worth a look."""
MANY_IN_ERROR = 20
"""So many tasks in error at once are worth a look, though others go well."""
FEW_ATTEMPTS = 5
"""Fewer attempts say nothing about how many fail."""
MENDS = {
    "cron": f"look whether the line of {WORKER} stands in the crontab, and at cron's mail; {CLIENT} doctor says more",
    "fatal": (
        f"{CLIENT} errors, or the status page, counts what they failed with; once that is mended, {CLIENT} retry, or "
        "the page, runs them again; one that was lost may have done its work: look before"
    ),
    "failing": f"{CLIENT} errors, or the status page, counts what they failed with",
    "waiting": f"more workers (a second crontab line, or --processes), or fewer tasks; {CLIENT} stats shows the pace",
}
"""What to do about reasons that `client.py check` finds, too, by limits of its own."""
FAILED_EARLY = f"cron's mail, or TASKSERVER_LOG, has the line that it ended with; {CLIENT} doctor looks for the cause"
DIED_EARLY = f"a setup (TASKSERVER_SETUP) may need more memory than the host allows; {CLIENT} doctor calls it"


class Level(IntEnum):
    """How much a queue needs a person, from not at all to now."""

    WELL = 0
    LOOK = 1
    """Tasks run, but somebody should look."""
    ACT = 2
    """Tasks do not run, or wait for a person."""


class VerdictReason(NamedTuple):
    """One thing that is not well."""

    name: str
    """A word that stays the same, by which the reason is known and accepted."""
    level: Level
    words: str
    """What was found, in a sentence without a full stop."""
    mend: str
    """What to do about it."""


class Verdict(NamedTuple):
    """The judgement on a queue."""

    level: Level
    """The worst level of the reasons."""
    reasons: tuple[VerdictReason, ...]
    """The worst first."""
    accepted: tuple[VerdictReason, ...]
    """Those that a person has accepted; they do not count."""

    @property
    def words(self) -> str:
        """The verdict in one sentence."""
        if not self.reasons:
            return "All is well"
        first = self.reasons[0].words
        return f"{first[0].upper()}{first[1:]}"


def judge(overview: Overview, accepted: Collection[str] = ()) -> Verdict:
    """The verdict on a queue; the names of `accepted` reasons do not count."""
    found = sorted(_reasons(overview), key=lambda reason: -reason.level)
    counted = tuple(reason for reason in found if reason.name not in accepted)
    return Verdict(
        max((reason.level for reason in counted), default=Level.WELL),
        counted,
        tuple(reason for reason in found if reason.name in accepted),
    )


def _reasons(overview: Overview) -> Iterator[VerdictReason]:
    stopped = list(_cron(overview))
    yield from stopped
    yield from _runs(overview)
    yield from _groups(overview)
    yield from _fatal(overview)
    yield from _schedules(overview, bool(stopped))
    if not stopped:  # else they wait for that
        yield from _waiting(overview)
    yield from _failing(overview)
    yield from _leases(overview)
    yield from _lost(overview)
    yield from _stray(overview)


def _cron(overview: Overview) -> Iterator[VerdictReason]:
    level = Level.ACT if overview.total.by_status[Status.NEW] else Level.LOOK
    if not overview.runs:
        if not overview.processes:
            yield VerdictReason("cron", level, "no worker ran yet", MENDS["cron"])
    elif not in_time(overview.runs) and not overview.is_worked_at:
        newest = min(map(seconds_since_start, overview.runs))
        yield VerdictReason(
            "cron", level, f"cron seems to have stopped: the last run began {_ago(newest)}", MENDS["cron"]
        )


def _ago(seconds: float) -> str:
    return f"{age(seconds)} ago" if seconds < float("inf") else "at an instant that cannot be"


def _runs(overview: Overview) -> Iterator[VerdictReason]:
    for run in in_time(overview.runs):
        the_run = f"the last run for {run.groups} on {run.host}"
        if is_stuck(run):
            level = Level.ACT if overview.total.by_status[Status.NEW] else Level.LOOK
            yield VerdictReason("runs", level, f"{the_run} ended with an error and could start no task", FAILED_EARLY)
            return
        if _died_with_claims(run, overview):
            words = f"{the_run} was killed, or ended its process, before its first task began"
            yield VerdictReason("runs", Level.ACT, words, DIED_EARLY)
            return


def _died_with_claims(run: LastRun, overview: Overview) -> bool:
    """Whether the process of a run is gone, with claimed tasks of which it had started none."""
    has_started = {task.number for task in overview.running}  # counts are told after a task, so not if that kills it
    return run.ended_at is None and any(
        (process.host, process.pid, process.taken) == (run.host, run.pid, 0)
        and process.number in overview.claimed_by_number
        and process.number not in has_started
        for process, _, has_ended in overview.processes
        if has_ended
    )


def _groups(overview: Overview) -> Iterator[VerdictReason]:
    if overview.unserved:
        mend = "name the group in the crontab line, or leave GROUP_IDS out there, or mend what adds these tasks"
        yield VerdictReason("groups", Level.ACT, overview.unserved, mend)
    if overview.paused and _is_held(overview):
        yield VerdictReason("paused", Level.LOOK, overview.paused, overview.resuming)


def _is_held(overview: Overview) -> bool:
    """Whether a paused group has new tasks."""
    groups = (overview.groups[group] for group in overview.paused_groups if group in overview.groups)
    return any(rows.by_status[Status.NEW] for rows in groups)


def _fatal(overview: Overview) -> Iterator[VerdictReason]:
    rows = overview.total.by_status[Status.FATAL]
    if rows:
        more = "more than " if Status.FATAL in overview.total.uncounted else ""
        recent = sum(hour.fatal for hour in overview.hours)
        words = fatal_in_words(f"{more}{rows}")
        yield VerdictReason("fatal", Level.ACT if recent else Level.LOOK, words, MENDS["fatal"])


def fatal_in_words(rows: str) -> str:
    """That so many tasks, `1` or `more than 1000`, are fatal."""
    if rows == "1":
        return "1 task is fatal: it does not run again by itself"
    return f"{rows} tasks are fatal: they do not run again by themselves"


def _schedules(overview: Overview, has_stopped: bool) -> Iterator[VerdictReason]:
    faulty = [stored for stored in overview.schedules if stored.fault is not None]
    if faulty:
        first = faulty[0]
        words = f"schedule {first.schedule.name}: {first.fault}"
        more = f"; and {len(faulty) - 1} more" if len(faulty) > 1 else ""
        yield VerdictReason("schedules", Level.ACT, words + more, f"{CLIENT} status names each, with what is wrong")
        return
    late = min((stored.next_seconds or 0.0 for stored in overview.schedules), default=0.0)
    if late < -LONG_WAIT_SECONDS and not has_stopped:
        words = f"a schedule is late by {age(-late)}"
        yield VerdictReason("schedules", Level.LOOK, words, f"{CLIENT} status shows which; any run adds its task")


def _waiting(overview: Overview) -> Iterator[VerdictReason]:
    left_out = {*overview.paused_groups, *overview.unserved_groups}
    waits = {
        group: rows.oldest_ready_seconds
        for group, rows in overview.groups.items()
        if group not in left_out and rows.oldest_ready_seconds is not None
    }
    group, seconds = max(waits.items(), key=lambda item: item[1], default=(0, 0.0))
    if seconds > LONG_WAIT_SECONDS:
        words = f"a ready task of group {group} has waited for {age(seconds)}"
        yield VerdictReason("waiting", Level.LOOK, words, MENDS["waiting"])


def _failing(overview: Overview) -> Iterator[VerdictReason]:
    failed, done = (
        sum(getattr(hour, column) for hour in (overview.hour_before, overview.this_hour))
        for column in ("failed", "done")
    )
    in_error = overview.total.by_status[Status.ERROR]
    # Where no task is in error or fatal any more, those that failed have gone well since, or are gone.
    some_are_failed = in_error or overview.total.by_status[Status.FATAL]
    if some_are_failed and failed > done and failed + done >= FEW_ATTEMPTS:
        words = f"{failed} of {failed + done} attempts failed since {time_of_day(overview.hour_before.hour)}"
        yield VerdictReason("failing", Level.LOOK, words, MENDS["failing"])
    elif in_error >= MANY_IN_ERROR:
        words = f"{in_error} tasks are in error: they failed, and come again by themselves"
        yield VerdictReason("failing", Level.LOOK, words, MENDS["failing"])


def _leases(overview: Overview) -> Iterator[VerdictReason]:
    rows, seconds = overview.lapsed
    if rows:
        are = "task of a worker that vanished is" if rows == 1 else "tasks of workers that vanished are"
        words = f"{rows} {are} not taken back, though the lease ended {age(seconds)} ago"
        yield VerdictReason("leases", Level.LOOK, words, f"any run takes them back: see that cron runs {WORKER}")


def _lost(overview: Overview) -> Iterator[VerdictReason]:
    lost = sum(hour.lost for hour in overview.hours)
    gone = sum(bool(one.has_ended) for one in overview.processes)
    if lost:
        attempts = "1 attempt was lost: its worker" if lost == 1 else f"{lost} attempts were lost: their workers"
        words = f"in the last day {attempts} vanished"
    elif gone:
        words = f"{'1 worker is' if gone == 1 else f'{gone} workers are'} gone: killed, or a task hung or exited"
    if lost or gone:
        mend = (
            "cron's mail names a task that hung past its timeout; if the host ends programs after a time or for "
            f"memory, have {WORKER} end before: --max-time, --max-memory"
        )
        yield VerdictReason("lost", Level.LOOK, words, mend)


def _stray(overview: Overview) -> Iterator[VerdictReason]:
    rows = overview.undated + overview.strange
    if rows:
        start = "task never starts" if rows == 1 else "tasks never start"
        why = ["status 3 or 5 without due_at"] * bool(overview.undated) + ["a status that does not exist"] * bool(
            overview.strange
        )
        words = f"{rows} {start}: {' or '.join(why)}"
        yield VerdictReason("stray", Level.ACT, words, "set the status to 0, and fix what adds such rows")
