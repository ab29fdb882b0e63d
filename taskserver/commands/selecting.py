"""What the commands share that change chosen tasks: how tasks are chosen, and what is told of them before and after."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

from ..errors import InvalidTask
from ..lifecycle import MAX_ID, Status
from ..printable import printable
from ..selection import Selection
from ..server import TaskServer
from ..stores.interventions import RETRY, Interventions, Verb
from ..stores.rows import StoredTask
from .live_line import LiveLine
from .output import print_table, status_name
from .usage import add_groups, whole_number

MOST_SHOWN = 20
MOST_LOOKED_AT = 900
"""Of rows that are named: a look binds a value for each."""
HEADS = ("id", "status", "group", "priority", "attempts", "task", "error")


def add_selection(parser: Any) -> None:
    """The arguments by which tasks are chosen."""
    parser.add_argument(
        "ids",
        metavar="ID",
        nargs="*",
        default=[],  # else it is said to be required
        type=whole_number(0, MAX_ID),
        help="of a task, as client.py list shows it",
    )
    add_filters(parser)
    parser.add_argument("--error", metavar="TEXT", help="tasks whose error begins so")
    parser.add_argument(
        "--all", action="store_true", help="every task that the command is for, if nothing else is given"
    )
    parser.add_argument("--limit", metavar="N", type=whole_number(1), help="at most so many, in order of id")
    parser.add_argument("--dry-run", action="store_true", help="say what would be changed, and change nothing")


def add_filters(parser: Any) -> None:
    """Those that `errors` takes, too."""
    add_groups(parser)
    parser.add_argument("--task", metavar="TASK", help="tasks of this name, as tasks.send_letter")


def is_chosen(options: argparse.Namespace) -> bool:
    """Whether any task is named, in whatever way."""
    return bool(options.ids or options.groups or options.all) or options.task is not None or options.error is not None


def selection_of(options: argparse.Namespace) -> Selection:
    """Raises InvalidTask where nothing was chosen: a command that was sent too early must not reach every task."""
    if not is_chosen(options):
        raise InvalidTask("name ids, --group, --task or --error, or --all for every task that this is for")
    return Selection(options.ids or None, options.groups or None, options.task, options.error, options.limit)


def change_chosen(
    server: TaskServer,
    verb: Verb,
    options: argparse.Namespace,
    done: str,
    values: Sequence[int] = (),
    done_to_one: str | None = None,
) -> int:
    """Do a verb to the chosen tasks, and tell how many were `done`; with --dry-run only tell it. How many.

    `done_to_one` is what is told of a single task, where that is another word.
    """
    selection = selection_of(options)
    server.store.check_tables()
    told = partial(_told, done, done_to_one or done)
    if options.dry_run:
        return _preview(server, verb, options, told)
    live = LiveLine(sys.stderr)
    interventions = Interventions(server.store)
    reached: set[int] = set()
    changed: list[int] = []

    def tell(ids: Sequence[int]) -> None:
        changed.extend(ids)
        reached.update(set(options.ids).intersection(ids))
        live.show(told(len(changed)))

    try:
        swept = interventions.change(verb, selection, values, tell)
    finally:
        live.clear()
    print(told(swept.changed))
    if verb == RETRY and (given_up := interventions.given_up_among(changed)):
        print(
            f"{counted(given_up)} of these fatal again, because of tasks that they wait for: retry those",
            file=sys.stderr,
        )
    if swept.held:
        print(f"{counted(len(swept.held))} left, as other programs hold them: try again", file=sys.stderr)
        reached.update(swept.held)
    _tell_of_others(server, verb, options, reached)
    return swept.changed


def counted(rows: int) -> str:
    """So many tasks, in words."""
    return "1 task" if rows == 1 else f"{rows} tasks"


def _told(done: str, done_to_one: str, rows: int, would_be: str = "") -> str:
    return f"{counted(rows)} {would_be}{done_to_one if rows == 1 else done}"


def _preview(server: TaskServer, verb: Verb, options: argparse.Namespace, told: Callable[[int, str], str]) -> int:
    most = min(max(MOST_SHOWN, len(options.ids)), MOST_LOOKED_AT)
    preview = Interventions(server.store).preview(verb, selection_of(options), most)
    if preview.first:
        print_table(HEADS, [_cells(task) for task in preview.first[:MOST_SHOWN]])
    if preview.first and preview.rows > MOST_SHOWN:
        print(f"… and {preview.rows - MOST_SHOWN} more")
    print(f"{told(preview.rows, 'would be ')}; nothing was changed")
    if preview.rows <= most:
        _tell_of_others(server, verb, options, {task.id for task in preview.first})
    return preview.rows


def _cells(task: StoredTask) -> list[object]:
    first_line = (task.error_text or "").partition("\n")[0]
    return [
        task.id,
        status_name(task.status),
        task.group_id,
        task.priority,
        task.attempts,
        task.task,
        first_line,
    ]


def _tell_of_others(server: TaskServer, verb: Verb, options: argparse.Namespace, reached: Collection[int]) -> None:
    """Why nothing is done to tasks that were named; not where a limit may be the reason."""
    if options.limit is not None:
        return
    ids = [one for one in dict.fromkeys(options.ids) if one not in reached]
    for task_id in ids[:MOST_SHOWN]:
        print(printable(f"task {task_id} {_why_not(server.store.show(task_id), verb)}"), file=sys.stderr)
    if len(ids) > MOST_SHOWN:
        print(f"and {len(ids) - MOST_SHOWN} more like these", file=sys.stderr)


def _why_not(task: StoredTask | None, verb: Verb) -> str:
    if task is None:
        return "is not there; a completed one may be deleted"
    if task.status == Status.DONE:
        return f"is done; {verb.name} is for tasks that are {verb.suits}"
    return (
        f"was left as it is: {status_name(task.status).replace('_', ' ')}, group {task.group_id}, {task.task}; "
        f"{verb.name} is for tasks that are {verb.suits}, and meet all that was given"
    )
