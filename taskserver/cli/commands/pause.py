"""client.py pause: workers take no more tasks of a group."""

from __future__ import annotations

import argparse
from typing import Any

from ...model.task import MAX_GROUP_ID
from ...server import TaskServer
from ..terminal.arguments import whole_number


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser("pause", help="have no worker take tasks of a group")
    parser.add_argument("group_id", metavar="GROUP", type=whole_number(0, MAX_GROUP_ID), help="its number")
    parser.set_defaults(run=run)


def run(server: TaskServer, options: argparse.Namespace) -> None:
    server.store.tables.check()
    is_new = server.pause(options.group_id)
    if is_new:
        print(f"group {options.group_id} is paused from the next claim on; what workers claimed before that, they run")
    else:
        print(f"group {options.group_id} was paused already")
