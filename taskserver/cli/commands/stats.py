"""client.py stats: tasks done, and how long they ran and waited, by hour, group or name."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from ...health.history import NO_CALLABLE, ended_attempts, totals_by
from ...server import TaskServer
from ...stores.queue.stats import HourStats, total
from ..terminal.arguments import SINCE, add_groups, since
from ..terminal.instants import headed, in_column
from ..terminal.output import as_json, in_units, largest, print_table, stats_as_json

DEFAULT_SINCE = "24h"
BY = {"hour": "hour", "group": "group_id", "task": "task"}
"""The choices of --by, and the column by which each of them sums."""
NOTHING = "no figures of that time (workers write them once a minute, and at the end of a run)"


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser("stats", help="what was done by the hour, how long it ran and how long it waited")
    parser.add_argument(
        "--since",
        metavar="WHEN",
        type=since,
        default=DEFAULT_SINCE,
        help=f"{SINCE}; default %(default)s",
    )
    add_groups(parser)
    parser.add_argument("--task", metavar="NAME", help="of the callable, as tasks.send_letter")
    parser.add_argument("--by", choices=list(BY), default="hour", metavar="WHAT", help=", ".join(BY))
    parser.add_argument("--json", action="store_true", help="print JSON alone")
    parser.set_defaults(run=run)


def run(server: TaskServer, options: argparse.Namespace) -> None:
    server.store.tables.check()
    found = server.stats(options.since)
    chosen = [
        one
        for one in found
        if one.group_id in (options.groups or [one.group_id]) and one.task == (options.task or one.task)
    ]
    totals = totals_by(BY[options.by], chosen)
    if options.json:
        print(as_json([stats_as_json(one, BY[options.by]) for one in totals]))
    elif not totals:
        print(NOTHING)
    else:
        _show(totals, options.by)


# ---- the table


def _show(totals: Sequence[HourStats], by: str) -> None:
    shown, rest = (totals, ()) if by == "hour" else largest(totals, ended_attempts)
    rows = [[_label(one, by), *_cells(one)] for one in shown]
    if rest:
        rows.append([f"{len(rest)} more {by}s", *_cells(total(rest))])
    if len(rows) > 1:
        rows.append(["all", *_cells(total(totals))])
    head = headed("hour") if by == "hour" else by
    print_table(
        [head, "done", "failed", "fatal", "lost", "ran", "mean", "slowest", "mean wait", "longest wait"],
        rows,
        unless_narrow=("longest wait", "lost", "mean wait", "slowest", "ran"),
    )


def _label(one: HourStats, by: str) -> object:
    if by == "hour":
        return in_column(one.hour, 16)
    return one.group_id if by == "group" else one.task or NO_CALLABLE


def _cells(one: HourStats) -> list[object]:
    seconds = (one.ran_seconds, one.mean_run_seconds, one.slowest_seconds)
    waits = (one.mean_wait_seconds, one.longest_wait_seconds)
    return [
        one.done,
        one.failed,
        one.fatal,
        one.lost,
        *(in_units(value or None) for value in (*seconds, *waits)),
    ]
