"""On PostgreSQL: beside the bare loop that makes the same durable writes. Other queues are in `bench.peers`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from taskserver import TaskServer
from tests.support.postgresql import PostgreSQL

from .floor_postgresql import Floor
from .measure import Bound, Line, compare, compare_slices, seconds

SERVER_SETTINGS = ("shared_buffers=1GB", "max_wal_size=4GB")
"""The memory of an ordinary server; the flushing is left as PostgreSQL's default has it."""
OF_FLOOR = Bound("at least", 0.8)
FILL = "INSERT INTO jobs_queue (task, args) SELECT '{}', '[' || n || ']' FROM generate_series(1, {}) AS n"


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

    def database(self) -> str:
        """A new database with our tables; its name."""
        name = self.server.create_database()
        self.ours(name).create_tables()
        return name

    def ours(self, database: str) -> TaskServer:
        return TaskServer(self.server.dsn(database), modules=__name__, folder=Path(__file__).parents[1])

    def floor(self, database: str) -> Floor:
        return Floor(self.server.dsn(database))

    def prepare(self, database: str) -> None:
        """Bring statistics up to date, and leave nothing to be written out."""
        self.server.execute("VACUUM ANALYZE", "CHECKPOINT", database=database)


def nothing(n: int) -> None:
    """The task of ours."""


def pg_add(place: PostgreSQLPlace) -> Iterator[Line]:
    """A producer that adds tasks one by one."""
    tasks, (one, other) = place.size(2_000, 100), (place.database(), place.database())
    server, floor = place.ours(one), place.floor(other)
    server.add_task(nothing, [0])
    yield compare_slices(
        f"add {tasks:,} one by one",
        lambda begin, end: [server.add_task(nothing, [n]) for n in range(begin, end)],
        lambda begin, end: floor.add(range(begin, end)),
        rows=tasks,
        pairs=place.pairs,
        bound=OF_FLOOR,
        after=lambda: None,
    )


def pg_add_many(place: PostgreSQLPlace) -> Iterator[Line]:
    """A producer that adds tasks all at once, and gets their ids."""
    tasks, (one, other) = place.size(50_000, 500), (place.database(), place.database())
    server, floor = place.ours(one), place.floor(other)
    rows = [{"task": nothing, "args": [n]} for n in range(tasks)]
    yield compare(
        f"add {tasks:,} at once",
        lambda: tasks / seconds(lambda: server.add_tasks(rows)),
        lambda: tasks / seconds(lambda: floor.add_many(range(tasks))),
        pairs=place.pairs,
        unit="rows/s",
        bound=OF_FLOOR,
    )


def pg_drain(place: PostgreSQLPlace) -> Iterator[Line]:
    """A worker that takes part of 10,000 waiting tasks, which are filled up each time, and of 1,000,000."""
    quota = place.size(1_600, 100)
    for waiting in (place.size(10_000, 200), place.size(1_000_000, 1_000)):
        one, other = place.database(), place.database()
        server, floor = place.ours(one), place.floor(other)
        task = f"{__name__}.nothing"
        for database in (one, other):
            place.server.execute(FILL.format(task, waiting), database=database)
            place.prepare(database)

        def fill_up(databases: tuple[str, str] = (one, other), task: str = task) -> None:
            for database in databases:
                place.server.execute(FILL.format(task, quota), database=database)

        yield compare(
            f"1 worker at {waiting:,}",
            lambda server=server: quota / seconds(lambda: server.run(quota)),  # type: ignore[misc]
            lambda floor=floor: quota / seconds(lambda: floor.run(quota)),  # type: ignore[misc]
            pairs=place.pairs,
            unit="tasks/s",
            bound=OF_FLOOR,
            after=fill_up,
        )
