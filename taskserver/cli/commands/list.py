"""client.py list: the newest tasks, a line each."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Sequence
from typing import Any

from ...health.overview import gone_among
from ...health.stages import stage_of
from ...messages.programs import CLIENT
from ...messages.text import nearest
from ...model.field_checks import check_text
from ...model.task import MAX_SIGNED, Status
from ...server import TaskServer
from ...stores.queue.dependencies import Links, links
from ...stores.records import StoredTask
from ..terminal.arguments import ABOUT_GROUPS, SINCE, add_groups, since, whole_number
from ..terminal.instants import headed, in_column, when
from ..terminal.output import (
    CLAIMED,
    RUNNING,
    Word,
    as_json,
    in_units,
    print_table,
    some_ids,
    status_in_words,
    task_as_json,
)

DEFAULT_LIMIT = 20
STATUSES = [status.name.lower() for status in Status]
GONE = "gone"
NARROWER = "STATUS, --group, --task, --error and --since"


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser("list", help="the newest tasks; of some statuses, groups, a name or an error")
    about = f"{', '.join(STATUSES)} (or {CLAIMED}, {RUNNING}: both in_progress); all unless given"
    parser.add_argument("statuses", metavar="STATUS", nargs="*", type=_status, default=[], help=about)
    parser.add_argument(
        "--status", nargs="+", action="extend", type=_status, default=[], metavar="STATUS", help="the same"
    )
    add_groups(parser)
    parser.add_argument("--task", metavar="TASK", help="tasks of this name, as tasks.send_letter")
    parser.add_argument("--error", metavar="TEXT", help="tasks whose error begins so")
    parser.add_argument(
        "--since", metavar="WHEN", type=since, help=f"tasks that were added, started or ended since: {SINCE}"
    )
    parser.add_argument(
        "--limit", type=whole_number(1, MAX_SIGNED), default=DEFAULT_LIMIT, metavar="N", help="default %(default)s"
    )
    parser.add_argument("--json", action="store_true", help="print JSON alone")
    parser.set_defaults(run=run)


def _status(text: str) -> Status:
    """An argument's type: a status by its name."""
    if text in STATUSES:
        return Status[text.upper()]
    if text in (CLAIMED, RUNNING):  # as the table calls them
        return Status.IN_PROGRESS
    meant = nearest(text, STATUSES)
    hint = f"; did you mean {meant}?" if meant else ""
    if "," in text:
        hint = "; several are written with spaces between them"
    if text.isdigit():
        hint = f"; {CLIENT} show {text} shows one task; {ABOUT_GROUPS}"
    raise argparse.ArgumentTypeError(f"{text!r} is no status; allowed: {', '.join(STATUSES)}{hint}")


def run(server: TaskServer, options: argparse.Namespace) -> None:
    statuses = [*options.statuses, *options.status]
    task, error = (
        None if text is None else check_text(name, text)
        for name, text in (("--task", options.task), ("--error", options.error))
    )
    server.store.tables.check()
    views = server.store.views
    # One more than is shown tells whether there are more.
    found = views.list(statuses, options.groups, min(options.limit + 1, MAX_SIGNED), task, error, options.since)
    tasks = found[: options.limit]
    linked, now = links(server.store.database, [task.id for task in tasks]), views.now()
    if options.json:
        print(as_json([task_as_json(task, linked[task.id], now) for task in tasks]))
    elif not tasks:
        is_unrestricted = not (statuses or options.groups) and (task, error, options.since) == (None, None, None)
        print("no tasks" if is_unrestricted else "no such tasks")
    else:
        _print(tasks, linked, now, gone_among(server, tasks))
        if len(found) > len(tasks):
            print(f"and older ones: --limit {10 * options.limit} shows more, {NARROWER} fewer")


def _print(tasks: Sequence[StoredTask], linked: dict[int, Links], now: str, gone: Collection[int]) -> None:
    created = headed("created")
    heads = ["id", "status", "group", "priority", "attempts", created, "ran", "task", "arguments", "error"]
    rows = [_cells(task, now, task.id in gone) for task in tasks]
    comes = [task.lease_ends_in_seconds(now) if task.id in gone else task.comes_in_seconds(now) for task in tasks]
    # Tables stay narrow where no task waits.
    for head, of_each in (
        ("comes", [when(seconds) for seconds in comes]),
        ("waits for", [some_ids(linked[task.id].waits_for) for task in tasks]),
        ("awaited by", [some_ids(linked[task.id].awaited_by) for task in tasks]),
    ):
        if any(of_each):
            heads.insert(-1, head)
            for row, cell in zip(rows, of_each, strict=True):
                row.insert(-1, cell)
    seldom = ("priority", "attempts", "arguments", created, "ran", "group", "awaited by", "waits for")
    print_table(heads, rows, unless_narrow=[head for head in seldom if head in heads])
    if gone:
        print(f"{GONE}: the process has ended, and once the lease is over, that attempt has failed")


def _cells(task: StoredTask, now: str, is_gone: bool) -> list[object]:
    stage = stage_of(task)
    return [
        task.id,
        Word(GONE) if is_gone else status_in_words(task),
        task.group_id,
        task.priority,
        task.attempts,
        in_column(task.created_at),
        in_units(None if is_gone else task.run_seconds(now)),
        f"{task.task} (stage {stage})" if stage else task.task,
        task.args,
        (task.error_text or "").partition("\n")[0],
    ]
