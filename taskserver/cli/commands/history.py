"""client.py stats, prune and compact: hourly stats, the deletion of old rows, and their disk space."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...errors import InvalidTask
from ...messages.programs import CLIENT
from ...messages.text import age, count_of, megabytes
from ...server import TaskServer
from ...stores.queue.pruning import KINDS, Pruning
from ...stores.queue.stats import NO_CALLABLE, HourStats, total, totals_by
from ..terminal import arguments
from ..terminal.arguments import SINCE, span
from ..terminal.output import Amount, as_json, headed, in_column, in_units, largest, note, print_table, stats_as_json

BY = {"hour": "hour", "group": "group_id", "task": "task"}
"""The choices of --by, and the column by which each of them sums."""
NO_STATS_THEN = "no stats of that time (workers write them once a minute, and at the end of a run)"
PRUNED_AS = {kind: f"{kind} task" for kind in KINDS} | {"stats": "stats row"}


def add_stats(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "stats", description="show by the hour what was done, and how long it ran and waited"
    )
    arguments.add(parser, "--since", default="24h", help=f"{SINCE}; default %(default)s")
    arguments.add(parser, "--group", "--task")
    parser.add_argument(
        "--by", choices=list(BY), default="hour", metavar="WHAT", help="sum by hour, group or task; default hour"
    )
    arguments.add(parser, "--json")
    parser.set_defaults(run=_stats)


def _stats(server: TaskServer, options: argparse.Namespace) -> None:
    server.store.tables.check()
    chosen = [
        one
        for one in server.stats(options.since)
        if one.group_id in (options.groups or [one.group_id]) and one.task == (options.task or one.task)
    ]
    totals = totals_by(BY[options.by], chosen)
    if options.json:
        print(as_json([stats_as_json(one, BY[options.by]) for one in totals]))
    elif not totals:
        print(NO_STATS_THEN)
    else:
        _print_stats(totals, options.by)


def _print_stats(totals: Sequence[HourStats], by: str) -> None:
    shown, rest = (totals, ()) if by == "hour" else largest(totals, lambda one: one.done + one.failed + one.lost)
    rows = [[_label(one, by), *_cells(one)] for one in shown]
    if rest:
        rows.append([f"{len(rest)} more {by}s", *_cells(total(rest))])
    if len(rows) > 1:
        rows.append(["all", *_cells(total(totals))])
    head = headed("hour") if by == "hour" else by
    counts = ("done", "failed", "fatal", "lost")
    print_table(
        [head, *counts, "ran", "mean", "slowest", "mean wait", "longest wait"], rows, spare=("ran", "longest wait")
    )


def _label(one: HourStats, by: str) -> object:
    if by == "hour":
        return in_column(one.hour, 16)
    return one.group_id if by == "group" else one.task or NO_CALLABLE


def _cells(one: HourStats) -> list[object]:
    seconds = (one.ran_seconds, one.mean_run_seconds, one.slowest_seconds)
    waits = (one.mean_wait_seconds, one.longest_wait_seconds)
    return [one.done, one.failed, one.fatal, one.lost, *(in_units(value or None) for value in (*seconds, *waits))]


# ---- prune


def add_prune(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "prune", description="delete old rows: done and archived tasks, or the kinds you name"
    )
    parser.add_argument(
        "--older-than",
        metavar="AGE",
        type=span,
        required=True,
        help="only what ended longer ago than AGE, such as 30d, 12h or 4w",
    )
    parser.add_argument("--done", action="store_true", help="done tasks, as mode mark leaves them")
    parser.add_argument("--fatal", action="store_true", help="fatal tasks")
    parser.add_argument("--cancelled", action="store_true", help="cancelled tasks")
    parser.add_argument("--archived", action="store_true", help="the archive, to which mode move moves done tasks")
    parser.add_argument("--stats", action="store_true", help=f"the stats that {CLIENT} stats shows")
    parser.add_argument("--keys", action="store_true", help="also tasks that hold a unique_key: the key is free then")
    parser.add_argument(
        "--archive-to",
        metavar="FILE",
        type=Path,
        help="before that, add the rows to this gzip file, a line of JSON each; name it .jsonl.gz",
    )
    arguments.add(parser, "--dry-run", help="only count what would be deleted")
    parser.set_defaults(run=_prune)


def _prune(server: TaskServer, options: argparse.Namespace) -> None:
    server.store.tables.check()
    named = [kind for kind in KINDS if getattr(options, kind)]
    pruning = Pruning(server.store, options.older_than, named, options.keys, options.archive_to)
    pruned = pruning.count() if options.dry_run else pruning.run()
    counts = ", ".join(count_of(getattr(pruned, kind), PRUNED_AS[kind]) for kind in pruning.kinds)
    print(f"{counts}, older than {age(options.older_than)}: {'would be deleted' if options.dry_run else 'deleted'}")
    if pruned.held:
        note(f"{count_of(pruned.held, 'task')} left: other programs hold them, or a foreign key or trigger")


# ---- compact


def add_compact(subparsers: Any) -> None:
    parser = subparsers.add_parser("compact", description="give the disk space of deleted rows back")
    parser.add_argument("--yes", action="store_true", help="do not ask, even if adding and running tasks must wait")
    parser.set_defaults(run=_compact)


def _compact(server: TaskServer, options: argparse.Namespace) -> None:
    server.store.tables.check()
    database = server.store.database
    rebuilds = database.dialect.facts().rebuilds(database)
    before = rebuilds[0].sizes(database)
    for rebuild in rebuilds:
        tables = rebuild.sizes(database)
        if not tables:
            continue
        seconds = max(1, sum(table.used for table in tables) / rebuild.bytes_a_second)
        names = tables[0].name if len(tables) == 1 else count_of(len(tables), "table")
        print(f"{names}: {rebuild.words}; about {age(seconds)}", flush=True)
        if rebuild.locks_writers and not (options.yes or _is_confirmed()):
            raise InvalidTask("stopped here, as tasks would have to wait: answer y, or add --yes")
        with database.without_timeout():
            for table in tables:
                rebuild.run(database, table.name)
    now = {table.name: table.size for table in rebuilds[0].sizes(database)}
    rows = [[table.name, *(Amount(megabytes(size)) for size in (table.size, now[table.name]))] for table in before]
    print_table(("table", "before", "now"), rows)


def _is_confirmed() -> bool:
    if not sys.stdin.isatty():
        return False
    print("Go on? [y/N] ", end="", flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")
