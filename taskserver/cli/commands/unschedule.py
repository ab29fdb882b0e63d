"""client.py unschedule: have a schedule add no more tasks."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from ...messages.printable import printable
from ...server import TaskServer
from ...settings.load import load_settings
from ..terminal.program import Exit


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser("unschedule", help="end a schedule; a task that it added already still runs")
    parser.add_argument("name", metavar="NAME", help="as client.py status shows it")
    parser.set_defaults(run=run)


def run(folder: Path, options: argparse.Namespace) -> int:
    with TaskServer.from_settings(load_settings(folder)) as server:
        server.store.tables.check()
        was_there = server.unschedule(options.name)
    if was_there:
        print(printable(f"{options.name} is scheduled no more"))
    else:
        # No error: a deploy script may end the schedule each time.
        print(printable(f"there is no schedule {options.name!r}; client.py status lists them"), file=sys.stderr)
    return Exit.OK
