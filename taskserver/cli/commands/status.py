"""client.py status: prints the overview of a queue: rows by group and status, runs, running tasks, schedules."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from ...messages.printable import age, printable
from ...model.task import Status
from ...monitoring.coverage import seconds_since_start
from ...monitoring.overview import Overview, RowCounts, read_overview, sum_of
from ...server import TaskServer
from ...stores.database.records import LastRun, TellingTask
from ...stores.queue.schedules import StoredSchedule
from ...stores.queue.stats import HourStats
from ..terminal.instants import time_of_day
from ..terminal.output import MAX_LINES, as_json, instant_as_json, largest, print_table, stats_as_json, status_name


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser("status", help="rows by group and status, the oldest new one, the last runs")
    parser.add_argument("--json", action="store_true", help="print JSON alone")
    parser.set_defaults(run=run)


def run(server: TaskServer, options: argparse.Namespace) -> None:
    overview = read_overview(server)
    if options.json:
        print(as_json(_report(overview)))
    else:
        _show(overview)


# ---- for programs


def _report(overview: Overview) -> dict[str, Any]:
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
        "running": [task._asdict() | {"progress": task.progress._asdict()} for task in overview.running],
    }


def _group_report(group_id: int, rows: RowCounts) -> dict[str, Any]:
    # Numbers that are no status come last.
    report: dict[str, Any] = {"group_id": group_id} | dict.fromkeys(map(status_name, Status), 0)
    return report | {"oldest_new_seconds": rows.oldest_new_seconds} | _by_status_name(rows)


def _by_status_name(rows: RowCounts) -> dict[str, int]:
    return {status_name(status): count for status, count in rows.by_status.items()}


def _run_report(run: LastRun) -> dict[str, Any]:
    report: dict[str, Any] = run._asdict() | {"failed": run.failed, "every_seconds": run.every_seconds}
    report["started_at"] = instant_as_json(run.started_at)
    report["ended_at"] = instant_as_json(run.ended_at)
    return report


def _schedule_report(stored: StoredSchedule) -> dict[str, Any]:
    report = stored.schedule._asdict() | stored._asdict() | {"next_at": instant_as_json(stored.next_at)}
    del report["schedule"]
    return report


# ---- for people


def _show(overview: Overview) -> None:
    print(f"{overview.table} in {overview.database}, mode {overview.mode}")
    _show_rows(overview)
    print()
    _show_runs(overview.runs)
    for words in overview.warnings:
        print(words)
    _show_running(overview.running, overview.has_more_running)
    _show_hours(overview.this_hour, overview.hour_before)
    _show_schedules(overview.schedules)


def _show_rows(overview: Overview) -> None:
    if not overview.groups:
        print("no tasks")
        return
    statuses = list(overview.total.by_status)
    shown, rest = largest(list(overview.groups.items()), lambda group: sum(group[1].by_status.values()))
    more = [(f"{len(rest)} more groups", sum_of([rows for _, rows in rest]))] if rest else []
    print_table(
        ["group", *(status_name(status).replace("_", " ") for status in statuses), "oldest new"],
        [
            [label, *(rows.by_status.get(status, 0) for status in statuses), age(rows.oldest_new_seconds)]
            for label, rows in [*shown, *more, ("all", overview.total)]
        ],
    )


def _show_runs(runs: Sequence[LastRun]) -> None:
    if not runs:
        print("no worker ran yet: is worker.py in a crontab?", file=sys.stderr)
    shown, rest = largest(runs, lambda run: -seconds_since_start(run))
    for run in shown:
        print(printable(_run_line(run)))
    if rest:
        print(f"and {len(rest)} more runs, which began before: client.py status --json has them")


def _run_line(run: LastRun) -> str:
    failed = f", {run.failed} to be tried again" if run.failed else ""
    lost = f", {run.lost} lost" if run.lost else ""
    ended = f"ended: {run.reason}" if run.ended_at else f"not ended (pid {run.pid} runs, or was killed)"
    return (
        f"last run on {run.host} for {run.groups}: began {age(run.started_seconds_ago)} ago, {ended}; "
        f"{run.taken} taken up, {run.done} done{failed}, {run.fatal} fatal{lost}, {run.released} released"
    )


def _show_running(tasks: Sequence[TellingTask], has_more: bool) -> None:
    for task in tasks:
        print(printable(f"task {task.id} {task.task} has run for {age(task.seconds)}: {task.progress}"))
    if has_more:
        print("and other tasks that tell how far they have come")


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
        ["schedule", "task", "comes", "next"],
        [[row.schedule.name, row.schedule.task, row.schedule.timing, _when(row.next_seconds)] for row in shown],
    )
    if len(schedules) > MAX_LINES:
        print(f"and {len(schedules) - MAX_LINES} more schedules, which come later: client.py status --json has them")
    for row in shown:
        for words in filter(None, (row.fault, row.held)):
            print(printable(f"schedule {row.schedule.name}: {words}"))


def _when(seconds: float | None) -> str:
    if seconds is None or -1 < seconds <= 0:
        return "now"
    return f"in {age(seconds)}" if seconds > 0 else f"late by {age(-seconds)}"
