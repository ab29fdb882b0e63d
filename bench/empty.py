"""What does a run cost that finds nothing to do?"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from taskserver import TaskServer

from .measure import Bound, Line, line_of
from .place import DATABASE, Cost, Place, launched

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
