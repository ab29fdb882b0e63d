"""client.py retry: tasks in error and fatal tasks run again now, with all their attempts."""

from __future__ import annotations

import argparse
from typing import Any

from ...server import TaskServer
from ...stores.queue.operations import RETRY
from ..terminal.selecting import add_selection, change_chosen


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser("retry", help="have tasks in error and fatal ones run again, their attempts from 0")
    add_selection(parser)
    parser.set_defaults(run=run)


def run(server: TaskServer, options: argparse.Namespace) -> None:
    change_chosen(server, RETRY, options, "retried")
