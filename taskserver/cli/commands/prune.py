"""client.py prune: deletes old rows, in small portions."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from ...messages.programs import CLIENT
from ...messages.text import age, count_of
from ...server import TaskServer
from ...stores import Store
from ...stores.queue.pruning import KINDS, Pruned, Pruning
from ..terminal.arguments import span


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser("prune", help="delete what ended long ago: done and archived tasks, or others")
    parser.add_argument("--older-than", metavar="AGE", type=span, required=True, help="as 30d: s, m, h, d or w")
    parser.add_argument("--done", action="store_true", help="tasks that are done, as mode mark leaves them")
    parser.add_argument("--fatal", action="store_true", help="fatal and cancelled tasks")
    parser.add_argument("--archived", action="store_true", help="the archive, where mode move puts what is done")
    parser.add_argument("--stats", action="store_true", help=f"figures, which {CLIENT} stats shows")
    parser.add_argument("--keys", action="store_true", help="tasks of the queue that hold a unique_key, too")
    parser.add_argument("--dry-run", action="store_true", help="say what would be deleted, and delete nothing")
    parser.set_defaults(run=run)


def run(server: TaskServer, options: argparse.Namespace) -> None:
    named = [kind for kind in KINDS if getattr(options, kind)]
    server.store.tables.check()
    pruning = Pruning(server.store, options.older_than, named, options.keys)
    pruned = pruning.count() if options.dry_run else pruning.run()
    _show(server.store, pruned, pruning.kinds, options)


def _show(store: Store, pruned: Pruned, kinds: list[str], options: argparse.Namespace) -> None:
    counts = ", ".join(_counted(kind, getattr(pruned, kind)) for kind in kinds)
    verb = "would be deleted" if options.dry_run else "deleted"
    print(f"{counts}, older than {age(options.older_than)}: {verb}")
    if pruned.held:
        print(
            f"{count_of(pruned.held, 'task')} left: other programs hold them, or a foreign key or trigger",
            file=sys.stderr,
        )
    if pruned.deleted and not options.dry_run:
        print(f"The space on the disk: {store.about_space.format(_tables(store, pruned))}.")


def _counted(kind: str, rows: int) -> str:
    if kind == "stats":
        return f"{rows} row{'s' if rows != 1 else ''} of figures"
    words = "fatal or cancelled" if kind == "fatal" else kind
    return f"{rows} {words} task{'s' if rows != 1 else ''}"


def _tables(store: Store, pruned: Pruned) -> str:
    """The names of the tables from which rows were deleted."""
    deleted = {"": pruned.done + pruned.fatal, "_done": pruned.archived, "_stats": pruned.stats}
    return ", ".join(f"{store.table}{name}" for name, rows in deleted.items() if rows)
