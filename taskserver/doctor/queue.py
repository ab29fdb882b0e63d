"""What the rows of a queue and the record of its runs say: whether cron runs it, and what needs a person."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from math import isfinite

from ..lifecycle import Status
from ..printable import age
from ..schedule import INSTALLS
from ..settings import Settings
from ..stores import Store
from ..stores.facts import QueueFacts
from ..stores.rows import LastRun, QueueCount
from ..stores.schedules import Schedules, StoredSchedule
from ..stores.tables import ALL_GROUPS
from .findings import Finding, ok, unknown, warning

NEXT_ROWS = 1000
"""So many rows of each kind are looked at for the names of callables."""
DAY_SECONDS = 86_400
RECENT_SECONDS = 7 * DAY_SECONDS
"""What is recorded of runs before that is of hosts and crontab lines that are gone."""
LEAST_LATE_SECONDS = 3600
MOST_GROUPS_TOLD = 10
MOST_SCHEDULES_TOLD = 3


def facts_of(store: Store, settings: Settings) -> QueueFacts:
    """What stands in the queue. Raises DatabaseError."""
    return store.queue_facts(NEXT_ROWS, settings.lease_seconds + LEAST_LATE_SECONDS)


def findings(store: Store, facts: QueueFacts) -> Iterator[Finding]:
    """One for each check of the queue. Raises DatabaseError."""
    counts, runs, paused = store.counts(), store.runs(), store.paused_groups()
    yield _cron(runs)
    yield from _ended_badly(runs)
    yield _groups(counts, runs, paused)
    yield from _paused(counts, paused)
    yield _leases(facts)
    yield _fatal(counts)
    yield _far(facts)
    yield _stray(facts, counts)
    yield from _orphaned(facts)
    yield from _schedules(Schedules(store).all())


# ---- cron


def _cron(runs: Sequence[LastRun]) -> Finding:
    mend = "paste a line of crontab.example into your crontab; look at cron's mail, and at both paths in the line"
    if not runs:
        return warning("cron", "no worker ran yet", "tasks stay where they are", mend)
    newest = sorted(runs, key=lambda run: _age(run.started_seconds_ago))
    stopped = [newest[0]] if _is_late(newest[0]) else _stopped(_recent(newest))
    if stopped:
        found = "; ".join(_told(run) for run in stopped[:MOST_GROUPS_TOLD])
        return warning("cron", found, "cron seems to have stopped: tasks stay where they are", mend)
    found = "; ".join(_told(run) for run in newest[:MOST_GROUPS_TOLD])
    if all(run.every_seconds is None for run in runs):
        return unknown("cron", found, "one run may have been by hand: look again after the next")
    return ok("cron", found)


def _stopped(runs: Sequence[LastRun]) -> list[LastRun]:
    """Those that should have begun again since, and whose groups no run takes that is in time."""
    in_time = _in_time(runs)
    if any(_takes_all(run) for run in in_time):
        return []
    served = _served(in_time)
    return [run for run in runs if _is_late(run) and (_takes_all(run) or not _served([run]) <= served)]


def _in_time(runs: Sequence[LastRun]) -> list[LastRun]:
    return [run for run in runs if not _is_late(run)]


def _is_late(run: LastRun) -> bool:
    return _age(run.started_seconds_ago) > _late_after(run)


def _told(run: LastRun) -> str:
    # Where two lines of the same groups begin in one minute, there is nothing to be told of it.
    every = f", {age(run.every_seconds)} after the one before" if (run.every_seconds or 0) >= 1 else ""
    every += "" if run.ended_at or not _is_late(run) else ", and did not end"
    ago = _age(run.started_seconds_ago)
    began = f"{age(ago)} ago" if isfinite(ago) else "at an instant that cannot be"
    return f"last run for {run.groups} on {run.host} {began}{every}"


def _late_after(run: LastRun) -> float:
    """Seconds after which the next run should have begun."""
    # One that is at work leaves no room for those that cron begins meanwhile: they leave before they are recorded.
    if run.every_seconds is None or not run.ended_at:
        return DAY_SECONDS
    return max(3 * run.every_seconds, LEAST_LATE_SECONDS)


def _age(seconds: float | None) -> float:
    # One that lies ahead was forged, or its clock was wrong: it says nothing of when a worker ran.
    return float("inf") if seconds is None or seconds < -LEAST_LATE_SECONDS else float(seconds)


def _ended_badly(runs: Sequence[LastRun]) -> Iterator[Finding]:
    ended_badly = [run for run in _recent(runs) if run.reason == "error"]
    if ended_badly:
        yield warning(
            "runs",
            f"ended with an error: {'; '.join(map(_told, ended_badly[:MOST_GROUPS_TOLD]))}",
            "what it had claimed waits until its lease ends",
            "cron's mail, or TASKSERVER_LOG, has the line that it ended with",
        )


# ---- groups


def _groups(counts: Sequence[QueueCount], runs: Sequence[LastRun], paused: Sequence[int]) -> Finding:
    words = told_of_groups(counts, runs, paused)
    if not runs:
        return unknown("groups", "which groups workers serve is not known yet", "tasks of others stay where they are")
    if words is None:
        return ok("groups", "workers serve every group that holds new tasks")
    return warning(
        "groups",
        words,
        "these tasks stay where they are",
        "name the group in the crontab line, or leave GROUP_IDS out there, or mend what adds these tasks",
    )


def unserved(counts: Sequence[QueueCount], runs: Sequence[LastRun], paused: Sequence[int] = ()) -> list[QueueCount]:
    """The new tasks of groups that no worker takes which is in time; none where none is, as it is cron then.

    Those of paused groups are not meant to be taken.
    """
    in_time = _in_time(runs)
    if not in_time or any(_takes_all(run) for run in in_time):
        return []
    served = _served(in_time).union(paused)
    return [count for count in counts if count.status == Status.NEW and count.group_id not in served]


def told_of_groups(counts: Sequence[QueueCount], runs: Sequence[LastRun], paused: Sequence[int] = ()) -> str | None:
    """The same in a sentence; None where every group is served."""
    several = unserved(counts, runs, paused)
    if not several:
        return None
    rows = sum(count.rows for count in several)
    served = _served(_in_time(runs))
    idle = served - {count.group_id for count in counts}
    return (
        f"{rows} new task{'s' if rows != 1 else ''} in group{'s' if len(several) > 1 else ''} "
        f"{_listed([count.group_id for count in several])}, which no worker takes: "
        f"they serve {_listed(served)}" + (f", and no task stands in {_listed(idle)}" if idle else "")
    )


def _paused(counts: Sequence[QueueCount], paused: Sequence[int]) -> Iterator[Finding]:
    if words := told_of_paused(counts, paused):
        yield ok("paused", words)


def told_of_paused(counts: Sequence[QueueCount], paused: Sequence[int]) -> str | None:
    """Which groups are paused, and what waits there; None where none is."""
    if not paused:
        return None
    rows = sum(count.rows for count in counts if count.status == Status.NEW and count.group_id in paused)
    one = len(paused) == 1
    return (
        f"group{'' if one else 's'} {_listed(paused)} {'is' if one else 'are'} paused, with {rows} new "
        f"task{'' if rows == 1 else 's'}: client.py resume GROUP has workers take them again"
    )


def _recent(runs: Sequence[LastRun]) -> list[LastRun]:
    return [run for run in runs if _age(run.started_seconds_ago) <= RECENT_SECONDS]


def _served(runs: Sequence[LastRun]) -> set[int]:
    return {int(group) for run in runs for group in run.group_ids.split(",") if group.isascii() and group.isdigit()}


def _takes_all(run: LastRun) -> bool:
    # A list that was too long for the record ends in a checksum.
    return run.group_ids == ALL_GROUPS or "..." in run.group_ids


def _listed(groups: Collection[int]) -> str:
    shown = sorted(groups)[:MOST_GROUPS_TOLD]
    return ", ".join(map(str, shown)) + (" …" if len(groups) > MOST_GROUPS_TOLD else "")


# ---- rows


def _leases(facts: QueueFacts) -> Finding:
    if not facts.lapsed:
        return ok("leases", "no claim is left from workers that vanished")
    return warning(
        "leases",
        f"{facts.lapsed} claims ended up to {age(facts.lapsed_seconds)} ago, and no run took them back",
        "their workers vanished, and no later run came",
        "see that cron runs worker.py: any run takes them back",
    )


def _fatal(counts: Sequence[QueueCount]) -> Finding:
    rows = sum(count.rows for count in counts if count.status == Status.FATAL)
    if not rows:
        return ok("fatal", "no task is fatal")
    return warning(
        "fatal",
        f"{rows} task{' is' if rows == 1 else 's are'} fatal",
        "they failed for good, and wait for a person",
        "client.py errors counts them, client.py show ID has the whole error, and client.py retry ID runs one again",
    )


def _far(facts: QueueFacts) -> Finding:
    if not facts.far:
        return ok("due_dates", "no task is due in 2037 or later")
    return warning(
        "due_dates",
        f"{facts.far} tasks are due in 2037 or later",
        "a due date that far is mostly a mistake, and many databases end in January 2038",
        "look at them with client.py list --status waiting, and mend what adds them",
    )


def _stray(facts: QueueFacts, counts: Sequence[QueueCount]) -> Finding:
    strange = sum(count.rows for count in counts if count.status not in set(Status))
    if not facts.undated and not strange:
        return ok("stray", "every row has a status that comes to an end")
    return warning(
        "stray",
        f"{facts.undated} tasks wait for no instant (status 5 without due_at), {strange} have a status that is none",
        "no worker ever takes them",
        "set their status to 0, and mend what adds them",
    )


def _orphaned(facts: QueueFacts) -> Iterator[Finding]:
    if facts.orphaned:
        yield warning(
            "orphaned",
            f"{facts.orphaned} tasks wait for others that are gone or over, and nothing tells them",
            "a parent was deleted by hand, or they were added without due_at; they never start",
            "client.py reclaim looks at them: what is gone counts as done",
        )


# ---- schedules


def _schedules(schedules: Sequence[StoredSchedule]) -> Iterator[Finding]:
    faulty = [stored for stored in schedules if stored.fault is not None]
    if faulty:
        yield warning(
            "schedules", _told_of_faults(faulty), "no task comes of them", "; ".join(dict.fromkeys(map(_mend, faulty)))
        )
    elif schedules:
        first = schedules[0]
        yield ok(
            "schedules",
            f"{len(schedules)}, of which nothing is wrong; "
            f"next comes {first.schedule.name}, at {first.next_at[:19]} UTC",
        )


def _told_of_faults(faulty: Sequence[StoredSchedule]) -> str:
    told = [f"{stored.schedule.name}: {stored.fault}" for stored in faulty[:MOST_SCHEDULES_TOLD]]
    more = len(faulty) - len(told)
    return "; ".join([*told, f"and {more} more"] if more else told)


def _mend(stored: StoredSchedule) -> str:
    # What this host lacks, its fault says how to get: a schedule given anew would lack it still.
    if INSTALLS in (stored.fault or ""):
        return "install the package, as said there"
    return "client.py schedule NAME … again, or client.py unschedule NAME"
