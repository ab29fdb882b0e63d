"""client.py retry, cancel, delete, priority, reclaim, pause and resume: what operators do to a queue."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any, NamedTuple

from ...errors import InvalidTask
from ...health.status import mark_gone
from ...messages.text import count_of
from ...model.selection import Selection
from ...model.task import MAX_PRIORITY, MIN_PRIORITY, Status, name_of_status
from ...server import TaskServer
from ...stores.queue.many_rows import Verb
from ...stores.queue.operations import (
    CANCEL,
    DELETE,
    END_LEASE,
    PRIORITY,
    RETRY,
    RETRY_PIPELINES,
    Operations,
    Preview,
    retry_as,
    to_priority,
)
from ...stores.records import TaskRow
from ..terminal import arguments
from ..terminal.arguments import SINCE, whole_number
from ..terminal.output import note, print_table, some_ids, status_name
from ..terminal.program import Exit
from ..terminal.warnings import warn_of_names

MAX_SHOWN = 20
"""Rows of a preview, and ids in a line."""


def add_act(name: str, subparsers: Any) -> None:
    """Add the parser of one of ACTS."""
    act = ACTS[name]
    names = [name_of_status(status) for status in act.verb.statuses]
    parser = subparsers.add_parser(name, description=act.about)
    if name == "priority":
        number = whole_number(MIN_PRIORITY, MAX_PRIORITY)
        parser.add_argument("number", metavar="N", type=number, help="the new priority")
    arguments.add(parser, "ids", "--group", "--task", "--error")
    parser.add_argument("--all", action="store_true", help=f"all tasks that are {act.verb.applies_to}")
    if name == "retry":
        parser.add_argument("--as", dest="as_task", metavar="NAME", help="as the function NAME, if theirs was misspelt")
    if name == "reclaim":
        parser.epilog = "Without --force it takes no ID and no filter."
        force = "reclaim the chosen tasks even if their worker is alive: they may run twice"
        parser.add_argument("--force", action="store_true", help=force)
    arguments.add(parser, "--dry-run")
    more = parser.add_argument_group("more filters")
    more.add_argument("--status", choices=names, metavar="STATUS", help=f"only tasks of this one: {', '.join(names)}")
    more.add_argument("--error-line", metavar="TEXT", help="only tasks whose error has TEXT as its first line")
    arguments.add(more, "--since", help=f"only tasks that ended, or changed last, since WHEN: {SINCE}")
    arguments.add(more, "--limit", default=None, help="at most N tasks, the lowest ids first")
    parser.set_defaults(run=partial(_run, act))


def _run(act: Act, server: TaskServer, options: argparse.Namespace) -> int:
    return Exit.OK if act.run(server, act.verb, options) or not options.ids else Exit.DATABASE


# ---- the chosen tasks


def _chooses(options: argparse.Namespace) -> bool:
    filters = (options.task, options.status, options.error, options.error_line, options.since)
    return bool(options.ids or options.groups or options.all) or any(one is not None for one in filters)


def _selection(options: argparse.Namespace) -> Selection:
    """The chosen tasks. Raises InvalidTask if there is no filter: an incomplete line must not change all tasks."""
    if not _chooses(options):
        raise InvalidTask("name ids, or --group, --task, --error or another filter; --all is for every task")
    return Selection(
        ids=options.ids or None,
        groups=options.groups or None,
        task=options.task,
        error=options.error,
        limit=options.limit,
        error_line=options.error_line,
        status=None if options.status is None else Status[options.status.upper()],
        since=options.since,
    )


def _change(server: TaskServer, verb: Verb, options: argparse.Namespace) -> int:
    """Change the chosen tasks, or only show them with --dry-run. Returns how many."""
    selection, operations = _selection(options), Operations(server.store)
    server.store.tables.check()
    if options.dry_run:
        return _preview(verb, operations.preview(verb, selection, MAX_SHOWN), options)
    changed: list[int] = []
    count, held = operations.change(verb, selection, changed.extend)
    print(f"{count_of(count, 'task')} {verb.done}")
    if verb.needs_decision and (again := operations.given_up_among(changed)):
        note(f"{count_of(again, 'task')} fatal again, because of a fatal or cancelled parent: retry that one")
    if held:
        note(f"{count_of(len(held), 'task')} left, as other programs hold them: try again")
    _name_unreached(verb, options, {*changed, *held})
    return count


def _preview(verb: Verb, preview: Preview, options: argparse.Namespace) -> int:
    count, first = preview
    if first:
        heads = ("id", "status", "group", "priority", "attempts", "task", "error")
        print_table(heads, [_cells(task) for task in first], spare=("priority",))
    if count > len(first):
        print(f"… and {count - len(first)} more")
    print(f"{count_of(count, 'task')} would be {verb.done}; nothing was changed")
    if count == len(first):
        _name_unreached(verb, options, {task.id for task in first})
    return count


def _cells(task: TaskRow) -> list[object]:
    numbers = (task.group_id, task.priority, task.attempts)
    return [task.id, status_name(task.status), *numbers, task.task, task.error_line]


def _name_unreached(verb: Verb, options: argparse.Namespace, reached: Collection[int]) -> None:
    left = [one for one in dict.fromkeys(options.ids) if one not in reached]
    if left and options.limit is None:
        note(f"left as they are: {some_ids(left, MAX_SHOWN)}; {verb.name} is for tasks that are {verb.applies_to}")


# ---- what each act does


def _retry(server: TaskServer, verb: Verb, options: argparse.Namespace) -> int:
    if options.as_task is None:
        return _change(server, verb, options)
    try:
        verb = retry_as(options.as_task)
    except InvalidTask as error:
        raise InvalidTask(f"--as: {error}") from None
    count = _change(server, verb, options)
    warn_of_names(server.settings, {options.as_task: ...})
    left = 0 if options.ids else Operations(server.store).preview(RETRY_PIPELINES, _selection(options), 0).rows
    if left:
        note(f"{count_of(left, 'pipeline')} left: add them again with the right names, and cancel these")
    return count


def _cancel(server: TaskServer, verb: Verb, options: argparse.Namespace) -> int:
    count = _change(server, verb, options)
    running = Operations(server.store).still_running() if count and not options.dry_run else []
    gone = mark_gone(server.store, running)
    if gone:
        print(f"{count_of(gone, 'cancelled task')} of a dead worker: the next run ends it when its lease is over")
    if len(running) > gone:
        # A worker checks whenever it renews its lease, three times per lease.
        seconds = server.settings.lease_seconds / 3
        print(
            f"{count_of(len(running) - gone, 'cancelled task')} still running: interrupted at the next "
            f"taskserver.progress() or current_task(), or within {seconds:.0f} s; done if it succeeds before"
        )
    return count


def _priority(server: TaskServer, _: Verb, options: argparse.Namespace) -> int:
    return _change(server, to_priority(options.number), options)


def _reclaim(server: TaskServer, verb: Verb, options: argparse.Namespace) -> int:
    if options.dry_run and not options.force:
        raise InvalidTask("--dry-run goes with --force")
    if not options.force and (_chooses(options) or options.limit):
        raise InvalidTask("choose tasks only with --force; without it, everything that is due is reclaimed")
    server.store.tables.check()
    forced = _change(server, verb, options) if options.force else 0
    if not options.dry_run:
        found = server.reclaim()
        lost = f"{count_of(found.lost, 'lost attempt')} failed"
        orphaned = f", {found.orphaned} whose parents were deleted" if found.orphaned else ""
        print(f"{count_of(found.woken, 'task')} woken, {found.unstarted} unstarted reclaimed, {lost}{orphaned}")
        if forced:
            note("a task reclaimed from a live worker may run twice")
        if found.left:
            note(f"{count_of(found.left, 'task')} left, as other programs hold them: try again")
    return forced


class Act(NamedTuple):
    """A command that changes chosen tasks."""

    verb: Verb
    run: Callable[[TaskServer, Verb, argparse.Namespace], int]
    """Returns how many tasks were changed."""
    about: str


ACTS = {
    act.verb.name: act
    for act in (
        Act(RETRY, _retry, "run failed and cancelled tasks again, with their attempts reset"),
        Act(CANCEL, _cancel, "cancel tasks; running ones are interrupted"),
        Act(DELETE, _change, "delete fatal and cancelled tasks"),
        Act(PRIORITY, _priority, "change the priority of tasks: smaller runs sooner"),
        Act(END_LEASE, _reclaim, "wake due tasks, and reclaim those of dead workers, now"),
    )
}


# ---- pause and resume


def add_pause(subparsers: Any) -> None:
    parser = subparsers.add_parser("pause", description="stop workers from taking tasks of some groups, or of all")
    arguments.add(parser, "groups")
    parser.add_argument("--all", action="store_true", help="every group, and later ones, until resume --all")
    parser.set_defaults(run=_pause)


def add_resume(subparsers: Any) -> None:
    parser = subparsers.add_parser("resume", description="let workers take tasks of paused groups again")
    arguments.add(parser, "groups")
    parser.add_argument("--all", action="store_true", help="every group, however it was paused")
    parser.set_defaults(run=_resume)


def _chosen_groups(server: TaskServer, options: argparse.Namespace) -> list[int]:
    """The named groups, each once; none for all."""
    if bool(options.groups) == options.all:
        raise InvalidTask("name a group, or several such as 3,5, or else --all")
    server.store.tables.check()
    return list(dict.fromkeys(options.groups or ()))


def _pause(server: TaskServer, options: argparse.Namespace) -> None:
    groups, claims = _chosen_groups(server, options), server.store.claims
    paused = "paused from the next claim on; what is claimed already still runs"
    if groups:
        _print_states(groups, claims.pause(groups), paused, "paused already")
    else:
        claims.pause_all()
        print(f"all groups are {paused}")


def _resume(server: TaskServer, options: argparse.Namespace) -> None:
    groups, claims = _chosen_groups(server, options), server.store.claims
    if groups:
        _print_states(groups, claims.resume(groups), "served again", "not paused")
    else:
        print("all groups are served again" if claims.resume_all() else "no group was paused")


def _print_states(groups: Sequence[int], changed: Sequence[int], new_state: str, old_state: str) -> None:
    """Print which groups were changed, and which were not."""
    left = [group for group in groups if group not in changed]
    for some, state in ((changed, new_state), (left, old_state)):
        names = ", ".join(map(str, some))
        if some:
            print(f"group {names} is {state}" if len(some) == 1 else f"groups {names} are {state}")
