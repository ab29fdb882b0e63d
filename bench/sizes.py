"""A claim on PostgreSQL before a long queue, and after many tasks; and how large table and indexes become meanwhile."""

from __future__ import annotations

import time
from collections.abc import Iterator
from statistics import median

from taskserver import TaskServer
from taskserver.stores.queue.batches import Batches

from .measure import Bound, Line, line_of
from .place import Place
from .postgresql import database

WAITING = 2_000
AT_ONCE = 100
SIZE = "SELECT pg_total_relation_size('jobs_queue') / 1024"
FILL = """
    INSERT INTO jobs_queue (task, args, group_id, priority)
    SELECT 'tasks.x', '[1]', CASE n % 100 WHEN 0 THEN 3 WHEN 1 THEN 5 ELSE 7 END, n % 5 FROM generate_series(1, {}) AS n
"""
"""Of a hundred tasks one is of group 3, one of group 5, and all others stand between them."""
CLAIMS = 50


def pg_claim(place: Place) -> Iterator[Line]:
    """Claims of two groups, and of all, from a long queue beside a short one; most tasks are other groups'."""
    short, long = place.size(100_000, 10_000), place.size(10_000_000, 50_000)
    took: dict[str, list[float]] = {}
    for rows in (short, long):
        name = database(place)
        place.base.execute(name, FILL.format(rows))
        place.base.settle(name)
        with TaskServer(place.base.dsn(name)) as server:
            for words, groups in (("2 groups", (3, 5)), ("all groups", ())):
                took.setdefault(words, []).append(median(_claim(server, groups) for _ in range(CLAIMS)))
        place.base.drop(name)
    for words, (before, after) in took.items():
        pairs = [(after, before)]
        yield line_of(f"claim of {words}, {long:,} / {short:,} rows", pairs, unit="ms", bound=Bound("at most", 1.5))


def _claim(server: TaskServer, groups: tuple[int, ...]) -> float:
    """Milliseconds of a claim."""
    begun = time.perf_counter()
    server.store.claims.claim(20, groups)
    return (time.perf_counter() - begun) * 1000


def pg_churn(place: Place) -> Iterator[Line]:
    """The second half of many tasks beside the first: median of a claim, and the largest size of table and indexes."""
    own = database(place)
    tasks = place.size(1_000_000, 4_000)
    with TaskServer(place.base.dsn(own)) as server:
        server.add_tasks([{"task": "tasks.x", "args": [1]}] * WAITING)
        halves = [_half(place, server, own, tasks // 2) for _ in range(2)]
    place.base.drop(own)
    (first_ms, first_kib), (last_ms, last_kib) = halves
    name = f"{tasks:,} tasks in and out, second half / first"
    yield line_of(f"{name}: claim of {AT_ONCE}", [(last_ms, first_ms)], unit="ms", bound=Bound("at most", 1.5))
    yield line_of(f"{name}: largest size", [(last_kib, first_kib)], unit="KiB", bound=Bound("at most", 1.5))


def _half(place: Place, server: TaskServer, own: str, tasks: int) -> tuple[float, float]:
    """Milliseconds of a claim, the median; and the largest size in KiB."""
    batches, took, sizes = Batches(server.store), list[float](), list[float]()
    for number in range(tasks // AT_ONCE):
        server.add_tasks([{"task": "tasks.x", "args": [1]}] * AT_ONCE)
        begun = time.perf_counter()
        claimed = server.store.claims.claim(AT_ONCE, ()).tasks
        took.append((time.perf_counter() - begun) * 1000)
        batches.start(claimed, 3)
        batches.complete(claimed)
        if number % (tasks // AT_ONCE // 20 or 1) == 0:
            sizes.append(float(place.base.execute(own, SIZE)[0][0]))
    return median(took), max(sizes)
