"""client.py errors: the errors of failed tasks, the most frequent first."""

from __future__ import annotations

import argparse
from typing import Any

from ...model.task import MAX_SIGNED
from ...server import TaskServer
from ..terminal import arguments
from ..terminal.arguments import whole_number
from ..terminal.instants import headed, in_column
from ..terminal.output import as_json, error_as_json, print_table

DEFAULT_LIMIT = 20


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser("errors", help="what tasks in error and fatal ones failed with, counted")
    arguments.add(parser, "--group", "--task")
    parser.add_argument(
        "--limit", type=whole_number(1, MAX_SIGNED), default=DEFAULT_LIMIT, metavar="N", help="default %(default)s"
    )
    parser.add_argument("--json", action="store_true", help="print JSON alone")
    parser.set_defaults(run=run)


def run(server: TaskServer, options: argparse.Namespace) -> None:
    server.store.tables.check()
    errors = server.store.views.errors(options.groups or (), options.task, options.limit)
    if options.json:
        print(as_json([error_as_json(error) for error in errors]))
    elif not errors:
        print("no such task is in error or fatal" if options.groups or options.task else "no task is in error or fatal")
    else:
        print_table(
            ["tasks", "fatal", headed("first seen"), headed("last seen"), "example", "error"],
            [
                [
                    error.rows,
                    error.fatal,
                    *map(in_column, (error.first_seen, error.last_seen)),
                    error.example_id,
                    error.line,
                ]
                for error in errors
            ],
            unless_narrow=[headed("first seen")],
        )
