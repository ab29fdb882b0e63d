"""How fast are tasks added, one by one and many at once?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from taskserver import TaskServer

from . import floors
from .measure import Bound, Line, compare, compare_slices, seconds
from .place import DATABASE, TASK, Place

_INSTANTS = ("created_at", "updated_at")


def add(place: Place) -> Iterator[Line]:
    """`add_task` against an INSERT loop."""
    rows = _rows(place.size(2_000, 100))
    connection = floors.connect(place.port, DATABASE, autocommit=True)
    with TaskServer(place.dsn, table="bench_add") as server:
        _make(place, server)

        def ours(begin: int, end: int) -> None:
            for task, args, group, priority in rows[begin:end]:
                server.add_task(task, args, group_id=group, priority=priority)

        yield compare_slices(
            f"add_task, {len(rows):,} one by one",
            ours,
            lambda begin, end: floors.add_one_by_one(connection, "bench_add_floor", rows[begin:end]),
            rows=len(rows),
            pairs=place.pairs,
            bound=Bound("at least", 0.9),
            after=lambda: _compare_and_clear(place),
        )
    connection.close()


def add_many(place: Place) -> Iterator[Line]:
    """`add_tasks` against multi-row INSERTs of a thousand rows in one transaction."""
    rows = _rows(place.size(50_000, 2_500))
    tasks = [{"task": task, "args": args, "group_id": group, "priority": pr} for task, args, group, pr in rows]
    connection = floors.connect(place.port, DATABASE, autocommit=False)
    with TaskServer(place.dsn, table="bench_add") as server:
        _make(place, server)
        yield compare(
            f"add_tasks, {len(rows):,} at once",
            lambda: len(rows) / seconds(lambda: server.add_tasks(tasks)),
            lambda: len(rows) / seconds(lambda: floors.add_many(connection, "bench_add_floor", rows)),
            pairs=place.pairs,
            unit="rows/s",
            bound=Bound("at least", 0.8),
            after=lambda: _compare_and_clear(place),
        )
    connection.close()


def _rows(count: int) -> list[floors.Row]:
    return [(TASK, {"to": f"reader{n}@example.org", "n": n}, (3, 5, 6)[n % 3], n % 5) for n in range(count)]


def _make(place: Place, server: TaskServer) -> None:
    server.create_tables()
    server.add_task(TASK)  # Connects and warms up.
    with TaskServer(place.dsn, table="bench_add_floor") as other:
        other.create_tables()
    for table in ("bench_add", "bench_add_floor"):
        place.sql(f"TRUNCATE TABLE {table}")


def _compare_and_clear(place: Place) -> None:
    """Both sides must have stored equal rows, instants and ids apart; then empty the tables for the next pair."""
    ours, theirs = (_stored(place, table) for table in ("bench_add", "bench_add_floor"))
    if ours != theirs:
        odd = next((pair for pair in zip(ours, theirs, strict=False) if pair[0] != pair[1]), (len(ours), len(theirs)))
        raise SystemExit(f"the floor stores other rows than ours: {odd}")
    for table in ("bench_add", "bench_add_floor"):
        place.sql(f"TRUNCATE TABLE {table}")
    place.settle()


def _stored(place: Place, table: str) -> list[tuple[Any, ...]]:
    names = [row[0] for row in place.base.execute(DATABASE, f"SHOW COLUMNS FROM {table}")]
    columns = ", ".join(name for name in names if name not in ("id", *_INSTANTS))
    return list(place.base.execute(DATABASE, f"SELECT {columns} FROM {table} ORDER BY id"))
