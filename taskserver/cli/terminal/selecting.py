"""The parts that commands which change chosen tasks share: choosing them, the preview, the change, the report."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

from ...errors import InvalidTask
from ...messages.programs import CLIENT
from ...messages.text import printable
from ...model.selection import Selection
from ...model.task import MAX_ID, MAX_SIGNED, Status, name_of_status
from ...server import TaskServer
from ...stores.queue.many_rows import Verb
from ...stores.queue.operations import Operations
from ...stores.records import StoredTask
from .arguments import SINCE, add_groups, since, whole_number
from .output import print_table, status_name

MAX_TASKS_SHOWN = 20
MAX_IDS_LOOKED_AT = 900
"""Rows in a preview that names ids: its statement binds a value for each."""
HEADS = ("id", "status", "group", "priority", "attempts", "task", "error")


def add_selection(parser: Any, statuses: Sequence[Status]) -> None:
    """Add the arguments that choose tasks, where the command is for these statuses."""
    parser.add_argument(
        "ids",
        metavar="ID",
        nargs="*",
        default=[],  # without it, argparse calls the argument required
        type=whole_number(0, MAX_ID),
        help=f"of a task, as {CLIENT} list shows it",
    )
    add_filters(parser)
    names = [name_of_status(status) for status in statuses]
    parser.add_argument("--status", choices=names, metavar="STATUS", help=f"of this status: {', '.join(names)}")
    parser.add_argument("--error", metavar="TEXT", help="tasks whose error begins so")
    parser.add_argument("--error-line", metavar="TEXT", help="tasks the first line of whose error is this")
    parser.add_argument(
        "--since", metavar="WHEN", type=since, help=f"tasks that ended, or were written to last, since: {SINCE}"
    )
    parser.add_argument(
        "--all", action="store_true", help="every task that the command is for, if nothing else is given"
    )
    parser.add_argument(
        "--limit", metavar="N", type=whole_number(1, MAX_SIGNED), help="at most so many, in order of id"
    )
    parser.add_argument("--dry-run", action="store_true", help="say what would be changed, and change nothing")


def add_filters(parser: Any) -> None:
    """Add the arguments that restrict tasks to groups and a name; `errors` takes them, too."""
    add_groups(parser)
    parser.add_argument("--task", metavar="TASK", help="tasks of this name, as tasks.send_letter")


def is_chosen(options: argparse.Namespace) -> bool:
    """Whether the arguments choose tasks in any way."""
    others = (options.task, options.status, options.error, options.error_line, options.since)
    return bool(options.ids or options.groups or options.all) or any(one is not None for one in others)


def selection_of(options: argparse.Namespace) -> Selection:
    """The tasks that the arguments choose.

    Raises InvalidTask where no argument chooses: a command that was sent too early must not reach every task.
    """
    if not is_chosen(options):
        raise InvalidTask(
            "name ids, --group, --task, --status, --error(-line) or --since, or --all for every task that this is for"
        )
    return Selection(
        options.ids or None,
        options.groups or None,
        options.task,
        options.error,
        options.limit,
        options.error_line,
        None if options.status is None else Status[options.status.upper()],
        options.since,
    )


def change_chosen(
    server: TaskServer,
    verb: Verb,
    options: argparse.Namespace,
    done: str,
    values: Sequence[Any] = (),
    done_to_one: str | None = None,
) -> int:
    """Apply a verb to the chosen tasks and print how many were `done`; with --dry-run only print. Return how many.

    `done_to_one` replaces `done` for a single task, where the words differ.
    """
    selection = selection_of(options)
    server.store.tables.check()
    summary = partial(_summary, done, done_to_one or done)
    if options.dry_run:
        return _preview(server, verb, options, summary, values)
    changed: list[int] = []
    outcome = Operations(server.store).change(verb, selection, values, changed.extend)
    print(summary(outcome.changed))
    if verb.may_wait and (given_up := Operations(server.store).given_up_among(changed)):
        are = "is" if given_up == 1 else "are"
        print(
            f"{counted(given_up)} {are} fatal again at once, as a parent is fatal or cancelled: retry the parent",
            file=sys.stderr,
        )
    if outcome.held:
        print(f"{counted(len(outcome.held))} left, as other programs hold them: try again", file=sys.stderr)
    _explain_unreached(server, verb, options, {*changed, *outcome.held})
    return outcome.changed


def counted(rows: int) -> str:
    """A number of tasks in words."""
    return "1 task" if rows == 1 else f"{rows} tasks"


def _summary(done: str, done_to_one: str, rows: int, would_be: str = "") -> str:
    return f"{counted(rows)} {would_be}{done_to_one if rows == 1 else done}"


def _preview(
    server: TaskServer,
    verb: Verb,
    options: argparse.Namespace,
    summary: Callable[[int, str], str],
    values: Sequence[Any],
) -> int:
    """Print the first tasks that the verb would change, and how many it would; return how many."""
    most = min(max(MAX_TASKS_SHOWN, len(options.ids)), MAX_IDS_LOOKED_AT)
    preview = Operations(server.store).preview(verb, selection_of(options), most, values)
    if preview.first:
        print_table(HEADS, [_cells(task) for task in preview.first[:MAX_TASKS_SHOWN]])
    if preview.first and preview.rows > MAX_TASKS_SHOWN:
        print(f"… and {preview.rows - MAX_TASKS_SHOWN} more")
    print(f"{summary(preview.rows, 'would be ')}; nothing was changed")
    if preview.rows <= most:
        _explain_unreached(server, verb, options, {task.id for task in preview.first})
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


def _explain_unreached(server: TaskServer, verb: Verb, options: argparse.Namespace, reached: Collection[int]) -> None:
    """Print why named tasks are left as they are, unless --limit may be the reason."""
    if options.limit is not None:
        return
    ids = [one for one in dict.fromkeys(options.ids) if one not in reached]
    for task_id in ids[:MAX_TASKS_SHOWN]:
        print(printable(f"task {task_id} {_why_not(server.store.views.show(task_id), verb)}"), file=sys.stderr)
    if len(ids) > MAX_TASKS_SHOWN:
        print(f"and {len(ids) - MAX_TASKS_SHOWN} more like these", file=sys.stderr)


def _why_not(task: StoredTask | None, verb: Verb) -> str:
    if task is None:
        return "is not there; a completed one may be deleted"
    if task.status == Status.DONE:
        return f"is done; {verb.name} is for tasks that are {verb.suits}"
    return (
        f"was left as it is: {status_name(task.status).replace('_', ' ')}, group {task.group_id}, {task.task}; "
        f"{verb.name} is for tasks that are {verb.suits}, and meet all that was given"
    )
