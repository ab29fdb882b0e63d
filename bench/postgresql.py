"""On PostgreSQL: beside the bare loop that makes the same durable writes. Other queues are in `bench.peers`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from taskserver import TaskServer

from .floor_postgresql import Floor
from .measure import Bound, Line, compare, compare_slices, seconds
from .place import Place

OF_FLOOR = Bound("at least", 0.8)
FILL = "INSERT INTO jobs_queue (task, args) SELECT '{}', '[' || n || ']' FROM generate_series(1, {}) AS n"


def database(place: Place) -> str:
    """A new database with our tables; its name."""
    name = place.base.server.create_database()
    ours(place, name).create_tables()
    return name


def ours(place: Place, name: str) -> TaskServer:
    return TaskServer(place.base.dsn(name), modules=__name__, folder=Path(__file__).parents[1])


def nothing(n: int) -> None:
    """The task of ours."""


def pg_add(place: Place) -> Iterator[Line]:
    """A producer that adds tasks one by one."""
    tasks, (one, other) = place.size(2_000, 100), (database(place), database(place))
    server, floor = ours(place, one), Floor(place.base.dsn(other))
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


def pg_add_many(place: Place) -> Iterator[Line]:
    """A producer that adds tasks all at once, and gets their ids."""
    tasks, (one, other) = place.size(50_000, 500), (database(place), database(place))
    server, floor = ours(place, one), Floor(place.base.dsn(other))
    rows = [{"task": nothing, "args": [n]} for n in range(tasks)]
    yield compare(
        f"add {tasks:,} at once",
        lambda: tasks / seconds(lambda: server.add_tasks(rows)),
        lambda: tasks / seconds(lambda: floor.add_many(range(tasks))),
        pairs=place.pairs,
        unit="rows/s",
        bound=OF_FLOOR,
    )


def pg_drain(place: Place) -> Iterator[Line]:
    """A worker that takes part of 10,000 waiting tasks, which are filled up each time, and of 1,000,000."""
    quota = place.size(1_600, 100)
    for waiting in (place.size(10_000, 200), place.size(1_000_000, 1_000)):
        one, other = database(place), database(place)
        server, floor = ours(place, one), Floor(place.base.dsn(other))
        task = f"{__name__}.nothing"
        for name in (one, other):
            place.base.execute(name, FILL.format(task, waiting))
            place.base.settle(name)

        def fill_up(names: tuple[str, str] = (one, other), task: str = task) -> None:
            for name in names:
                place.base.execute(name, FILL.format(task, quota))

        yield compare(
            f"1 worker at {waiting:,}",
            lambda server=server: quota / seconds(lambda: server.run(quota)),  # type: ignore[misc]
            lambda floor=floor: quota / seconds(lambda: floor.run(quota)),  # type: ignore[misc]
            pairs=place.pairs,
            unit="tasks/s",
            bound=OF_FLOOR,
            after=fill_up,
        )
