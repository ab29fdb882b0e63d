"""client.py show: everything about one task."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import Any

from ...errors import InvalidTask
from ...health.overview import gone_among
from ...health.stages import stage_lines, stage_of
from ...messages.programs import CLIENT
from ...messages.text import escaped
from ...model.results import read_progress
from ...model.task import MAX_ID, Status
from ...server import TaskServer
from ...stores.queue.dependencies import Links, links
from ...stores.records import StoredTask
from ...stores.words import INSTANTS
from ..terminal.arguments import whole_number
from ..terminal.instants import exactly, when
from ..terminal.output import as_json, in_units, some_ids, status_name, task_as_json

WIDTH = 13
"""Characters of a column's name."""
MAX_IDS = 100
"""Ids in a line; JSON has all of them."""
NOT_SHOWN = ("id", "status", "archived", "stage", "awaited")
"""Columns that stand in the first line, or beside another column."""


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser("show", help="everything about one task")
    parser.add_argument(
        "id", metavar="ID", type=whole_number(0, MAX_ID), help=f"of the task, as {CLIENT} list shows it"
    )
    parser.add_argument("--json", action="store_true", help="print JSON alone")
    parser.set_defaults(run=run)


def run(server: TaskServer, options: argparse.Namespace) -> None:
    task = server.store.views.show(options.id)
    if task is None:
        table = server.settings.table
        raise InvalidTask(f"there is no task {options.id} in {table} or {table}_done; a completed one may be deleted")
    # An archived task waits for nothing; by now another task of the queue may have its id.
    linked = Links([], []) if task.archived else links(server.store.database, [task.id])[task.id]
    now = server.store.views.now()
    if options.json:
        print(as_json(task_as_json(task, linked, now)))
        return
    where = "in the archive" if task.archived else "in the queue"
    print(f"task {task.id}: {status_name(task.status)}, {where}")
    for name, text in _columns_of(task):
        _print(name, text.split("\n"))
    if task.id in gone_among(server, [task]):
        lease_ends = when(task.lease_ends_in_seconds(now))
        _print("gone", [f"its process has ended; once the lease is over ({lease_ends}), it has failed"])
    elif (seconds := task.run_seconds(now)) is not None:
        _print("runs for" if task.status == Status.IN_PROGRESS else "ran", [in_units(seconds)])
    for name, ids in linked._asdict().items():
        if ids:
            _print(name, [some_ids(ids, MAX_IDS)])


def _columns_of(task: StoredTask) -> Iterator[tuple[str, str]]:
    """The columns that are shown: name and text of each."""
    for column, value in task._asdict().items():
        if column == "stages" and value is not None:
            yield "stage", stage_of(task) or str(task.stage)
            yield "stages", "\n".join(stage_lines(task))
        elif column == "progress" and value is not None:
            yield column, str(read_progress(value) or value)
        elif column in INSTANTS and value is not None:
            yield column, exactly(value)
        elif value is not None and column not in NOT_SHOWN:
            yield column, str(value)


def _print(name: str, lines: Sequence[str]) -> None:
    first, *more = map(escaped, lines)
    print(f"  {name:<{WIDTH}}{first}")
    for line in more:
        print(f"  {'':<{WIDTH}}{line}".rstrip())
