"""What does a run cost that finds nothing to do, and does memory grow with the tasks that a run did?"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from taskserver import TaskServer

from .drain import must_be_empty
from .measure import Bound, Line, line_of
from .place import DATABASE, Cost, Place, launched
from .rows import fill

_SELECT_1 = (
    "import os, pymysql; c = pymysql.connect(host='127.0.0.1', port={port}, user='root', database={database!r}, "
    "password=os.environ['MYSQL_PWD']); "
    "k = c.cursor(); k.execute('SELECT 1'); k.fetchall(); c.close()"
)


def empty(place: Place) -> Iterator[Line]:
    """`worker.py 100 3,5,6` with its `.env` on an empty table, against import, connect, SELECT 1."""
    folder = place.deployment("empty", table="bench_empty")
    with TaskServer(place.dsn, table="bench_empty") as server:
        server.create_tables()
    select_1 = _SELECT_1.format(port=place.port, database=DATABASE)
    taken = []
    # One pair more than is counted: the first fills the disk's and the server's caches.
    for number in range(place.size(max(25, place.pairs), 2) + 1):
        commands = (["worker.py", "100", "3,5,6"], folder), (["-c", select_1], place.floors())
        if number % 2:
            theirs, ours = launched(*commands[1]), launched(*commands[0])
        else:
            ours, theirs = launched(*commands[0]), launched(*commands[1])
        taken.append((ours, theirs))
    del taken[0]
    figures: list[tuple[str, str, Bound | None, Callable[[Cost], float]]] = [
        ("empty run, CPU", "ms", Bound("at most", 1.1), lambda cost: cost.cpu_seconds * 1000),
        ("empty run, wall clock", "ms", None, lambda cost: cost.wall_seconds * 1000),
        ("empty run, peak memory", "MB", Bound("at most", 1.3), lambda cost: cost.peak_kb / 1024),
    ]
    for name, unit, bound, figure in figures:
        yield line_of(name, [(figure(ours), figure(theirs)) for ours, theirs in taken], unit=unit, bound=bound)


def memory(place: Place) -> Iterator[Line]:
    """Peak memory of worker.py after 100,000 tasks, against 5,000."""
    folder = place.deployment("memory", table="bench_memory")
    with TaskServer(place.dsn, table="bench_memory") as server:
        server.create_tables()

    def peak_mb(tasks: int) -> float:
        fill(place, "bench_memory", tasks)
        cost = launched(["worker.py", "0", "3,5,6"], folder)
        must_be_empty(place, "bench_memory")
        return cost.peak_kb / 1024

    many, few = place.size(100_000, 1_000), place.size(5_000, 300)
    # A peak has next to no noise, and 100,000 tasks take long.
    taken = [(peak_mb(many), peak_mb(few)) for _ in range(min(place.pairs, 3))]
    yield line_of(f"peak memory, {many:,} tasks and {few:,}", taken, unit="MB", bound=Bound("at most", 1.1))
