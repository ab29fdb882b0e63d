"""client.py schedule: have a task added again and again; given again, it changes the values that differ."""

from __future__ import annotations

import argparse
from typing import Any

from ...messages.text import printable
from ...model.schedule import CRON_EXAMPLE, MAX_EVERY_SECONDS, UTC
from ...server import TaskServer
from ..terminal.arguments import whole_seconds
from ..terminal.instants import exactly
from ..terminal.misnamed import warn_of_missing
from ..terminal.task_arguments import QUOTING, describe_order, describe_task, read_args
from ..terminal.unserved import warn_of_unserved

MISNAMED = "The schedule stands all the same, and its tasks become fatal: give it again with the right name"


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser("schedule", help="add a task every so many seconds, or at the times of cron")
    parser.add_argument("name", metavar="NAME", help="of the schedule; given again, it is changed")
    describe_task(parser, is_required=True)
    parser.add_argument(
        "--every", metavar="S", type=whole_seconds(1, MAX_EVERY_SECONDS), help="every S seconds, or 5m, from now on; or"
    )
    parser.add_argument("--cron", metavar="EXPR", help=f"at the times of a cron expression, as '{CRON_EXAMPLE}'")
    parser.add_argument("--timezone", metavar="Z", default=UTC, help="of --cron, as Europe/Berlin; default UTC")
    describe_order(parser)
    parser.set_defaults(run=run)
    parser.about_more = f"{QUOTING}, and EXPR too, as '{CRON_EXAMPLE}'"


def run(server: TaskServer, options: argparse.Namespace) -> None:
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
    print(printable(f"{options.name}: next at {exactly(next_at.isoformat())}"))
    warn_of_missing(server.settings, [options.task], MISNAMED)
    warn_of_unserved(server, [options.group or 0])
