"""client.py list: the newest tasks, a line each."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from ...model.field_checks import check_text
from ...model.task import MAX_SIGNED, Status
from ...server import TaskServer
from ...stores.database.records import StoredTask
from ...stores.queue.dependency_trees import DependencyTrees, Links
from ..terminal.arguments import add_groups, whole_number
from ..terminal.dependency_trees import some_ids, stage_of
from ..terminal.output import as_json, print_table, status_name, task_as_json

DEFAULT_LIMIT = 20


def add_parser(subparsers: Any) -> None:
    names = [status.name.lower() for status in Status]
    parser = subparsers.add_parser("list", help="the newest tasks; of some statuses, groups or a name")
    parser.add_argument(
        "--status", nargs="+", action="extend", choices=names, default=[], metavar="STATUS", help=", ".join(names)
    )
    add_groups(parser)
    parser.add_argument("--task", metavar="TASK", help="tasks of this name, as tasks.send_letter")
    parser.add_argument(
        "--limit", type=whole_number(1, MAX_SIGNED), default=DEFAULT_LIMIT, metavar="N", help="default %(default)s"
    )
    parser.add_argument("--json", action="store_true", help="print JSON alone")
    parser.set_defaults(run=run)


def run(server: TaskServer, options: argparse.Namespace) -> None:
    statuses = [Status[name.upper()] for name in options.status]
    server.store.tables.check()
    task = None if options.task is None else check_text("--task", options.task)
    tasks = server.store.views.list(statuses, options.groups, options.limit, task)
    links = DependencyTrees(server.store).links([task.id for task in tasks])
    if options.json:
        print(as_json([task_as_json(task, links[task.id]) for task in tasks]))
    elif not tasks:
        print("no such tasks" if statuses or options.groups or options.task else "no tasks")
    else:
        _print(tasks, links)


def _print(tasks: Sequence[StoredTask], links: dict[int, Links]) -> None:
    heads = ["id", "status", "group", "priority", "attempts", "created (UTC)", "task", "error"]
    rows = [_cells(task) for task in tasks]
    # Most queues have no dependencies: their tables stay narrow.
    for head, of_each in (
        ("waits for", [some_ids(links[task.id].waits_for) for task in tasks]),
        ("awaited by", [some_ids(links[task.id].awaited_by) for task in tasks]),
    ):
        if any(of_each):
            heads.insert(-1, head)
            for row, cell in zip(rows, of_each, strict=True):
                row.insert(-1, cell)
    print_table(heads, rows)


def _cells(task: StoredTask) -> list[object]:
    stage = stage_of(task)
    return [
        task.id,
        status_name(task.status),
        task.group_id,
        task.priority,
        task.attempts,
        (task.created_at or "")[:19],
        f"{task.task} (stage {stage})" if stage else task.task,
        (task.error_text or "").partition("\n")[0],
    ]
