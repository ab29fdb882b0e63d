"""client.py unschedule: have a schedule add no more tasks."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from ...messages.programs import CLIENT
from ...messages.text import printable
from ...server import TaskServer


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser("unschedule", help="end a schedule; a task that it added already still runs")
    parser.add_argument("name", metavar="NAME", help=f"as {CLIENT} status shows it")
    parser.set_defaults(run=run)


def run(server: TaskServer, options: argparse.Namespace) -> None:
    server.store.tables.check()
    was_there = server.unschedule(options.name)
    if was_there:
        print(printable(f"{options.name} is scheduled no more"))
    else:
        # No error: a deploy script may end the schedule each time.
        print(printable(f"there is no schedule {options.name!r}; {CLIENT} status lists them"), file=sys.stderr)
