"""Does a claim cost the same in a large backlog as in a small one?"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from taskserver import TaskServer
from taskserver.model.task import Status

from . import rows
from .measure import Bound, Line, compare, seconds
from .place import Place
from .rows import OTHERS_SOONER, WANTED_SOONER, Filler

GROUPS = [3, 5, 6]


def claim(place: Place) -> Iterator[Line]:
    """On MariaDB."""
    yield _flat(place, "MariaDB", place.dsn, rows.mariadb(place))


def claim_sqlite(place: Place) -> Iterator[Line]:
    """On SQLite."""
    path = place.folder / "claim.db"
    yield _flat(place, "SQLite", f"sqlite:///{path}", rows.sqlite(path))


def _flat(place: Place, database: str, dsn: str, filler: Filler) -> Line:
    """A run of some claims from three groups at 1,000,000 waiting rows, and at 10,000.

    Half of the waiting rows are other groups' and sooner than all that is wanted, and for ten waiting rows there
    are three finished ones of the wanted groups, sooner too. The tables get back what a pair took.
    """
    tasks, far, near = place.size(2_000, 200), place.size(1_000_000, 4_000), place.size(10_000, 1_000)
    # In process, so that the start of Python doesn't hide what a claim costs.
    folder = place.deployment("claim")
    waiting = {"bench_far": far, "bench_near": near}
    servers = {table: TaskServer(dsn, table=table, folder=folder) for table in waiting}
    for table, count in waiting.items():
        servers[table].create_tables()
        filler.fill(table, count // 2, OTHERS_SOONER)
        filler.fill(table, count * 3 // 10, WANTED_SOONER, status=Status.DONE)
        filler.fill(table, count // 2)
    place.settle()

    def run(table: str) -> float:
        def work() -> None:
            done = servers[table].run(max_tasks=tasks, groups=GROUPS).done
            if done != tasks:
                raise SystemExit(f"{table}: {done} tasks done instead of {tasks}")

        return seconds(work) / tasks * 1e6

    def top_up() -> None:
        for table in waiting:
            filler.fill(table, tasks)
        place.settle()

    for table in waiting:
        run(table)
    top_up()
    line = compare(
        f"{database}: {tasks:,} at {far:,} / {near:,} waiting",
        partial(run, "bench_far"),
        partial(run, "bench_near"),
        pairs=place.pairs,
        unit="us/task",
        bound=Bound("at most", 1.2),
        after=top_up,
    )
    for table, server in servers.items():
        server.close()
        filler.sql(f"DROP TABLE {table}")
    return line
