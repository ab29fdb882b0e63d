"""client.py reclaim: wakes and takes back all that runs would, at once; by force also tasks whose lease holds."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from ...errors import InvalidTask
from ...model.task import Status
from ...server import TaskServer
from ...stores.queue.operations import END_LEASE
from ..terminal.selecting import add_selection, change_chosen, counted, is_chosen


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser("reclaim", help="wake what is due, and take back what ended leases hold, now")
    add_selection(parser, (Status.IN_PROGRESS,))
    parser.add_argument(
        "--force",
        action="store_true",
        help="take back the chosen tasks, though their lease holds: they may run twice",
    )
    parser.set_defaults(run=run)


def run(server: TaskServer, options: argparse.Namespace) -> None:
    if options.dry_run and not options.force:
        raise InvalidTask("--dry-run goes with --force")
    if not options.force and (is_chosen(options) or options.limit):
        raise InvalidTask("tasks are chosen for --force alone: without it everything that is due is taken back")
    server.store.tables.check()
    forced = _force(server, options) if options.force else 0
    if forced and not options.dry_run:
        print("A worker that is alive may still be running such a task, which may so run twice.", file=sys.stderr)
    if not options.dry_run:
        reclaimed = server.reclaim()
        lost = f", {reclaimed.lost} in whose midst a worker vanished: that attempt failed" if reclaimed.lost else ""
        orphaned = f", {reclaimed.orphaned} that waited for tasks which are gone" if reclaimed.orphaned else ""
        print(f"{counted(reclaimed.woken)} woken, {reclaimed.unstarted} taken back unstarted{lost}{orphaned}")
        if reclaimed.left:
            print(f"{counted(reclaimed.left)} left, as other programs hold them: try again", file=sys.stderr)


def _force(server: TaskServer, options: argparse.Namespace) -> int:
    done, done_to_one = "taken from their workers", "taken from its worker"
    return change_chosen(server, END_LEASE, options, done, done_to_one=done_to_one)
