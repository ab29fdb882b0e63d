"""How fast are tasks whose callable takes several at once, and what does that gain?"""

from __future__ import annotations

from collections.abc import Iterator

from taskserver import TaskServer

from . import floors
from .drain import must_be_empty
from .measure import Bound, Line, compare, seconds
from .place import DATABASE, Place
from .rows import fill

TABLE = "bench_batches"
MODULE = "bench_batch_tasks"
TASKS = """
from taskserver import task


@task(batch=100)
def by_100(items):
    pass


@task(batch=500)
def by_500(items):
    pass


def one(n):
    pass
"""
OF_FLOOR = Bound("at least", 0.8)
OF_ONE_BY_ONE = Bound("at least", 2.5)


def batches(place: Place) -> Iterator[Line]:
    """Runs of this process by 100 and by 500, against the bare loop and against one by one."""
    (place.folder / f"{MODULE}.py").write_text(TASKS)
    with TaskServer(place.dsn, table=TABLE, modules=MODULE, folder=place.folder) as server:
        server.create_tables()
        for batch in (100, 500):
            yield _beside_floor(place, server, batch)
        yield _beside_one_by_one(place, server)
    place.sql(f"DROP TABLE {TABLE}")


def _beside_floor(place: Place, server: TaskServer, batch: int) -> Line:
    # Whole claims, as the floor has a mark for each id.
    tasks = place.size(20_000, 1_000)
    connection = floors.connect(place.port, DATABASE, autocommit=False)
    try:
        return compare(
            f"batches of {batch}: {tasks:,} tasks",
            lambda: _rate(place, server, tasks, f"by_{batch}", batch),
            lambda: _rate_of_floor(place, connection, tasks, batch),
            pairs=place.pairs,
            unit="tasks/s",
            bound=OF_FLOOR,
        )
    finally:
        connection.close()


def _beside_one_by_one(place: Place, server: TaskServer) -> Line:
    tasks = place.size(5_000, 500)
    return compare(
        f"batches of 500 / one by one: {tasks:,} tasks",
        lambda: _rate(place, server, tasks, "by_500", 500),
        lambda: _rate(place, server, tasks, "one", 500),
        pairs=place.pairs,
        unit="tasks/s",
        bound=OF_ONE_BY_ONE,
    )


def _rate(place: Place, server: TaskServer, tasks: int, name: str, batch: int) -> float:
    fill(place, TABLE, tasks, f"{MODULE}.{name}")
    place.settle(5)
    took = seconds(lambda: server.run(batch=batch))
    must_be_empty(place, TABLE)
    return tasks / took


def _rate_of_floor(place: Place, connection: floors.Connection, tasks: int, batch: int) -> float:
    fill(place, TABLE, tasks)
    place.settle(5)
    took = seconds(lambda: floors.drain_batches(connection, TABLE, batch))
    must_be_empty(place, TABLE)
    return tasks / took
