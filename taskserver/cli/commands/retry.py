"""client.py retry: tasks in error and fatal tasks run again now, with all their attempts."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ...server import TaskServer
from ...settings.load import load_settings
from ...stores.queue.operations import RETRY
from ..terminal.program import Exit
from ..terminal.selecting import add_selection, change_chosen


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser("retry", help="have tasks in error and fatal ones run again, their attempts from 0")
    add_selection(parser)
    parser.set_defaults(run=run)


def run(folder: Path, options: argparse.Namespace) -> int:
    with TaskServer.from_settings(load_settings(folder)) as server:
        change_chosen(server, RETRY, options, "retried")
    return Exit.OK
