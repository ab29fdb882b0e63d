"""client.py status: what waits, what became of the rest, and when which worker last ran."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..doctor.queue import told_of_groups, told_of_paused, unserved
from ..lifecycle import Status
from ..printable import age, printable
from ..server import TaskServer
from ..settings import load_settings
from ..stores.rows import LastRun, QueueCount, TellingTask
from ..stores.schedules import Schedules, StoredSchedule
from ..stores.stats import HourStats, Stats
from . import stats
from .output import as_json, instant_as_json, print_table, status_name
from .program import Exit

MOST_TELLING = 20


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser("status", help="rows by group and status, the oldest new one, the last runs")
    parser.add_argument("--json", action="store_true", help="print JSON alone")
    parser.set_defaults(run=run)


def run(folder: Path, options: argparse.Namespace) -> int:
    with TaskServer.from_settings(load_settings(folder)) as server:
        server.store.check_tables()
        counts, runs, paused = server.store.counts(), server.store.runs(), server.store.paused_groups()
        schedules = Schedules(server.store).all()
        this_hour, hour_before = Stats(server.store).recent()
        telling = server.store.telling(MOST_TELLING + 1)
    if options.json:
        report = _report(server, counts, runs, paused) | {"schedules": [*map(_schedule_report, schedules)]}
        report |= {"this_hour": stats.report(this_hour, "hour"), "hour_before": stats.report(hour_before, "hour")}
        report["running"] = [_telling_report(task) for task in telling[:MOST_TELLING]]
        print(as_json(report))
    else:
        _show(server, counts, runs, paused)
        _show_telling(telling)
        _show_hours(this_hour, hour_before)
        _show_schedules(schedules)
    return Exit.OK


def _report(
    server: TaskServer, counts: Sequence[QueueCount], runs: Sequence[LastRun], paused: Sequence[int]
) -> dict[str, Any]:
    groups = {count.group_id: _empty_row() | {"oldest_new_seconds": None} for count in counts}
    total: dict[str, Any] = _empty_row()
    for count in counts:
        name = status_name(count.status)
        groups[count.group_id][name] = count.rows
        total[name] = total.get(name, 0) + count.rows
        if count.oldest_seconds is not None:
            groups[count.group_id]["oldest_new_seconds"] = count.oldest_seconds
    return {
        "table": server.settings.table,
        "mode": server.settings.mode,
        "groups": [{"group_id": group_id} | row for group_id, row in sorted(groups.items())],
        "total": total,
        "oldest_new_seconds": _oldest(counts),
        "runs": [_run_report(run) for run in runs],
        "unserved_groups": [count.group_id for count in unserved(counts, runs, paused)],
        "paused_groups": list(paused),
    }


def _run_report(run: LastRun) -> dict[str, Any]:
    report: dict[str, Any] = run._asdict() | {"failed": run.failed, "every_seconds": run.every_seconds}
    report["started_at"] = instant_as_json(run.started_at)
    report["ended_at"] = instant_as_json(run.ended_at)
    return report


def _show(server: TaskServer, counts: Sequence[QueueCount], runs: Sequence[LastRun], paused: Sequence[int]) -> None:
    print(f"{server.settings.table} in {server.settings.dsn.place}, mode {server.settings.mode}")
    if not counts:
        print("no tasks")
    else:
        report = _report(server, counts, runs, paused)
        names = list(report["total"])
        rows = [
            [row["group_id"], *(row.get(name, 0) for name in names), age(row["oldest_new_seconds"])]
            for row in report["groups"]
        ]
        rows.append(["all", *report["total"].values(), age(report["oldest_new_seconds"])])
        print_table(["group", *(name.replace("_", " ") for name in names), "oldest new"], rows)
    print()
    if not runs:
        print("no worker ran yet: is worker.py in a crontab?", file=sys.stderr)
    for run in runs:
        print(printable(_run_line(run)))
    for words in (told_of_groups(counts, runs, paused), told_of_paused(counts, paused)):
        if words:
            print(words)


def _run_line(run: LastRun) -> str:
    failed = f", {run.failed} to be tried again" if run.failed else ""
    lost = f", {run.lost} lost" if run.lost else ""
    ended = f"ended: {run.reason}" if run.ended_at else f"not ended (pid {run.pid} runs, or was killed)"
    return (
        f"last run on {run.host} for {run.groups}: began {age(run.started_seconds_ago)} ago, {ended}; "
        f"{run.taken} taken up, {run.done} done{failed}, {run.fatal} fatal{lost}, {run.released} released"
    )


def _show_telling(tasks: Sequence[TellingTask]) -> None:
    for task in tasks[:MOST_TELLING]:
        print(printable(f"task {task.id} {task.task} has run for {age(task.seconds)}: {task.progress}"))
    if len(tasks) > MOST_TELLING:
        print("and other tasks that tell how far they have come")


def _telling_report(task: TellingTask) -> dict[str, Any]:
    return task._asdict() | {"progress": task.progress._asdict()}


def _show_hours(this: HourStats, last: HourStats) -> None:
    if any(hour.attempts or hour.fatal for hour in (this, last)):
        print(f"since {this.hour[11:16]} UTC: {_hour_words(this)}; in the hour before: {_hour_words(last)}")


def _hour_words(one: HourStats) -> str:
    counts = {"done": one.done, "failed": one.failed, "fatal": one.fatal, "lost": one.lost}
    return ", ".join(f"{count} {name}" for name, count in counts.items() if count or name == "done")


def _schedule_report(stored: StoredSchedule) -> dict[str, Any]:
    report = stored.schedule._asdict() | stored._asdict() | {"next_at": instant_as_json(stored.next_at)}
    del report["schedule"]
    return report


def _show_schedules(schedules: Sequence[StoredSchedule]) -> None:
    if not schedules:
        return
    print()
    print_table(
        ["schedule", "task", "comes", "next"],
        [[row.schedule.name, row.schedule.task, row.schedule.timing, _when(row.next_seconds)] for row in schedules],
    )
    for row in schedules:
        if row.fault:
            print(printable(f"schedule {row.schedule.name}: {row.fault}"))


def _when(seconds: float | None) -> str:
    if seconds is None or -1 < seconds <= 0:
        return "now"
    return f"in {age(seconds)}" if seconds > 0 else f"late by {age(-seconds)}"


def _oldest(counts: Sequence[QueueCount]) -> float | None:
    return max((count.oldest_seconds for count in counts if count.oldest_seconds is not None), default=None)


def _empty_row() -> dict[str, Any]:
    return {status_name(status): 0 for status in Status}
