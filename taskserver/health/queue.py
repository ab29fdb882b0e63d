"""Checks of a queue's rows and of its record of runs: whether cron runs it, and which rows need a person."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Sequence
from math import isfinite
from pathlib import Path

from ..messages.programs import CLIENT, INSTALLS, IS_INSTALLED, WORKER
from ..messages.text import age
from ..model.task import Status
from ..settings.load import Settings
from ..stores import Store
from ..stores.queue.counts import Counts, ExpiredClaims
from ..stores.queue.schedules import StoredSchedule
from ..stores.records import OTHER, LastRun, QueueCount
from .coverage import (
    Paused,
    describe_paused,
    describe_resuming,
    describe_unserved,
    groups_served,
    in_time,
    is_late,
    is_stuck,
    paused_of,
    seconds_since_start,
    takes_all_groups,
)
from .finding import Finding, ok, unknown, warning

RECENT_SECONDS = 7 * 86_400
"""Older records of runs belong to removed hosts and crontab lines."""
MIN_LAPSED_SECONDS = 3600
"""The next run may still reclaim a lease that expired later than that."""
MAX_RUNS_NAMED = 10
MAX_SCHEDULES_NAMED = 3


def names_in(store: Store, schedules: Sequence[StoredSchedule]) -> tuple[str, ...]:
    """The callables of the next rows and of schedules, each once. Raises DatabaseError."""
    to_run = (Status.NEW, Status.ERROR, Status.WAITING)
    named = {one.task for one in Counts(store.database).by_name() if one.status in to_run}
    return tuple(sorted(named.union(stored.schedule.task for stored in schedules)))


def findings(store: Store, schedules: Sequence[StoredSchedule], settings: Settings) -> Iterator[Finding]:
    """One finding for each check of the queue. Raises DatabaseError."""
    look, counts, runs = Counts(store.database), store.views.counts(), store.views.runs()
    paused = paused_of(counts, *store.claims.paused())
    yield _cron(runs, settings.folder)
    yield from _ended_badly(runs)
    yield _groups(counts, runs, paused.groups)
    yield from _paused(counts, paused)
    yield _leases(look.expired(settings.lease_seconds + MIN_LAPSED_SECONDS))
    yield _fatal(counts)
    yield _stray(look.undated(), counts)
    yield from _orphaned(look.orphaned())
    yield from _schedules(schedules)


# ---- cron


def _cron(runs: Sequence[LastRun], folder: Path) -> Finding:
    fix = f"{_line_of_cron(folder)} into your crontab; look at cron's mail, and at both paths in the line"
    if not runs:
        return warning("cron", "no worker ran yet", "tasks stay where they are", fix)
    newest = sorted(runs, key=seconds_since_start)
    if is_late(newest[0]):
        stopped = newest[:1]
    else:
        stopped = _stopped(_recent(newest))
        fix += f"; if you removed that line, wait: it is named until {age(RECENT_SECONDS)} after its last run"
    found = "; ".join(map(_describe_run, (stopped or newest)[:MAX_RUNS_NAMED]))
    if stopped:
        return warning("cron", found, "cron seems to have stopped: tasks stay where they are", fix)
    if all(run.every_seconds is None for run in runs):
        return unknown("cron", found, "one run may have been by hand: look again after the next")
    return ok("cron", found)


def _line_of_cron(folder: Path) -> str:
    if not IS_INSTALLED:
        return "paste a line of crontab.example"
    # As a rule the command is beside Python; pip has another place for the commands of a user.
    program = Path(sys.executable).with_name(WORKER)
    words = [str(program)] if program.exists() else [sys.executable, "-m", "taskserver", "worker"]
    return f"paste */5 * * * * {shlex.join([*words, '--folder', str(folder)])}"


def _stopped(runs: Sequence[LastRun]) -> list[LastRun]:
    """The late runs whose groups no run in time serves."""
    prompt = in_time(runs)
    if any(map(takes_all_groups, prompt)):
        return []
    served = groups_served(prompt)
    return [run for run in runs if is_late(run) and (takes_all_groups(run) or not groups_served([run]) <= served)]


def _recent(runs: Sequence[LastRun]) -> list[LastRun]:
    return [run for run in runs if seconds_since_start(run) <= RECENT_SECONDS]


def _describe_run(run: LastRun) -> str:
    # Two crontab lines of the same groups may begin in one minute: the time between them says nothing.
    every = f", {age(run.every_seconds)} after the one before" if (run.every_seconds or 0) >= 1 else ""
    every += "" if run.ended_at or not is_late(run) else ", and did not end"
    ago = seconds_since_start(run)
    began = f"{age(ago)} ago" if isfinite(ago) else "at an instant that cannot be"
    return f"last run for {run.groups} on {run.host} {began}{every}"


def _ended_badly(runs: Sequence[LastRun]) -> Iterator[Finding]:
    ended_badly = [run for run in _recent(runs) if run.reason == "error"]
    if ended_badly:
        yield warning(
            "runs",
            f"ended with an error: {'; '.join(map(_describe_run, ended_badly[:MAX_RUNS_NAMED]))}",
            "it started no task, and gave back what it had claimed"
            if all(map(is_stuck, ended_badly))
            else "what it had claimed waits until its lease ends",
            "cron's mail, or TASKSERVER_LOG, has the line that it ended with",
        )


# ---- groups


def _groups(counts: Sequence[QueueCount], runs: Sequence[LastRun], paused: Sequence[int]) -> Finding:
    words = describe_unserved(counts, runs, paused)
    if not runs:
        return unknown("groups", "which groups workers serve is not known yet", "tasks of others stay where they are")
    if words is None:
        return ok("groups", "workers serve every group that holds new tasks")
    return warning(
        "groups",
        words,
        "these tasks stay where they are",
        "name the group in the crontab line, or leave GROUP_IDS out there, or fix what adds these tasks",
    )


def _paused(counts: Sequence[QueueCount], paused: Paused) -> Iterator[Finding]:
    if words := describe_paused(counts, paused):
        yield ok("paused", f"{words}: {describe_resuming(paused)}")


# ---- rows


def _leases(lapsed: ExpiredClaims) -> Finding:
    if not lapsed.rows:
        return ok("leases", "no lease has expired for long")
    return warning(
        "leases",
        f"{lapsed.rows} leases expired up to {age(lapsed.oldest_seconds)} ago, and no run reclaimed them",
        "their workers died, and no later run came",
        f"see that cron runs {WORKER}: any run reclaims them",
    )


def _fatal(counts: Sequence[QueueCount]) -> Finding:
    rows = sum(count.rows for count in counts if count.status == Status.FATAL)
    if not rows:
        return ok("fatal", "no task is fatal")
    return warning(
        "fatal",
        f"{rows} task{' is' if rows == 1 else 's are'} fatal",
        "they failed for good: no worker retries them",
        f"{CLIENT} errors counts them, {CLIENT} show ID has the whole error, and {CLIENT} retry ID runs one again",
    )


def _stray(undated: int, counts: Sequence[QueueCount]) -> Finding:
    strange = sum(count.rows for count in counts if count.status == OTHER)
    if not undated and not strange:
        return ok("stray", "every row has a status that workers know")
    return warning(
        "stray",
        f"{undated} tasks have status 3 or 5, but no due_at and no parent; {strange} have an unknown status",
        "no worker ever takes them",
        "set the status to 0, and fix what adds such rows",
    )


def _orphaned(rows: int) -> Iterator[Finding]:
    if rows:
        yield warning(
            "orphaned",
            f"{rows} tasks wait only for parents that are deleted or have ended",
            "a parent was deleted by hand, or they were added without due_at; they never start",
            f"run {CLIENT} reclaim: a missing parent counts as done",
        )


# ---- schedules


def _schedules(schedules: Sequence[StoredSchedule]) -> Iterator[Finding]:
    faulty = [stored for stored in schedules if stored.fault is not None]
    if faulty:
        faults = [f"{stored.schedule.name}: {stored.fault}" for stored in faulty[:MAX_SCHEDULES_NAMED]]
        if len(faulty) > len(faults):
            faults.append(f"and {len(faulty) - len(faults)} more")
        fixes = "; ".join(dict.fromkeys(map(_fix, faulty)))
        yield warning("schedules", "; ".join(faults), "they add no tasks", fixes)
    elif schedules:
        first = schedules[0]
        words = f"{len(schedules)} without a fault; the next is {first.schedule.name}, at {first.next_at[:19]} UTC"
        yield ok("schedules", words)


def _fix(stored: StoredSchedule) -> str:
    # If this host lacks a package, the fault says how to install it; the schedule itself is right.
    if INSTALLS in (stored.fault or ""):
        return "install the package, as said there"
    return f"{CLIENT} schedule NAME … again, or {CLIENT} unschedule NAME"
