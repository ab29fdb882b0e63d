"""client.py list, show and errors: tasks for a person."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from ...errors import InvalidTask
from ...health.status import mark_gone
from ...messages.programs import CLIENT
from ...messages.text import escaped, exactly, letters, when
from ...model.task import MAX_SIGNED, Status
from ...server import TaskServer
from ...stores.queue.dependencies import Links, links
from ...stores.records import TaskRow
from ..terminal import arguments
from ..terminal.arguments import ABOUT_GROUPS, SINCE
from ..terminal.output import (
    Word,
    as_json,
    headed,
    in_column,
    in_units,
    print_table,
    some_ids,
    status_name,
)

STATUSES = [status.name.lower() for status in Status]
WIDTH = 13
"""Characters of a column's name."""
MAX_JSON = 1000
"""Characters of arguments, before a table's cell is cut."""
MAX_IDS_LISTED = 100
"""Ids in a line; JSON has them all."""
NOT_SHOWN = ("id", "status", "archived", "stage", "awaited")
"""Columns that are part of the first line, or of another column."""

# ---- list


def add_list(subparsers: Any) -> None:
    parser = subparsers.add_parser("list", description="show the newest tasks, a line each")
    about = f"only tasks of this status, or of several: {', '.join(STATUSES)}"
    parser.add_argument("statuses", metavar="STATUS", nargs="*", type=_status, default=[], help=about)
    parser.add_argument(
        "--status",
        nargs="+",
        action="extend",
        type=_status,
        default=[],
        metavar="STATUS",
        help="the same, as an option",
    )
    arguments.add(parser, "--group", "--task", "--error")
    arguments.add(parser, "--since", help=f"only tasks that were added, started or ended since WHEN: {SINCE}")
    arguments.add(parser, "--limit", "--json")
    parser.set_defaults(run=_list)


def _status(text: str) -> Status:
    """An argument's type: a status by its name."""
    if text in STATUSES:
        return Status[text.upper()]
    if text in ("claimed", "running"):  # the names of tasks in progress in the table
        return Status.IN_PROGRESS
    hint = "; several are written with spaces between them" if "," in text else ""
    if text.isdigit():
        hint = f"; {CLIENT} show {text} shows one task; {ABOUT_GROUPS}"
    raise argparse.ArgumentTypeError(f"{text!r} is not a status; allowed: {', '.join(STATUSES)}{hint}")


def _list(server: TaskServer, options: argparse.Namespace) -> None:
    server.store.tables.check()
    statuses = [*options.statuses, *options.status]
    chosen = (statuses or None, options.groups or None, options.task, options.error, options.since)
    # Read one more, to know whether there are more.
    found = server.list(*chosen, min(options.limit + 1, MAX_SIGNED))
    tasks = found[: options.limit]
    if options.json:
        linked = links(server.store.database, [task.id for task in tasks])
        print(as_json([_as_dict(task, linked[task.id]) for task in tasks]))
    elif not tasks:
        print("no tasks" if chosen == (None,) * 5 else "no such tasks")
    else:
        _print_tasks(tasks, mark_gone(server.store, tasks))
        if len(found) > len(tasks):
            print(f"and older ones: --limit {10 * options.limit} shows more, filters show fewer")


def _print_tasks(tasks: Sequence[TaskRow], gone: int) -> None:
    created = headed("created")
    print_table(
        ("id", "status", "group", "priority", "attempts", created, "ran", "due", "task", "arguments", "error"),
        list(map(_cells, tasks)),
        spare=("priority", "ran", created, "arguments", "attempts"),
    )
    if gone:
        print("gone: the process has ended; the attempt fails when its lease ends")


def _cells(task: TaskRow) -> list[object]:
    stage = task.stage
    return [
        *(task.id, Word(task.state)),
        *(task.group_id, task.priority, task.attempts, in_column(task.created_at)),
        in_units(task.run_seconds),
        when(task.ready_in_seconds),
        f"{task.task} (stage {stage})" if stage else task.task,
        letters((task.columns["args"] or "")[:MAX_JSON]),
        task.error_line,
    ]


def _as_dict(task: TaskRow, linked: Links) -> dict[str, Any]:
    """A task for JSON, with its links."""
    return task.as_dict() | linked._asdict()


# ---- show


def add_show(subparsers: Any) -> None:
    parser = subparsers.add_parser("show", description="show everything about one task")
    arguments.add(parser, "id", "--json")
    parser.set_defaults(run=_show)


def _show(server: TaskServer, options: argparse.Namespace) -> None:
    task = server.store.views.show(options.id)
    if task is None:
        table = server.settings.table
        raise InvalidTask(f"there is no task {options.id} in {table} or {table}_done; a completed one may be deleted")
    # An archived task waits for nothing, and another task may have its id now.
    linked = Links([], []) if task.archived else links(server.store.database, [task.id])[task.id]
    if options.json:
        print(as_json(_as_dict(task, linked)))
        return
    print(f"task {task.id}: {status_name(task.status)}, in the {'archive' if task.archived else 'queue'}")
    for name, text in _columns_of(task):
        _print(name, text)
    if mark_gone(server.store, [task]):
        lease_ends = when(task.ready_in_seconds)
        _print("gone", f"its process has ended; the attempt fails when its lease ends ({lease_ends})")
    elif (seconds := task.run_seconds) is not None:
        _print("runs for" if task.status == Status.IN_PROGRESS else "ran", in_units(seconds))
    for name, ids in linked._asdict().items():
        if ids:
            _print(name, some_ids(ids, MAX_IDS_LISTED))


def _columns_of(task: TaskRow) -> Iterator[tuple[str, str]]:
    """Name and text of each shown column."""
    for column, value in task.columns.items():
        if value is None or column in NOT_SHOWN:
            continue
        if column == "stages":
            yield "stage", task.stage or str(task.columns["stage"])
            yield column, "\n".join(task.stages)
        elif column == "progress":
            yield column, str(task.progress or value)
        elif isinstance(value, datetime):
            yield column, exactly(value)
        else:
            yield column, letters(value) if column in ("args", "result") else str(value)


def _print(name: str, text: str) -> None:
    first, *more = map(escaped, text.split("\n"))
    print(f"  {name:<{WIDTH}}{first}")
    for line in more:
        print(f"  {'':<{WIDTH}}{line}".rstrip())


# ---- errors


def add_errors(subparsers: Any) -> None:
    parser = subparsers.add_parser("errors", description="show failed tasks, grouped by error")
    arguments.add(parser, "--group", "--task", "--limit", "--json")
    parser.set_defaults(run=_errors)


def _errors(server: TaskServer, options: argparse.Namespace) -> None:
    server.store.tables.check()
    errors = server.errors(options.groups or None, options.task, options.limit)
    if options.json:
        print(as_json(errors))
    elif not errors:
        print("no such task is in error or fatal" if options.groups or options.task else "no task is in error or fatal")
    else:
        print_table(
            ["tasks", "fatal", headed("first seen"), headed("last seen"), "example", "error"],
            [
                [one.rows, one.fatal, in_column(one.first_seen), in_column(one.last_seen), one.example_id, one.line]
                for one in errors
            ],
            spare=[headed("first seen")],
        )
