"""The judges of a queue, with their limits. Status, check, page and metrics only show their findings.

Each judge returns one finding, even if all is well: the doctor shows those, too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from ..errors import ModuleBroken
from ..messages.finding import Finding, Level, Look, critical, findings_of, found, ok, warning
from ..messages.programs import CLIENT, WORKER
from ..messages.text import age, count_of, time_of_day
from ..model.task import LOST, Status
from ..settings.load import Settings
from ..stores import Store
from ..stores.records import ErrorCount, LastRun, WorkerProcess
from .accepted import read_accepted
from .coverage import groups_served, in_time, is_stuck, seconds_since_start, stopped, unserved
from .status import QueueStatus, read_status

SHORT_SECONDS = 1000
"""A shorter span is shown in seconds, like its limits."""
FEW_ATTEMPTS = 5
"""With fewer attempts the share of failures means nothing."""
MAX_NAMED = 3
"""Groups, runs and schedules in one sentence."""
MAX_GROUPS_NAMED = 10
ERRORS = f"{CLIENT} errors, or the status page, groups them by error"
LOOK_AT_CRON = f"look whether the line of {WORKER} is in the crontab, and at cron's mail; {CLIENT} doctor says more"
NAME_GROUP = "name the group in the crontab line, or leave GROUP_IDS out there, or fix what adds these tasks"
MORE_WORKERS = f"more workers (a second crontab line, or --processes), or fewer tasks; {CLIENT} stats shows the pace"


class Limit(NamedTuple):
    """Greater values are a warning, or critical; None: never critical."""

    warning: float
    critical: float | None = None

    def level_of(self, value: float) -> Level:
        if self.critical is not None and value > self.critical:
            return Level.CRITICAL
        return Level.WARNING if value > self.warning else Level.OK


Limits = Mapping[str, Limit]
LIMITS: Limits = {
    "waiting": Limit(3600, 3 * 3600),  # seconds for which a task is ready
    "paused": Limit(86_400),  # the same of a paused group
    "fatal": Limit(0, 9),
    "failing": Limit(20),  # tasks in error at once
    "lost": Limit(0),
    "leases": Limit(0),
    "stray": Limit(0),
    "orphaned": Limit(0),
    "schedules": Limit(3600),  # seconds for which one is late
}
"""By the name of the finding. Without a given limit, `cron` (seconds since the last run began) is judged by its usual
interval, and `ready` (tasks) is always ok."""


# ---- workers


def cron(status: QueueStatus, limits: Limits) -> Finding:
    """Whether cron runs workers at its usual interval, and whether a line of a crontab has stopped."""
    fix = LOOK_AT_CRON
    why = "tasks stay where they are"
    level = _silence(status, limits)
    if level and not status.runs:
        words = "no worker ran yet"
        if status.chosen_groups:
            words = f"no run serves {in_words(status.chosen_groups)}"
        return found(level, words, why, fix)
    newest = min(status.runs, key=seconds_since_start, default=None)
    if level and newest:
        short = f"no run for {span(seconds_since_start(newest))}"
        return found(level, f"cron seems to have stopped: {_begun(newest)}", why, fix, short)
    at_work = [worker.group_ids for worker in status.workers if status.is_at_work(worker)]
    if "cron" not in limits and (late := stopped(status.runs, at_work)):
        words = f"cron seems to have stopped running a line: {'; '.join(map(_begun, late[:MAX_NAMED]))}"
        fix += "; if you removed that line, wait: it is named until 7 d after its last run"
        return warning(words, "tasks of its groups stay where they are", fix, "cron has stopped running a line")
    return ok(_begun(newest) if newest else "a worker is at work")


def _silence(status: QueueStatus, limits: Limits) -> Level:
    """The level if no run began recently; critical while tasks are ready."""
    seconds = silence_seconds(status)
    if "cron" in limits and status.runs:
        return limits["cron"].level_of(seconds)
    if not seconds or in_time(status.runs):
        return Level.OK
    return Level.CRITICAL if status.ready.rows else Level.WARNING


def silence_seconds(status: QueueStatus) -> float:
    """Since the last run began; 0 while a worker runs, infinite if none ever ran."""
    if any(map(status.is_at_work, status.workers)):
        return 0.0
    return min(map(seconds_since_start, status.runs), default=float("inf"))


def _begun(run: LastRun) -> str:
    ago = seconds_since_start(run)
    began = f"{age(ago)} ago" if ago < float("inf") else "at an instant that is invalid"
    # Two crontab lines of the same groups may begin at once: the time between them means nothing.
    every = f", {age(run.every_seconds)} after the one before" if (run.every_seconds or 0) >= 1 else ""
    return f"the last run for {run.groups} on {run.host} began {began}{every}"


def runs(status: QueueStatus, limits: Limits) -> Finding:
    """Whether a run could start no task."""
    for run in in_time(status.runs):
        if is_stuck(run):
            level = Level.CRITICAL if status.ready.rows else Level.WARNING
            words = f"the last run for {run.groups} on {run.host} ended with an error and could start no task"
            fix = f"cron's mail, or TASKSERVER_LOG, has the error; {CLIENT} doctor looks for the cause"
            return found(level, words, "it released its tasks", fix, "the last run failed before any task")
    return ok("no run failed before its first task")


def lost(status: QueueStatus, limits: Limits) -> Finding:
    """Whether workers were killed while they ran tasks."""
    attempts = sum(hour.lost for hour in status.hours)
    gone = sum(bool(worker.has_ended) for worker in status.workers)
    level = limits["lost"].level_of(attempts + gone)
    if not level:
        return ok("no worker died in the last day")
    if attempts:
        words = f"{count_of(attempts, 'attempt')} {_was(attempts)} lost in the last day: the worker died"
    else:
        words = f"{count_of(gone, 'worker')} {_is(gone)} gone: killed, or a task hung or exited"
    fix = (
        "cron's mail names a task that hung past its timeout; if the host ends programs after a time or for memory, "
        f"let {WORKER} end before: --max-time, --max-memory"
    )
    return found(level, words, "a task that was lost runs again, or is fatal after its last attempt", fix)


def leases(status: QueueStatus, limits: Limits) -> Finding:
    """Whether tasks of dead workers were not reclaimed."""
    if not (level := limits["leases"].level_of(status.lapsed)):
        return ok("no expired lease waits to be reclaimed")
    words = (
        f"{count_of(status.lapsed, 'task')} of dead workers {_is(status.lapsed)} not reclaimed, though the lease "
        f"expired {age(status.lapsed_seconds)} ago"
    )
    fix = f"any run reclaims them: see that cron runs {WORKER}"
    return found(level, words, "their workers died, and no run came after", fix, f"{status.lapsed} expired")


# ---- groups


def groups(status: QueueStatus, limits: Limits) -> Finding:
    """Whether workers serve every group that has new tasks."""
    if not status.unserved_groups:
        return ok("workers serve every group that has new tasks")
    rows = sum(status.groups[group].rows[Status.NEW] for group in status.unserved_groups)
    served = groups_served(status.runs) or set()
    idle = served.difference(status.groups)
    words = (
        f"{count_of(rows, 'new task')} in {in_words(status.unserved_groups)}, which no worker takes: they serve "
        f"{_listed(served)}{f', and {_listed(idle)} have no task' if idle else ''}"
    )
    return warning(words, "these tasks stay where they are", NAME_GROUP)


def describe_unserved(among: Iterable[int], last_runs: Sequence[LastRun]) -> str | None:
    """The groups that no run on time serves, as text; None if all are served."""
    left_out = unserved(among, last_runs)
    if not left_out:
        return None
    return f"no worker takes tasks of {in_words(left_out)}: they serve {_listed(groups_served(last_runs) or ())}"


def paused(status: QueueStatus, limits: Limits) -> Finding:
    """Which groups are paused: a person did that, so it is ok unless it seems to be forgotten."""
    if not status.paused_groups and not status.are_all_paused:
        return ok("no group is paused")
    held = [status.groups[group] for group in status.paused_groups if group in status.groups]
    rows = sum(one.rows[Status.NEW] for one in held)
    one = len(status.paused_groups) == 1
    which = "all groups are" if status.are_all_paused else f"{in_words(status.paused_groups)} {'is' if one else 'are'}"
    resume = "--all" if status.are_all_paused else status.paused_groups[0] if one else "GROUP"
    words, how = f"{which} paused, with {count_of(rows, 'new task')}", f"{CLIENT} resume {resume} ends that"
    seconds = max((one.oldest_ready_seconds or 0.0 for one in held), default=0.0)
    if not (level := limits["paused"].level_of(seconds)):
        return ok(f"{words}: {how}")
    words += f", the oldest ready for {age(seconds)}"
    return found(level, words, "no worker takes these tasks", how, f"{which} paused")


# ---- tasks


def waiting(status: QueueStatus, limits: Limits) -> Finding:
    """How long the oldest ready task has waited, outside of paused groups."""
    group, seconds = oldest_ready(status)
    if group is None:
        return ok("no task waits for a worker")
    words = f"a ready task of group {group} has waited for {age(seconds)}"
    level, silence = limits["waiting"].level_of(seconds), _silence(status, limits)
    if level <= silence:  # it waits for cron, which has its own finding
        return ok(words)
    why, fix = "workers are behind", MORE_WORKERS
    if silence:
        why, fix = "no run began lately", LOOK_AT_CRON
    elif group in status.unserved_groups:
        why, fix = "no worker takes it", NAME_GROUP
    return found(level, words, why, fix, f"group {group} waits {span(seconds)}")


def oldest_ready(status: QueueStatus) -> tuple[int | None, float]:
    """The group whose ready task has waited the longest, outside of paused groups, and for how long."""
    waits = {
        group: rows.oldest_ready_seconds
        for group, rows in status.groups.items()
        if group not in status.paused_groups and rows.oldest_ready_seconds is not None
    }
    return max(waits.items(), key=lambda item: (item[1], -item[0]), default=(None, 0.0))


def ready(status: QueueStatus, limits: Limits) -> Finding:
    """How many tasks are ready."""
    are = "task is" if str(status.ready) == "1" else "tasks are"
    words = f"{status.ready} {are} ready"
    level = limits["ready"].level_of(status.ready.rows) if "ready" in limits else Level.OK
    if not level:
        return ok(words)
    return found(level, words, "workers are behind", MORE_WORKERS, f"{status.ready} ready")


def fatal(status: QueueStatus, limits: Limits) -> Finding:
    """How many tasks failed for good."""
    level = limits["fatal"].level_of(status.fatal.rows)
    if not level:
        return ok(count_of(status.fatal.rows, "fatal task"))
    one = str(status.fatal) == "1"
    words = f"{status.fatal} {'task is' if one else 'tasks are'} fatal: no worker retries {'it' if one else 'them'}"
    fix = f"{ERRORS}; fix the cause, then {CLIENT} retry, or the page, runs them again"
    if any(error.fatal and error.kind == LOST for error in status.errors):
        fix += "; one that was lost may have done its work: look before you retry it"
    return found(level, words, "what they do is not done", fix, f"{status.fatal} fatal")


def failing(status: QueueStatus, limits: Limits) -> Finding:
    """Whether a module cannot be imported, most attempts fail, or many tasks are in error."""
    why, in_error = "each is retried until its attempts are used up", status.total.rows[Status.ERROR]
    broken = [error for error in status.errors if error.kind == ModuleBroken.__name__ and error.rows > error.fatal]
    if broken:  # of several modules, prefer one that may still be broken
        return _of_module(min(broken, key=lambda one: _was_done_since(one, status)), status, why)
    hours = () if status.chosen_groups else (status.hour_before, status.this_hour)  # they count all groups
    failed, done = sum(hour.failed for hour in hours), sum(hour.done for hour in hours)
    # If no task is in error or fatal, the failed ones have succeeded since, or were deleted.
    if (in_error or status.fatal.rows) and failed > done and failed + done >= FEW_ATTEMPTS:
        words = f"{failed} of {failed + done} attempts failed since {time_of_day(status.hour_before.hour)}"
        return warning(words, why, ERRORS)
    if level := limits["failing"].level_of(in_error):
        return found(level, f"{in_error} tasks are in error and will be retried", why, ERRORS)
    return ok(f"{count_of(in_error, 'task')} in error")


def _of_module(error: ErrorCount, status: QueueStatus, why: str) -> Finding:
    failed, cause = f"{count_of(error.rows - error.fatal, 'task')} failed", error.line.removeprefix(f"{error.kind}: ")
    if _was_done_since(error, status):
        words = f"{failed} as a module could not be imported, and others were done since: {cause}"
        return warning(words, why, f"{CLIENT} doctor says whether the module is right now")
    fix = "workers retry these tasks by themselves once the module is right"
    return critical(f"{failed}: {cause}", why, fix, "a module cannot be imported")


def _was_done_since(error: ErrorCount, status: QueueStatus) -> bool:
    """Whether a newer worker has done a task: then the cause may be fixed."""
    workers: Sequence[LastRun | WorkerProcess] = (*status.runs, *status.workers)
    begun = [(one.started_at, one.done) for one in workers] + [(one.hour, one.done) for one in status.hours]
    return error.last_seen is not None and any(at and at > error.last_seen and done for at, done in begun)


def stray(status: QueueStatus, limits: Limits) -> Finding:
    """Whether rows have a status with which they never start."""
    rows = status.undated + status.strange
    if not (level := limits["stray"].level_of(rows)):
        return ok("every row has a status that workers know")
    why = ["status 3 or 5 without due_at"] * bool(status.undated) + ["an unknown status"] * bool(status.strange)
    words = f"{count_of(rows, 'task')} never start{'s' if rows == 1 else ''}: {' or '.join(why)}"
    return found(level, words, "no worker ever takes them", "set the status to 0, and fix what adds such rows")


def orphaned(status: QueueStatus, limits: Limits) -> Finding:
    """Whether tasks wait only for deleted tasks."""
    rows = status.orphaned
    if not (level := limits["orphaned"].level_of(rows)):
        return ok("no task waits only for tasks that are gone")
    words = f"{count_of(rows, 'task')} wait{'s' if rows == 1 else ''} only for tasks that were deleted or have ended"
    fix = f"run {CLIENT} reclaim: a missing task counts as done"
    return found(level, words, "they never start", fix)


def schedules(status: QueueStatus, limits: Limits) -> Finding:
    """Whether schedules are late, or can add no task."""
    silent = [stored for stored in status.schedules if stored.fault is not None or stored.is_silenced]
    if silent:
        faults = [f"schedule {one.schedule.name}: {one.fault or one.held}" for one in silent[:MAX_NAMED]]
        faults += [f"and {len(silent) - MAX_NAMED} more"] if len(silent) > MAX_NAMED else []
        fix = f"follow the advice there, or {CLIENT} schedule NAME … again, or {CLIENT} unschedule NAME"
        if all(one.fault is None for one in silent):
            fix = f"{CLIENT} show ID shows more, {CLIENT} cancel ID ends that task"
        short = f"{count_of(len(silent), 'silent schedule')}"
        return warning("; ".join(faults), "they add no tasks", fix, short)
    late = -min((stored.next_seconds or 0.0 for stored in status.schedules), default=0.0)
    level = limits["schedules"].level_of(late)
    if level and not _silence(status, limits):
        fix = f"{CLIENT} status shows which; any run adds its task"
        return found(level, f"a schedule is late by {age(late)}", "its task is not added", fix)
    return ok(f"{count_of(len(status.schedules), 'schedule')} without a fault")


JUDGES = [
    Look(one.__name__, one)
    for one in (cron, runs, groups, paused, waiting, ready, fatal, failing, lost, leases, stray, orphaned, schedules)
]


def judge(status: QueueStatus, limits: Limits = LIMITS) -> list[Finding]:
    """One finding of each judge, in their order."""
    return list(findings_of(JUDGES, status, limits))


def judged(store: Store, settings: Settings, limits: Limits = LIMITS, chosen_groups: Sequence[int] = ()) -> QueueStatus:
    """Read a queue, or some of its groups, with its findings; changes nothing. Raises DatabaseError."""
    most = {status: int(max(limits[name][0], limits[name][1] or 0)) for status, name in COUNTED if name in limits}
    status = read_status(store, settings, chosen_groups, most)
    accepted = read_accepted(store)
    counted, apart = accepted.split(worst_first(judge(status, limits)))
    return status._replace(findings=counted + accepted.findings, accepted=apart)


COUNTED = ((Status.NEW, "ready"), (Status.FATAL, "fatal"))
"""The statuses that are counted exactly up to a limit, and its name."""


def worst_first(findings: Iterable[Finding]) -> list[Finding]:
    """The findings that are not ok, worst first."""
    return sorted((one for one in findings if one.level), key=lambda one: -one.level)


# ---- words


def span(seconds: float) -> str:
    """`412 s`, or `3 h` if it is long."""
    if seconds == float("inf"):
        return "an unknown time"
    return f"{seconds:.0f} s" if seconds < SHORT_SECONDS else age(seconds)


def in_words(some: Collection[int]) -> str:
    """`group 3`, or `groups 3, 5`."""
    return f"group{'' if len(some) == 1 else 's'} {_listed(some)}"


def _listed(some: Collection[int]) -> str:
    first = sorted(some)[:MAX_GROUPS_NAMED]
    return ", ".join(map(str, first)) + (" …" if len(some) > MAX_GROUPS_NAMED else "")


def _is(rows: int) -> str:
    return "is" if rows == 1 else "are"


def _was(rows: int) -> str:
    return "was" if rows == 1 else "were"
