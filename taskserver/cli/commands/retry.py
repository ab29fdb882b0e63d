"""client.py retry: tasks in error and fatal tasks run again now, with all their attempts."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from ...errors import InvalidTask
from ...model.field_checks import check_name
from ...model.task import Status
from ...server import TaskServer
from ...stores.queue.operations import PIPELINES, RETRY, RETRY_AS, Operations
from ..terminal.misnamed import warn_of_missing
from ..terminal.selecting import add_selection, change_chosen, selection_of


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser("retry", help="have tasks in error and fatal ones run again, attempts from 0")
    add_selection(parser, (Status.ERROR, Status.FATAL, Status.CANCELLED))
    parser.add_argument("--as", dest="as_task", metavar="NAME", help="under this name, where theirs was misspelt")
    parser.set_defaults(run=run)


def run(server: TaskServer, options: argparse.Namespace) -> None:
    if options.as_task is None:
        change_chosen(server, RETRY, options, "retried")
        return
    try:
        name = check_name(options.as_task)
    except InvalidTask as error:
        raise InvalidTask(f"--as: {error}") from None
    change_chosen(server, RETRY_AS, options, f"retried as {name}", (name,))
    warn_of_missing(server.settings, [name], "Under this name, too, they become fatal: is it the right one?")
    pipelines = 0 if options.ids else Operations(server.store).preview(PIPELINES, selection_of(options), 0).rows
    if pipelines:
        print(
            f"{pipelines} of these left, as they are pipelines, whose stages name callables, too: add them anew under "
            "the right names, and cancel these",
            file=sys.stderr,
        )
