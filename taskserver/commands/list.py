"""client.py list: the newest tasks, a line each."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ..lifecycle import Status
from ..new_task import check_text
from ..server import TaskServer
from ..settings import load_settings
from .output import as_json, print_table, status_name, task_as_json
from .program import Exit
from .usage import add_groups, whole_number

DEFAULT_LIMIT = 20


def add_parser(subparsers: Any) -> None:
    names = [status.name.lower() for status in Status]
    parser = subparsers.add_parser("list", help="the newest tasks; of some statuses, groups or a name")
    parser.add_argument(
        "--status", nargs="+", action="extend", choices=names, default=[], metavar="STATUS", help=", ".join(names)
    )
    add_groups(parser)
    parser.add_argument("--task", metavar="TASK", help="tasks of this name, as tasks.send_letter")
    parser.add_argument("--limit", type=whole_number(1), default=DEFAULT_LIMIT, metavar="N", help="default %(default)s")
    parser.add_argument("--json", action="store_true", help="print JSON alone")
    parser.set_defaults(run=run)


def run(folder: Path, options: argparse.Namespace) -> int:
    statuses = [Status[name.upper()] for name in options.status]
    with TaskServer.from_settings(load_settings(folder)) as server:
        server.store.check_tables()
        task = None if options.task is None else check_text("--task", options.task)
        tasks = server.store.list(statuses, options.groups, options.limit, task)
    if options.json:
        print(as_json([task_as_json(task) for task in tasks]))
    elif not tasks:
        print("no such tasks" if statuses or options.groups or options.task else "no tasks")
    else:
        print_table(
            ["id", "status", "group", "priority", "attempts", "created (UTC)", "task", "error"],
            [
                [
                    task.id,
                    status_name(task.status),
                    task.group_id,
                    task.priority,
                    task.attempts,
                    (task.created_at or "")[:19],
                    task.task,
                    (task.error_text or "").partition("\n")[0],
                ]
                for task in tasks
            ],
        )
    return Exit.OK
