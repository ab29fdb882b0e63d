"""client.py resume: workers take the tasks of a paused group again."""

from __future__ import annotations

import argparse
from typing import Any

from ...model.task import MAX_GROUP_ID
from ...server import TaskServer
from ..terminal.arguments import whole_number


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser("resume", help="have workers take tasks of a paused group again")
    parser.add_argument("group_id", metavar="GROUP", type=whole_number(0, MAX_GROUP_ID), help="its number")
    parser.set_defaults(run=run)


def run(server: TaskServer, options: argparse.Namespace) -> None:
    server.store.tables.check()
    was_paused = server.resume(options.group_id)
    print(f"group {options.group_id} is served again" if was_paused else f"group {options.group_id} was not paused")
