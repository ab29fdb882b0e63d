"""client.py priority: moves tasks, so that they run sooner or later."""

from __future__ import annotations

import argparse
from typing import Any

from ...model.task import MAX_PRIORITY, MIN_PRIORITY, Status
from ...server import TaskServer
from ...stores.queue.operations import PRIORITY
from ..terminal.arguments import whole_number
from ..terminal.selecting import add_selection, change_chosen


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser("priority", help="move tasks: smaller ones run sooner")
    parser.add_argument("number", metavar="N", type=whole_number(MIN_PRIORITY, MAX_PRIORITY), help="from now on")
    add_selection(parser, (Status.NEW, Status.IN_PROGRESS, Status.ERROR, Status.WAITING))
    parser.set_defaults(run=run)


def run(server: TaskServer, options: argparse.Namespace) -> None:
    change_chosen(server, PRIORITY, options, f"moved to priority {options.number}", (options.number,))
