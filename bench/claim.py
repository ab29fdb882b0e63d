"""Does a claim cost the same in a large backlog as in a small one?"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
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
    are three finished ones of the wanted groups, sooner too.
    """
    far, near = place.size(1_000_000, 4_000), place.size(10_000, 1_000)

    def fill(table: str, waiting: int) -> None:
        filler.fill(table, waiting // 2, OTHERS_SOONER)
        filler.fill(table, waiting * 3 // 10, WANTED_SOONER, status=Status.DONE)
        filler.fill(table, waiting // 2)

    tables = {"bench_far": partial(fill, waiting=far), "bench_near": partial(fill, waiting=near)}
    return compare_runs(place, f"{database}: {{}} at {far:,} / {near:,} waiting", dsn, filler, tables)


def compare_runs(
    place: Place, name: str, dsn: str, filler: Filler, tables: Mapping[str, Callable[[str], None]]
) -> Line:
    """A run of some claims from the first table, and from the second; each is filled by its function.

    The tables get back what a pair took. `{}` in the name is how many tasks a run takes.
    """
    tasks = place.size(2_000, 200)
    # In process, so that the start of Python doesn't hide what a claim costs.
    folder = place.deployment("claim")
    servers = {table: TaskServer(dsn, table=table, folder=folder) for table in tables}
    for table, fill in tables.items():
        servers[table].create_tables()
        fill(table)
    place.settle()

    def run(table: str) -> float:
        def work() -> None:
            done = servers[table].run(max_tasks=tasks, groups=GROUPS).done
            if done != tasks:
                raise SystemExit(f"{table}: {done} tasks done instead of {tasks}")

        return seconds(work) / tasks * 1e6

    def top_up() -> None:
        for table in tables:
            filler.fill(table, tasks)
        place.settle(5)

    for table in tables:
        run(table)
    top_up()
    ours, floor = tables
    line = compare(
        name.format(f"{tasks:,}"),
        lambda: run(ours),
        lambda: run(floor),
        pairs=place.pairs,
        unit="us/task",
        bound=Bound("at most", 1.2),
        after=top_up,
    )
    for table, server in servers.items():
        server.close()
        filler.sql(f"DROP TABLE {table}")
    return line
