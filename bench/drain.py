"""How fast does worker.py empty a table of tasks that do nothing, its start-up included?"""

from __future__ import annotations

from collections.abc import Iterator

from taskserver import TaskServer

from .measure import Bound, Line, compare
from .place import DATABASE, Place, launched
from .rows import count, fill

AT_LEAST = Bound("at least", 0.8)


def drain(place: Place) -> Iterator[Line]:
    """`worker.py 0 3,5,6` and `worker.py 0`, each against the bare loop that makes the same durable writes."""
    tasks = place.size(5_000, 300)
    folder = place.deployment("drain", table="bench_drain")
    for table in ("bench_drain", "bench_drain_floor"):
        with TaskServer(place.dsn, table=table) as server:
            server.create_tables()

    for arguments, groups in ((["0", "3,5,6"], (3, 5, 6)), (["0"], ())):

        def ours(arguments: list[str] = arguments) -> float:
            fill(place, "bench_drain", tasks)
            place.settle()
            cost = launched(["worker.py", *arguments], folder)
            must_be_empty(place, "bench_drain")
            return tasks / cost.wall_seconds

        def floor(groups: tuple[int, ...] = groups) -> float:
            fill(place, "bench_drain_floor", tasks)
            place.settle()
            program = f"from floors import drain; drain({place.port}, {DATABASE!r}, 'bench_drain_floor', {groups})"
            cost = launched(["-c", program], place.floors())
            must_be_empty(place, "bench_drain_floor")
            return tasks / cost.wall_seconds

        name = f"drain of {tasks:,}: worker.py {' '.join(arguments)}"
        yield compare(name, ours, floor, pairs=place.pairs, unit="tasks/s", bound=AT_LEAST)


def must_be_empty(place: Place, table: str) -> None:
    """A drain that left something was not one."""
    left = count(place, table)
    if left:
        raise SystemExit(f"{left} rows were left in {table}")
