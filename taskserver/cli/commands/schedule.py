"""client.py schedule and unschedule: periodic tasks."""

from __future__ import annotations

import argparse
from typing import Any

from ...errors import InvalidTask
from ...messages.programs import CLIENT
from ...messages.text import exactly, printable
from ...model.new_task import NewTask
from ...model.schedule import CRON_EXAMPLE, MAX_EVERY_SECONDS, UTC
from ...server import TaskServer
from ..terminal import arguments
from ..terminal.arguments import QUOTING, read_args, whole_seconds
from ..terminal.output import note
from ..terminal.warnings import warn_of_tasks


def add_parser(subparsers: Any) -> None:
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


def add_parser_of_unschedule(subparsers: Any) -> None:
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
