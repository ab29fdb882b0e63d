"""client.py stats: what was done in each hour, how long it ran and how long it waited, as a table and as bars."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from ..new_task import read_instant
from ..printable import printable
from ..server import TaskServer
from ..settings import load_settings
from ..stores.stats import COLUMNS, HourStats, total
from .live_line import terminal_width
from .output import Amount, as_json, instant_as_json, print_table
from .program import Exit
from .usage import add_groups, span

DEFAULT_SINCE = "24h"
BY = {"hour": "hour", "group": "group_id", "task": "task"}
"""What the rows of the table stand for, and the column that tells it."""
NOTHING = "no figures of that time (workers write them once a minute, and at the end of a run)"
NO_CALLABLE = "(no callable)"
LONGEST_LABEL = 30
DONE, FAILED = "#", "x"
LEGEND = f"{DONE} done, {FAILED} failed or lost"


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser("stats", help="what was done by the hour, how long it ran, and how long it waited")
    parser.add_argument(
        "--since",
        metavar="WHEN",
        type=_since,
        default=DEFAULT_SINCE,
        help="a span as 90s, 30m, 24h, 7d, or an instant as 2026-01-31 or 2026-01-31T12:00+01:00, of UTC where it has "
        "no time zone; default %(default)s",
    )
    add_groups(parser)
    parser.add_argument("--task", metavar="NAME", help="of the callable, as tasks.send_letter")
    parser.add_argument("--by", choices=list(BY), default="hour", metavar="WHAT", help=", ".join(BY))
    parser.add_argument("--json", action="store_true", help="print JSON alone")
    parser.set_defaults(run=run)


def _since(text: str) -> int | datetime:
    try:
        instant = read_instant(text)
    except ValueError:
        return span(text, "; or an instant, as 2026-01-31 or 2026-01-31T12:00+01:00")
    return instant if instant.utcoffset() is not None else instant.replace(tzinfo=timezone.utc)


def run(folder: Path, options: argparse.Namespace) -> int:
    with TaskServer.from_settings(load_settings(folder)) as server:
        server.store.check_tables()
        found = server.stats(options.since)
    chosen = [
        one
        for one in found
        if one.group_id in (options.groups or [one.group_id]) and one.task == (options.task or one.task)
    ]
    totals = list(_totals(chosen, BY[options.by]))
    if options.json:
        print(as_json([report(one, BY[options.by]) for one in totals]))
    elif not totals:
        print(NOTHING)
    else:
        _show(totals, options.by)
    return Exit.OK


def _totals(several: Iterable[HourStats], column: str) -> Iterator[HourStats]:
    """One for each hour, group or name, in order."""
    by_key: dict[Any, list[HourStats]] = {}
    for one in several:
        by_key.setdefault(getattr(one, column), []).append(one)
    return (total(by_key[key]) for key in sorted(by_key))


def report(one: HourStats, column: str) -> dict[str, Any]:
    """The figures of an hour, group or name, and what follows from them."""
    key = getattr(one, column)
    figures = {name: getattr(one, name) for name in COLUMNS}
    means = {"mean_run_seconds": one.mean_run_seconds, "mean_wait_seconds": one.mean_wait_seconds}
    return {column: instant_as_json(key) if column == "hour" else key} | figures | means


# ---- the table


def _show(totals: Sequence[HourStats], by: str) -> None:
    rows = [[_label(one, by), *_cells(one)] for one in totals]
    if len(rows) > 1:
        rows.append(["all", *_cells(total(totals))])
    head = "hour (UTC)" if by == "hour" else by
    print_table(
        [head, "done", "failed", "fatal", "lost", "ran", "mean", "slowest", "mean wait", "longest wait"],
        rows,
    )
    if sys.stdout.isatty():
        _draw(list(_with_empty_hours(totals)) if by == "hour" else totals, by)


def _label(one: HourStats, by: str) -> object:
    if by == "hour":
        return one.hour[:16]
    return one.group_id if by == "group" else one.task or NO_CALLABLE


def _cells(one: HourStats) -> list[object]:
    seconds = (one.ran_seconds, one.mean_run_seconds, one.slowest_seconds)
    waits = (one.mean_wait_seconds, one.longest_wait_seconds)
    return [
        one.done,
        one.failed,
        one.fatal,
        one.lost,
        *(Amount(_in_units(value or None)) for value in (*seconds, *waits)),
    ]


def _in_units(seconds: float | None) -> str:
    """As a person would say it, with two digits that tell something."""
    if seconds is None:
        return ""
    for unit, length in (("d", 86_400.0), ("h", 3600.0), ("min", 60.0), ("s", 1.0)):
        if seconds >= (2 * length if length > 1 else length):
            return f"{seconds / length:.{0 if seconds >= 10 * length else 1}f} {unit}"
    return f"{seconds * 1000:.{0 if seconds >= 0.01 else 1}f} ms"


# ---- the bars


def _with_empty_hours(totals: Sequence[HourStats]) -> Iterator[HourStats]:
    """The hours between them too, in which nothing was done."""
    by_hour = {one.hour: one for one in totals}
    hour, last = (datetime.fromisoformat(one.hour) for one in (totals[0], totals[-1]))
    while hour <= last:
        yield by_hour.get(str(hour), HourStats(str(hour), 0, ""))
        hour += timedelta(hours=1)


def _draw(totals: Sequence[HourStats], by: str) -> None:
    """A bar for each, the longest one as wide as the terminal leaves room for."""
    most = max(map(_ended, totals))
    if not most:
        return
    labels = [printable(str(_label(one, by)))[:LONGEST_LABEL] for one in totals]
    width = max(map(len, labels))
    room = max(terminal_width(sys.stdout) - 1 - width - len(str(most)) - 4, 1)
    print(f"\n{LEGEND}")
    for label, one in zip(labels, totals, strict=True):
        count = str(_ended(one)).rjust(len(str(most)))
        print(f"{label.ljust(width)}  {count}  {_bar(one, room / most)}".rstrip())


def _bar(one: HourStats, scale: float) -> str:
    """What is there at all is seen, however little it is."""
    length, failed = (max(round(count * scale), count > 0) for count in (_ended(one), _ended(one) - one.done))
    return DONE * (length - failed) + FAILED * failed


def _ended(one: HourStats) -> int:
    return one.done + one.failed + one.lost
