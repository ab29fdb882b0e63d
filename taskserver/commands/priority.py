"""client.py priority: tasks run sooner or later than they would."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ..lifecycle import MAX_PRIORITY, MIN_PRIORITY
from ..server import TaskServer
from ..settings import load_settings
from ..stores.interventions import PRIORITY
from .program import Exit
from .selecting import add_selection, change_chosen
from .usage import whole_number


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser("priority", help="move tasks: smaller ones run sooner")
    parser.add_argument("number", metavar="N", type=whole_number(MIN_PRIORITY, MAX_PRIORITY), help="from now on")
    add_selection(parser)
    parser.set_defaults(run=run)


def run(folder: Path, options: argparse.Namespace) -> int:
    with TaskServer.from_settings(load_settings(folder)) as server:
        change_chosen(server, PRIORITY, options, f"moved to priority {options.number}", (options.number,))
    return Exit.OK
