"""client.py status: prints the overview of a queue: rows by group and status, runs, running tasks, schedules."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from ...health.acceptance import Acceptances, read_accepted
from ...health.coverage import seconds_since_start
from ...health.overview import AtWork, NameCounts, Overview, RowCounts, is_heard_of, lives, read_overview, sum_of
from ...health.verdict import Verdict, judge
from ...messages.programs import CLIENT, WORKER
from ...messages.text import age, printable, time_of_day
from ...model.task import Status, name_of_status
from ...server import TaskServer
from ...stores.queue.schedules import StoredSchedule
from ...stores.queue.stats import HourStats
from ...stores.records import LastRun, RunningTask, WorkerProcess
from ...worker.result import BECAUSE, Reason, counts_in_words
from ..terminal.output import (
    COLOURS,
    MAX_LINES,
    Amount,
    accepted_report,
    as_json,
    error_as_json,
    instant_as_json,
    largest,
    painted,
    print_table,
    stats_as_json,
    status_name,
)

DONE_ROWS = {"delete": "done tasks are deleted", "move": "done tasks are moved away", "mark": "done tasks stay"}


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser("status", help="rows by group and status, the oldest new one, the last runs")
    parser.add_argument("--json", action="store_true", help="print JSON alone")
    parser.set_defaults(run=run)


def run(server: TaskServer, options: argparse.Namespace) -> None:
    overview, acceptances = read_overview(server), read_accepted(server.store)
    if options.json:
        print(as_json(_report(overview, acceptances)))
    else:
        _show(overview, acceptances)


# ---- for programs


def _report(overview: Overview, acceptances: Acceptances) -> dict[str, Any]:
    return {
        "table": overview.table,
        "mode": overview.mode,
        "groups": [_group_report(group_id, rows) for group_id, rows in overview.groups.items()],
        "total": _by_status_name(overview.total),
        "oldest_new_seconds": overview.total.oldest_new_seconds,
        "runs": [_run_report(run) for run in overview.runs],
        "unserved_groups": overview.unserved_groups,
        "paused_groups": overview.paused_groups,
        "all_paused": overview.are_all_paused,
        "schedules": [_schedule_report(stored) for stored in overview.schedules],
        "this_hour": stats_as_json(overview.this_hour, "hour"),
        "hour_before": stats_as_json(overview.hour_before, "hour"),
        "running": [_running_report(task) for task in overview.running],
        "processes": [_process_report(at_work, overview.running) for at_work in overview.processes],
        "paces": [{"group_id": group_id} | pace._asdict() for group_id, pace in overview.paces.items()],
        "in_progress": [_in_progress_report(group_id, *counts) for group_id, counts in overview.in_progress.items()],
        "verdict": _verdict_report(judge(overview, acceptances.by_name), acceptances),
        "oldest_ready_seconds": overview.total.oldest_ready_seconds,
        "waits": [_wait_report(group_id, rows) for group_id, rows in overview.groups.items()],
        "names": [{"task": one.task} | _by_status_name(one) for one in overview.names],
        "errors": [error_as_json(error) for error in overview.errors],
        "hours": [stats_as_json(one, "hour") for one in overview.hours],
        "lapsed": overview.lapsed._asdict(),
    }


def _group_report(group_id: int, rows: RowCounts) -> dict[str, Any]:
    # Numbers that are no status come last.
    report: dict[str, Any] = {"group_id": group_id} | dict.fromkeys(map(status_name, Status), 0)
    return report | {"oldest_new_seconds": rows.oldest_new_seconds} | _by_status_name(rows)


def _wait_report(group_id: int, rows: RowCounts) -> dict[str, Any]:
    uncounted = [status_name(status) for status in sorted(rows.uncounted)]
    return {"group_id": group_id, "oldest_ready_seconds": rows.oldest_ready_seconds, "uncounted": uncounted}


def _in_progress_report(group_id: int, claimed: int, running: int) -> dict[str, int]:
    return {"group_id": group_id, "claimed": claimed, "running": running}


def _by_status_name(rows: RowCounts | NameCounts) -> dict[str, int]:
    return {status_name(status): count for status, count in rows.by_status.items()}


def _run_report(run: LastRun) -> dict[str, Any]:
    report: dict[str, Any] = run._asdict() | {"failed": run.failed, "every_seconds": run.every_seconds}
    report["started_at"] = instant_as_json(run.started_at)
    report["ended_at"] = instant_as_json(run.ended_at)
    return report


def _schedule_report(stored: StoredSchedule) -> dict[str, Any]:
    report = stored.schedule._asdict() | stored._asdict() | {"next_at": instant_as_json(stored.next_at)}
    del report["schedule"]
    if stored.last is not None:
        ended = {"started_at": instant_as_json(stored.last.started_at), "status": name_of_status(stored.last.status)}
        report["last"] = stored.last._asdict() | ended
    return report


def _running_report(task: RunningTask) -> dict[str, Any]:
    report: dict[str, Any] = task._asdict() | {"progress": task.progress and task.progress._asdict()}
    del report["number"]
    return report


def _process_report(at_work: AtWork, running: Sequence[RunningTask]) -> dict[str, Any]:
    process = at_work.process
    report: dict[str, Any] = process._asdict() | {"is_here": at_work.is_here, "has_ended": at_work.has_ended}
    del report["number"], report["identity"]
    instants = {"started_at": process.started_at, "ended_at": process.ended_at}
    report |= {name: instant_as_json(instant) for name, instant in instants.items()}
    return report | {"running": [task.id for task in running if task.number == process.number]}


# ---- for people


def _show(overview: Overview, acceptances: Acceptances) -> None:
    print(f"{overview.table} in {overview.database}, mode {overview.mode} ({DONE_ROWS[overview.mode]})")
    _show_verdict(judge(overview, acceptances.by_name), acceptances)
    _show_rows(overview)
    print()
    _show_failures(overview)
    _show_runs(overview.runs, overview.processes)
    for words in overview.warnings:
        print(words)
    _show_work(overview)
    _show_hours(overview.this_hour, overview.hour_before)
    _show_schedules(overview.schedules)


def _show_verdict(verdict: Verdict, acceptances: Acceptances) -> None:
    if not verdict.reasons:
        print(painted("all is well", COLOURS["well"], sys.stdout))
    for reason in verdict.reasons:
        level = reason.level.name.lower()
        print(f"{painted(level, COLOURS[level], sys.stdout)}: {printable(reason.words)}; {printable(reason.mend)}")
    for reason in verdict.accepted:
        print(printable(f"accepted: {reason.words} ({acceptances.by_name[reason.name].reason})"))


def _show_rows(overview: Overview) -> None:
    if not overview.groups:
        print("no tasks")
        return
    in_progress = overview.in_progress
    shown, rest = largest(list(overview.groups.items()), lambda group: sum(group[1].by_status.values()))
    lines = [
        (str(group_id), rows, [in_progress.get(group_id, (0, 0))], _empty_in(overview, group_id))
        for group_id, rows in shown
    ]
    if rest:
        of_rest = [in_progress.get(group_id, (0, 0)) for group_id, _ in rest]
        lines.append((f"{len(rest)} more groups", sum_of([rows for _, rows in rest]), of_rest, ""))
    lines.append(("all", overview.total, list(in_progress.values()), ""))
    hidden = [Status.NEW, Status.IN_PROGRESS]
    if not overview.total.by_status.get(Status.CANCELLED):
        hidden.append(Status.CANCELLED)  # rare: the table has many columns
    others = [status for status in overview.total.by_status if status not in hidden]
    print_table(
        [
            "group",
            "new",
            "claimed",
            "running",
            *(status_name(status).replace("_", " ") for status in others),
            "oldest new",
            "empty in",
        ],
        [
            [
                label,
                _rows_in(rows, Status.NEW),
                *(sum(counts) for counts in zip((0, 0), *several, strict=True)),
                *(_rows_in(rows, status) for status in others),
                age(rows.oldest_new_seconds),
                empty_in,
            ]
            for label, rows, several, empty_in in lines
        ],
    )


def _verdict_report(verdict: Verdict, acceptances: Acceptances) -> dict[str, Any]:
    reasons, accepted = (
        {reason.name: reason._asdict() | {"level": reason.level.name.lower()} for reason in several}
        for several in (verdict.reasons, verdict.accepted)
    )
    return {
        "level": verdict.level.name.lower(),
        "words": verdict.words,
        "reasons": list(reasons.values()),
        # `reason` is the person's; what was found is in `words`.
        "accepted": accepted_report(accepted, acceptances),
    }


def _rows_in(rows: RowCounts, status: int) -> object:
    count = rows.by_status.get(status, 0)
    return Amount(f"{count}+") if status in rows.uncounted else count


def _show_failures(overview: Overview) -> None:
    """What becomes of tasks that failed."""
    error, fatal = (_rows_in(overview.total, status) for status in (Status.ERROR, Status.FATAL))
    if error:
        print(f"{error} in error: they failed, and come again by themselves; {CLIENT} list error")
    if fatal:
        print(f"{fatal} fatal: they do not come again by themselves; {CLIENT} list fatal, and {CLIENT} retry ID")


def _empty_in(overview: Overview, group_id: int) -> str:
    """After how long the tasks of a group will be done at the pace of late."""
    pace = overview.paces.get(group_id)
    return age(pace.seconds_left) if pace else ""


def _show_runs(runs: Sequence[LastRun], processes: Sequence[AtWork]) -> None:
    if not runs:
        sys.stdout.flush()  # in a file the table comes first, too
        print(f"no worker ran yet: is {WORKER} in a crontab?", file=sys.stderr)
    shown, rest = largest(runs, lambda run: -seconds_since_start(run))
    for run in shown:
        print(printable(_run_line(run, processes)))
    if rest:
        print(f"and {len(rest)} more runs, which began before: {CLIENT} status --json has them")


def _run_line(run: LastRun, processes: Sequence[AtWork]) -> str:
    often = f"; the one before began {age(run.every_seconds)} earlier" if run.every_seconds is not None else ""
    begin = f"last run on {run.host} for {run.groups}: began {age(run.started_seconds_ago)} ago"
    if any(_is_of(one.process, run) and lives(one) for one in processes):
        return f"{begin}, is at work{often}"
    is_gone = any(_is_of(one.process, run) and one.has_ended for one in processes)
    state = "is gone" if is_gone else "runs, or was killed"
    because = f" ({BECAUSE[Reason(run.reason)]})" if run.reason in set(Reason) else ""
    ended = f"ended: {run.reason}{because}" if run.ended_at else f"not ended (pid {run.pid} {state})"
    counts = counts_in_words(run.done, run.failed, run.fatal, run.lost)
    return f"{begin}, {ended}; {run.taken} taken up, {counts}, {run.released} released{often}"


def _may_be_gone(at_work: AtWork) -> bool:
    """Whether a process of another host, whose end cannot be seen here, was quiet for long."""
    return at_work.has_ended is None and not is_heard_of(at_work)


def _is_of(process: WorkerProcess, run: LastRun) -> bool:
    return not run.ended_at and (process.host, process.group_ids, process.pid) == (run.host, run.group_ids, run.pid)


def _show_work(overview: Overview) -> None:
    """Each worker at work, and the running tasks that it has."""
    left = list(overview.running)
    for at_work in overview.processes[:MAX_LINES]:
        own = [task for task in left if task.number == at_work.process.number]
        print(printable(_work_line(at_work, overview.claimed_by_number.get(at_work.process.number, 0), bool(own))))
        for task in own:
            left.remove(task)
            print(printable(f"  {_lost_words(task) if at_work.has_ended else _running_words(task)}"))
    if len(overview.processes) > MAX_LINES:
        print(f"and {len(overview.processes) - MAX_LINES} more workers: {CLIENT} status --json has them")
    for task in left:
        print(printable(f"{_running_words(task)} (which worker has it is not known)"))
    more = sum(overview.running_by_group.values()) - len(overview.running)
    if more > 0:
        print(f"and {more} more running tasks")


def _work_line(at_work: AtWork, claimed: int, has_tasks: bool) -> str:
    process = at_work.process
    # Another container may have this host's name, and processes of its own.
    is_known = at_work.has_ended is not None
    here = "" if not at_work.is_here else " (this host)" if is_known else " (as this host is named)"
    where = f"process {process.pid} on {process.host}{here} for {process.groups}"
    if at_work.has_ended:
        return f"gone: {where}: it was killed, or a task hung or exited"
    counts = counts_in_words(process.done, process.failed, process.fatal, process.lost)
    if _may_be_gone(at_work):
        return f"at work, or gone: {where}: it gave its last sign of life {age(process.seen_seconds_ago)} ago"
    now = f"; {claimed} claimed" if claimed else "" if has_tasks else "; it has no task now"
    return f"at work: {where}, since {age(process.started_seconds_ago)}: {counts}{now}"


def _running_words(task: RunningTask) -> str:
    progress = f": {task.progress}" if task.progress else ""
    return f"task {task.id} {task.task} has run for {age(task.seconds)}{progress}"


def _lost_words(task: RunningTask) -> str:
    return f"task {task.id} {task.task} was running there: once its lease is over, that attempt has failed"


def _show_hours(this: HourStats, last: HourStats) -> None:
    if any(hour.attempts or hour.fatal for hour in (this, last)):
        print(f"since {time_of_day(this.hour)}: {_hour_words(this)}; in the hour before: {_hour_words(last)}")


def _hour_words(one: HourStats) -> str:
    counts = {"done": one.done, "failed": one.failed, "fatal": one.fatal, "lost": one.lost}
    return ", ".join(f"{count} {name}" for name, count in counts.items() if count or name == "done")


def _show_schedules(schedules: Sequence[StoredSchedule]) -> None:
    if not schedules:
        return
    shown = schedules[:MAX_LINES]
    print()
    print_table(
        ["schedule", "task", "runs", "next", "last"],
        [
            [
                *(row.schedule.name, row.schedule.task, row.schedule.timing),
                *(_when(row.next_seconds), row.last.words if row.last else ""),
            ]
            for row in shown
        ],
    )
    if len(schedules) > MAX_LINES:
        print(f"and {len(schedules) - MAX_LINES} more schedules, which come later: {CLIENT} status --json has them")
    for row in shown:
        for words in filter(None, (row.fault, row.held)):
            print(printable(f"schedule {row.schedule.name}: {words}"))


def _when(seconds: float | None) -> str:
    if seconds is None or -1 < seconds <= 0:
        return "now"
    return f"in {age(seconds)}" if seconds > 0 else f"late by {age(-seconds)}"
