"""client.py status: what waits, what became of the rest, and when which worker last ran."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..doctor.queue import told_of_groups, unserved
from ..lifecycle import Status
from ..printable import age, printable
from ..server import TaskServer
from ..settings import load_settings
from ..stores.rows import LastRun, QueueCount
from .output import as_json, instant_as_json, print_table, status_name
from .program import Exit


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser("status", help="rows by group and status, the oldest new one, the last runs")
    parser.add_argument("--json", action="store_true", help="print JSON alone")
    parser.set_defaults(run=run)


def run(folder: Path, options: argparse.Namespace) -> int:
    with TaskServer.from_settings(load_settings(folder)) as server:
        server.store.check_tables()
        counts, runs = server.store.counts(), server.store.runs()
    if options.json:
        print(as_json(_report(server, counts, runs)))
    else:
        _show(server, counts, runs)
    return Exit.OK


def _report(server: TaskServer, counts: Sequence[QueueCount], runs: Sequence[LastRun]) -> dict[str, Any]:
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
        "unserved_groups": [count.group_id for count in unserved(counts, runs)],
    }


def _run_report(run: LastRun) -> dict[str, Any]:
    report: dict[str, Any] = run._asdict() | {"failed": run.failed, "every_seconds": run.every_seconds}
    report["started_at"] = instant_as_json(run.started_at)
    report["ended_at"] = instant_as_json(run.ended_at)
    return report


def _show(server: TaskServer, counts: Sequence[QueueCount], runs: Sequence[LastRun]) -> None:
    print(f"{server.settings.table} in {server.settings.dsn.place}, mode {server.settings.mode}")
    if not counts:
        print("no tasks")
    else:
        report = _report(server, counts, runs)
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
    if words := told_of_groups(counts, runs):
        print(words)


def _run_line(run: LastRun) -> str:
    failed = f", {run.failed} to be tried again" if run.failed else ""
    lost = f", {run.lost} lost" if run.lost else ""
    ended = f"ended: {run.reason}" if run.ended_at else f"not ended (pid {run.pid} runs, or was killed)"
    return (
        f"last run on {run.host} for {run.groups}: began {age(run.started_seconds_ago)} ago, {ended}; "
        f"{run.taken} taken up, {run.done} done{failed}, {run.fatal} fatal{lost}, {run.released} released"
    )


def _oldest(counts: Sequence[QueueCount]) -> float | None:
    return max((count.oldest_seconds for count in counts if count.oldest_seconds is not None), default=None)


def _empty_row() -> dict[str, Any]:
    return {status_name(status): 0 for status in Status}
