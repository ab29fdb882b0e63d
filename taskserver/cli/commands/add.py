"""client.py add: one task from the command line, or many from JSON lines; schedule and unschedule: periodic ones."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator
from contextlib import nullcontext, suppress
from typing import Any

from ...errors import BadTask, DatabaseError, InvalidTask, SettingError
from ...messages.programs import CLIENT
from ...messages.text import count_of, exactly, printable
from ...model.arguments import parse_json
from ...model.new_task import MAX_VERSION, TASK_KEYS, NewTask, new_task, new_task_from
from ...model.schedule import CRON_EXAMPLE, MAX_EVERY_SECONDS, UTC
from ...model.task import MAX_ATTEMPTS, Status
from ...server import TaskServer
from ..terminal import arguments
from ..terminal.arguments import QUOTING, read_args, seconds, task_ids, whole_number, whole_seconds
from ..terminal.output import note
from ..terminal.warnings import warn_of_tasks

MAX_LINE_BYTES = 16 * 1024 * 1024
"""Arguments of 1 MiB need several MiB as JSON if every character is escaped."""
_OPTIONS = {"group_id": "group", "unique_key": "unique"}
"""Keys whose options have other names."""


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser("add", description="add one task and print its id, or many from JSON lines")
    arguments.add(parser, "task", nargs="?")
    arguments.add(parser, "args")
    arguments.add_order(parser)
    parser.add_argument(
        "--delay",
        metavar="S",
        type=seconds(or_zero=True),
        help="run it S seconds from now, or later; also 5m, 1h or 2d",
    )
    parser.add_argument(
        "--at", metavar="INSTANT", help="run it at this time, or later: 2026-01-31T12:00:00+01:00; Z is UTC"
    )
    parser.add_argument(
        "--max-attempts", metavar="N", type=whole_number(1, MAX_ATTEMPTS), help="give up after N attempts"
    )
    parser.add_argument("--unique", metavar="KEY", help="if a task with this key exists, add nothing and print its id")
    parser.add_argument("--rerun", action="store_true", default=None, help="with --unique: run that task again")
    parser.add_argument(
        "--version",
        metavar="N",
        type=whole_number(0, MAX_VERSION),
        help="with --rerun: change nothing if the task has this version or a newer one",
    )
    parser.add_argument(
        "--then",
        metavar="TASK",
        dest="following",
        action="append",
        type=_stage,
        help="then run this TASK with what the one before returned (a pipeline); may be repeated; also a JSON object "
        "with task, group_id, priority, max_attempts",
    )
    parser.add_argument(
        "--depends-on",
        metavar="ID,ID",
        action="extend",
        type=task_ids,
        help="start it when all of these are done; may be repeated",
    )
    parser.add_argument(
        "--bulk",
        metavar="FILE",
        help=f"add the tasks of FILE (-: of standard input), all or none; each line is a JSON object with "
        f"{', '.join(TASK_KEYS)}",
    )
    parser.set_defaults(run=run)
    parser.about_more = QUOTING


def run(server: TaskServer, options: argparse.Namespace) -> None:
    one_task = {key: getattr(options, _OPTIONS.get(key, key), None) for key in TASK_KEYS}
    if options.following is not None:
        one_task |= {"task": None, "stages": [*filter(None, [options.task]), *options.following]}
    given = {key: value for key, value in one_task.items() if value is not None}
    if options.bulk is not None and given:
        raise InvalidTask("--bulk takes everything from its file: give it alone")
    if options.bulk is None and options.task is None:
        raise InvalidTask("name a TASK, or --bulk FILE")
    try:
        tasks = _add_one(server, given) if options.bulk is None else _add_lines(server, options.bulk)
    except DatabaseError as error:
        if error.in_doubt:
            raise DatabaseError(f"{error}; what you gave may be added all the same: look first") from error
        raise
    warn_of_tasks(server, tasks)


def _add_one(server: TaskServer, given: dict[str, Any]) -> list[NewTask]:
    if "args" in given:
        given["args"] = read_args(given["args"])
    task = new_task(**given)
    task_id = server.store.producing.add(task)
    print(task_id)
    if task.unique_key is not None:
        with suppress(DatabaseError):  # it is added, even if this account may not read it
            if (state := server.get(task_id)) and state.status == Status.DONE:
                note(f"{CLIENT}: warning: task {task_id} is done and holds this key, so nothing runs; see --rerun")
    return [task]


# ---- JSON lines


def _add_lines(server: TaskServer, name: str) -> list[NewTask]:
    """Add the tasks of a file, all or none."""
    tasks = tasks_of(_lines(name))
    lines = list(tasks)
    server.store.producing.add_many(tasks.values(), lambda number: f"line {lines[number - 1]}")
    keyed = sum(task.unique_key is not None for task in tasks.values())
    or_there = f", or there already: {keyed} have a unique_key" if keyed else ""
    print(f"{count_of(len(tasks), 'task')} added{or_there}")
    return list(tasks.values())


def tasks_of(lines: Iterable[bytes]) -> dict[int, NewTask]:
    """The task of each line, by its number; empty lines are skipped. Raises InvalidTask."""
    tasks = {}
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                tasks[number] = _task_of(line)
            except InvalidTask as error:
                raise InvalidTask(f"line {number}: {error}; nothing was added") from None
    return tasks


def _lines(name: str) -> Iterator[bytes]:
    try:
        with nullcontext(sys.stdin.buffer) if name == "-" else open(name, "rb") as file:
            while line := file.readline(MAX_LINE_BYTES):
                yield line
    except OSError as error:
        raise SettingError(f"{name} cannot be read: {error.strerror}") from None


def _task_of(line: bytes) -> NewTask:
    if len(line) >= MAX_LINE_BYTES:
        raise InvalidTask(f"it is longer than {MAX_LINE_BYTES} bytes")
    try:
        return new_task_from(parse_json(line.decode("utf-8-sig"), "it"))
    except UnicodeDecodeError:
        raise InvalidTask("it is not UTF-8 text") from None
    except BadTask as error:
        raise InvalidTask(str(error)) from None


def _stage(text: str) -> Any:
    """An argument's type: a callable's name, or a JSON object that describes a stage."""
    if not text.lstrip().startswith("{"):
        return text
    try:
        return parse_json(text, "it")
    except BadTask as error:
        raise argparse.ArgumentTypeError(str(error)) from None


# ---- periodic tasks


def add_schedule(subparsers: Any) -> None:
    parser = subparsers.add_parser("schedule", description="add a task every so many seconds, or at the times of cron")
    parser.add_argument("name", metavar="NAME", help="the schedule's name; given again, it changes that schedule")
    arguments.add(parser, "task", nargs="?")
    arguments.add(parser, "args")
    parser.add_argument(
        "--every",
        metavar="S",
        type=whole_seconds(1, MAX_EVERY_SECONDS),
        help="every S seconds, from now on; also 5m or 1h",
    )
    parser.add_argument(
        "--cron", metavar="EXPR", help=f"or at the times of a cron expression, such as '{CRON_EXAMPLE}'"
    )
    parser.add_argument("--now", action="store_true", help="add the task of the existing schedule NAME once, now")
    parser.add_argument(
        "--timezone",
        metavar="Z",
        default=UTC,
        help="the time zone of --cron, such as Europe/Berlin; default %(default)s",
    )
    arguments.add_order(parser)
    parser.set_defaults(run=_schedule)
    parser.about_more = f"{QUOTING}, and EXPR too, such as '{CRON_EXAMPLE}'"


def add_unschedule(subparsers: Any) -> None:
    parser = subparsers.add_parser("unschedule", description="end a schedule; a task that it has added still runs")
    parser.add_argument("name", metavar="NAME", help=f"the schedule's name, as {CLIENT} status shows it")
    parser.set_defaults(run=_unschedule)


def _schedule(server: TaskServer, options: argparse.Namespace) -> None:
    if options.now:
        others = (options.task, options.every, options.cron, options.group, options.priority)
        if any(one is not None for one in others) or options.timezone != UTC:
            raise InvalidTask(f"--now takes only the name of a schedule that exists: {CLIENT} schedule NAME --now")
        server.store.tables.check()
        print(server.run_schedule_now(options.name))
        return
    if options.task is None:
        raise InvalidTask("name a TASK, and --every or --cron; or --now to add the task of a schedule that exists")
    server.store.tables.check()
    next_at = server.schedule(
        options.name,
        options.task,
        None if options.args is None else read_args(options.args),
        every=options.every,
        cron=options.cron,
        timezone=options.timezone,
        group_id=options.group or 0,
        priority=options.priority or 0,
    )
    print(printable(f"{options.name}: next at {exactly(next_at)}"))
    warn_of_tasks(server, [NewTask(options.task, options.args, options.group or 0, options.priority or 0)])


def _unschedule(server: TaskServer, options: argparse.Namespace) -> None:
    server.store.tables.check()
    if server.unschedule(options.name):
        print(printable(f"{options.name} is no longer scheduled"))
    else:
        # Not an error: a deploy script may end the schedule each time.
        note(f"there is no schedule {options.name!r}; {CLIENT} status lists them")
