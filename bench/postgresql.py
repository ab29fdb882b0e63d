"""Beside its peers on PostgreSQL: procrastinate, PgQueuer and Huey, and beside the bare loops, all equally durable.

Each has a database of its own on one server, and processes of its own; each figure is taken in turn with those that it
is compared with. A rate counts from the first call of a task to the last, so no start of a program is in it. Before the
first drain the tables are vacuumed and analyzed, as they would be by themselves a minute later.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from tests.support.postgresql import PostgreSQL

from .measure import Bound, Line, line_of

SERVER_SETTINGS = ("shared_buffers=1GB", "max_wal_size=4GB")
"""The memory of an ordinary server; the flushing is left as PostgreSQL's default has it."""
REPOSITORY = Path(__file__).resolve().parent.parent
OF_FLOOR, OF_PEER = Bound("at least", 0.8), Bound("at least", 1)


class Compared(NamedTuple):
    """A row: ours, beside what, and the bound of the ratio."""

    ours: str
    other: str
    bound: Bound


ADDED = [Compared("taskserver", other, bound) for other, bound in (("floor", OF_FLOOR), ("procrastinate", OF_PEER))]
ADDED += [Compared("taskserver", "pgqueuer by 10", OF_PEER)]
DRAINED = [
    Compared("taskserver", "floor", OF_FLOOR),
    Compared("taskserver", "procrastinate", OF_PEER),
    Compared("taskserver", "huey", OF_PEER),
    Compared("taskserver by 10", "pgqueuer by 10", OF_PEER),
    Compared("taskserver by 100", "pgqueuer by 100", OF_PEER),
]
QUOTAS = {"procrastinate": 400, "taskserver": 1_600, "floor": 1_600, "huey": 1_600}
"""How many tasks a drain takes, so that each lasts about a second."""
QUOTA_OF_BATCHES = 8_000


class PostgreSQLPlace(NamedTuple):
    """A server to measure on; `pairs` and `quick` are how much to measure."""

    server: PostgreSQL
    pairs: int
    quick: bool

    def size(self, full: int, quick: int) -> int:
        """How many rows: the full number, or the small one of a smoke test."""
        return quick if self.quick else full

    def must_be_durable(self) -> None:
        """Refuse a server that doesn't flush at each commit."""
        for setting in ("fsync", "synchronous_commit", "full_page_writes"):
            if self.server.execute(f"SHOW {setting}") != [("on",)]:
                raise SystemExit(f"the server is not durable: {setting} is not on")

    def database(self, peer: str) -> str:
        """A new database with the peer's tables; its name."""
        name = self.server.create_database()
        self.act("taskserver" if peer.startswith("floor") else peer, "install", name)
        return name

    def prepare(self, database: str) -> None:
        """Bring statistics up to date, and leave nothing to be written out."""
        self.server.execute("VACUUM ANALYZE", "CHECKPOINT", database=database)

    def start(self, peer: str, verb: str, database: str, count: int = 0) -> subprocess.Popen[str]:
        """A process of a peer that is ready to act."""
        environment = dict(os.environ, BENCH_DSN=self.server.dsn(database))
        process = subprocess.Popen(
            [sys.executable, "-m", "bench.peers", peer, verb, str(count)],
            cwd=REPOSITORY,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        if process.stdout.readline() != "ready\n":
            raise SystemExit(f"{peer}, {verb}: it did not start")
        return process

    def let_go(self, process: subprocess.Popen[str]) -> None:
        """Have a process act."""
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()

    def act(self, peer: str, verb: str, database: str, count: int = 0, processes: int = 1) -> float:
        """Have processes act at once, and share the count; the calls a second of all."""
        with ExitStack() as stack:
            started = [
                stack.enter_context(self.start(peer, verb, database, count // processes)) for _ in range(processes)
            ]
            for process in started:
                self.let_go(process)
            said = [process.communicate()[0].split() for process in started]
        if any(process.returncode for process in started):
            raise SystemExit(f"{peer}, {verb}: it ended with an error")
        figures = [list(map(float, words)) for words in said if int(words[0])]  # a worker may have got nothing
        took = max((last for _, _, last in figures), default=0) - min((first for _, first, _ in figures), default=0)
        return sum(count for count, _, _ in figures) / took if took else 0.0


def pg_add(place: PostgreSQLPlace) -> Iterator[Line]:
    """A producer that adds tasks one by one; Huey, too."""
    compared = [*ADDED, Compared("taskserver", "huey", OF_PEER)]
    tasks = place.size(2_000, 50)
    databases = {peer: place.database(peer) for peer in _peers(compared)}
    yield from _lines(
        place, f"add {tasks:,} one by one", "rows/s", compared, databases, "add", dict.fromkeys(databases, tasks)
    )


def pg_add_many(place: PostgreSQLPlace) -> Iterator[Line]:
    """A producer that adds tasks all at once, and gets their ids."""
    tasks = place.size(50_000, 500)
    databases = {peer: place.database(peer) for peer in _peers(ADDED)}
    yield from _lines(
        place, f"add {tasks:,} at once", "rows/s", ADDED, databases, "add_many", dict.fromkeys(databases, tasks)
    )


def pg_drain(place: PostgreSQLPlace) -> Iterator[Line]:
    """Workers that take part of 10,000 waiting tasks, which are filled up each time."""
    yield from _drain(place, place.size(10_000, 200), fills_up=True)


def pg_drain_of_million(place: PostgreSQLPlace) -> Iterator[Line]:
    """Workers that take part of 1,000,000 waiting tasks."""
    yield from _drain(place, place.size(1_000_000, 1_000), fills_up=False)


def _drain(place: PostgreSQLPlace, waiting: int, fills_up: bool) -> Iterator[Line]:
    peers = _peers(DRAINED)
    databases = {peer: place.database(peer) for peer in peers}
    for peer, database in databases.items():
        place.act(peer, "fill", database, waiting)
        place.prepare(database)
    quotas = {peer: place.size(QUOTAS.get(peer, QUOTA_OF_BATCHES), 100) for peer in peers}
    for processes in (1, 2, 4):
        name = f"{processes} workers at {waiting:,}"
        yield from _lines(place, name, "tasks/s", DRAINED, databases, "run", quotas, processes, fills_up)
    for database in databases.values():
        place.server.drop_database(database)


def _lines(
    place: PostgreSQLPlace,
    name: str,
    unit: str,
    compared: Sequence[Compared],
    databases: dict[str, str],
    verb: str,
    counts: dict[str, int],
    processes: int = 1,
    fills_up: bool = False,
) -> Iterator[Line]:
    """Each peer in turn, forwards and backwards, `pairs` times."""
    taken: dict[str, list[float]] = {peer: [] for peer in databases}
    for number in range(place.pairs):
        for peer in list(databases)[:: -1 if number % 2 else 1]:
            taken[peer].append(place.act(peer, verb, databases[peer], counts[peer], processes))
            if fills_up:
                place.act(peer, "fill", databases[peer], counts[peer])
    for row in compared:
        pairs = list(zip(taken[row.ours], taken[row.other], strict=True))
        yield line_of(f"{name}: {row.ours} / {row.other}", pairs, unit=unit, bound=row.bound)


def _peers(compared: Sequence[Compared]) -> list[str]:
    """Each name once, those that are compared near each other."""
    return list(dict.fromkeys(name for row in compared for name in (row.ours, row.other)))
