"""`python -m bench.peers PEER VERB COUNT`: one process of a peer on the database BENCH_DSN.

Says "ready", waits for a line on standard input, acts, and says how many calls there were, and when the first and the
last was, by the clock that all processes of a machine share.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Protocol

from .calls import CALLS


class Peer(Protocol):
    """A queue on PostgreSQL."""

    def install(self) -> None:
        """Make its tables in an empty database."""

    def add(self, numbers: range) -> None:
        """Add tasks one by one, each with a commit, from one connection."""

    def add_many(self, numbers: range, at_once: int) -> None:
        """Add tasks so many at once."""

    def fill(self, numbers: range) -> None:
        """The same, in whatever way is quick."""

    def run(self) -> None:
        """Run tasks until none is left, or the quota is reached."""


PEERS: dict[str, tuple[str, str, tuple[object, ...]]] = {
    "taskserver": ("ours", "Ours", ("each",)),
    "taskserver by 10": ("ours", "Ours", ("by_10",)),
    "taskserver by 100": ("ours", "Ours", ("by_100",)),
    "floor": ("floor", "Floor", ()),
    "procrastinate": ("of_procrastinate", "Procrastinate", (10,)),
    "pgqueuer by 10": ("of_pgqueuer", "PgQueuer", (10,)),
    "pgqueuer by 100": ("of_pgqueuer", "PgQueuer", (100,)),
    "huey": ("of_huey", "Huey", ()),
}
"""The module of each, its class, and arguments of that."""
AT_ONCE = 50_000


def main(name: str, verb: str, count: int) -> None:
    """Act once; `count` is how many tasks to add, or to run at most (0: all)."""
    module, class_name, arguments = PEERS[name]
    peer: Peer = getattr(import_module(f"bench.peers.{module}"), class_name)(os.environ["BENCH_DSN"], *arguments)
    print("ready", flush=True)
    sys.stdin.readline()
    if verb == "add":
        peer.add(range(count))
    elif verb == "add_many":
        peer.add_many(range(count), AT_ONCE)
    elif verb == "fill":
        peer.fill(range(count))
    elif verb == "run":
        CALLS.quota = count
        peer.run()
    else:
        peer.install()
    print(CALLS.count, CALLS.first_at, CALLS.last_at)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
