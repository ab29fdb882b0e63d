"""client.py show: everything about one task."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ..errors import InvalidTask
from ..lifecycle import MAX_ID
from ..printable import printable
from ..server import TaskServer
from ..settings import load_settings
from .output import as_json, status_name, task_as_json
from .program import Exit
from .usage import whole_number

WIDTH = 13
"""Of the columns' names."""


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser("show", help="everything about one task")
    parser.add_argument(
        "id", metavar="ID", type=whole_number(0, MAX_ID), help="of the task, as client.py list shows it"
    )
    parser.add_argument("--json", action="store_true", help="print JSON alone")
    parser.set_defaults(run=run)


def run(folder: Path, options: argparse.Namespace) -> int:
    with TaskServer.from_settings(load_settings(folder)) as server:
        task = server.store.show(options.id)
    if task is None:
        table = server.settings.table
        raise InvalidTask(f"there is no task {options.id} in {table} or {table}_done; a completed one may be deleted")
    if options.json:
        print(as_json(task_as_json(task)))
        return Exit.OK
    place = "in the archive" if task.archived else "in the queue"
    print(f"task {task.id}: {status_name(task.status)}, {place} (times are UTC)")
    for column, value in task._asdict().items():
        if value is not None and column not in ("id", "status", "archived"):
            first, *more = map(printable, str(value).split("\n"))
            print(f"  {column:<{WIDTH}}{first}")
            for line in more:
                print(f"  {'':<{WIDTH}}{line}".rstrip())
    return Exit.OK
