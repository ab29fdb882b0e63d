"""client.py cancel: waiting tasks will not run, running tasks are interrupted."""

from __future__ import annotations

import argparse
from typing import Any

from ...health.overview import gone_among
from ...model.task import Status
from ...server import TaskServer
from ...stores.queue.operations import CANCEL, Operations
from ..terminal.selecting import add_selection, change_chosen


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser("cancel", help="cancel tasks; running ones are interrupted")
    add_selection(parser, (Status.NEW, Status.IN_PROGRESS, Status.ERROR, Status.FATAL, Status.WAITING))
    parser.set_defaults(run=run)


def run(server: TaskServer, options: argparse.Namespace) -> None:
    changed = change_chosen(server, CANCEL, options, "cancelled")
    tasks = Operations(server.store).still_running() if changed and not options.dry_run else []
    gone = len(gone_among(server, tasks))
    running = len(tasks) - gone
    if gone:
        subject = "the process of 1 cancelled task is" if gone == 1 else f"the processes of {gone} cancelled tasks are"
        print(f"{subject} gone: a worker ends {'it' if gone == 1 else 'them'} once the lease is over")
    if running:
        # A worker looks when it renews its lease, three times in its length.
        seconds = server.settings.lease_seconds / 3
        subject = "1 cancelled task is" if running == 1 else f"{running} cancelled tasks are"
        print(
            f"{subject} still running, to be interrupted at the next call of taskserver.progress() or "
            f"current_task(), or else within some {seconds:.0f} s, by the workers' TASKSERVER_LEASE; one that "
            "succeeds before that is done, unless it is a stage that others follow"
        )
