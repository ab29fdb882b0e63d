"""For the record, without a bound: the driver's own rates on this machine, drains by several workers, SQLite."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from taskserver import TaskServer

from . import floors
from .drain import must_be_empty
from .measure import Rate, rate, repeat, seconds
from .place import DATABASE, TASK, Place, environment, launched
from .rows import fill


def record(place: Place) -> Iterator[Rate]:
    """Rates of plain PyMySQL, with those that were measured before on another machine."""
    times = place.size(5_000, 100)
    rows = [(TASK, '{"n": 1}', 3, 10)] * times
    many = [(TASK, {"n": 1}, 3, 10)] * place.size(50_000, 2_000)
    each = floors.connect(place.port, DATABASE, autocommit=True)
    own = floors.connect(place.port, DATABASE, autocommit=False)
    with TaskServer(place.dsn, table="bench_record") as server:
        server.create_tables()
    place.sql("TRUNCATE TABLE bench_record")

    def fresh_ids() -> list[int]:
        place.sql("TRUNCATE TABLE bench_record")
        fill(place, "bench_record", times)
        return list(range(1, times + 1))

    def updates() -> float:
        ids = fresh_ids()
        return times / seconds(lambda: floors.update_by_key(own, "bench_record", ids))

    def deletes() -> float:
        ids = fresh_ids()
        took = seconds(lambda: floors.delete_by_key(own, "bench_record", ids))
        must_be_empty(place, "bench_record")
        return times / took

    def inserts() -> float:
        return times / seconds(lambda: floors.add_texts_one_by_one(each, "bench_record", rows))

    def bulk() -> float:
        return len(many) / seconds(lambda: floors.add_many(own, "bench_record", many))

    def selects() -> float:
        return times / seconds(lambda: floors.select_one(each, times))

    for name, measure, unit, noted in (
        ("PyMySQL: SELECT 1", selects, "1/s", "28,000-52,000"),
        ("PyMySQL: autocommit INSERT", inserts, "rows/s", "15,000-19,000"),
        ("PyMySQL: UPDATE by key, commit", updates, "rows/s", "9,000-17,000"),
        ("PyMySQL: DELETE by key, commit", deletes, "rows/s", "9,000-17,000"),
        ("PyMySQL: INSERT of 1,000 rows", bulk, "rows/s", "77,000-180,000"),
    ):
        yield repeat(name, measure, times=place.pairs, unit=unit, noted=noted)
    each.close()
    own.close()


def workers(place: Place) -> Iterator[Rate]:
    """Drains by one, two and four worker processes that start together, in turn."""
    tasks = place.size(10_000, 300)
    folder = place.deployment("workers", table="bench_workers")
    with TaskServer(place.dsn, table="bench_workers") as server:
        server.create_tables()

    def drain_by(processes: int) -> float:
        fill(place, "bench_workers", tasks)
        place.settle(5)
        took = seconds(lambda: _run_together(processes, folder))
        must_be_empty(place, "bench_workers")
        return tasks / took

    taken: dict[int, list[float]] = {1: [], 2: [], 4: []}
    for _ in range(place.pairs):
        for processes, rates in taken.items():
            rates.append(drain_by(processes))
    for processes, rates in taken.items():
        noted = {1: "4,700-5,900"}.get(processes, "")
        yield rate(f"drain of {tasks:,} by {processes} workers", rates, "tasks/s", noted)


def _run_together(processes: int, folder: Path) -> None:
    started = [
        subprocess.Popen([sys.executable, "worker.py", "0", "3,5,6"], cwd=folder, env=environment())
        for _ in range(processes)
    ]
    codes = [process.wait() for process in started]
    if any(codes):
        raise SystemExit("a worker ended with an error")


def sqlite(place: Place) -> Iterator[Rate]:
    """A drain and adds on the embedded SQLite."""
    tasks = place.size(5_000, 300)
    folder = place.deployment("sqlite", dsn="sqlite:///var/bench.db")
    shutil.rmtree(folder / "var", ignore_errors=True)
    with TaskServer.from_env(folder) as server:
        server.create_tables()

        def one_by_one() -> None:
            for n in range(tasks):
                server.add_task(TASK, {"n": n}, group_id=(3, 5, 6)[n % 3], priority=n % 5)

        def drained() -> None:
            launched(["worker.py", "0", "3,5,6"], folder)

        adds, drains = [], []
        for _ in range(place.pairs):
            adds.append(tasks / seconds(one_by_one))
            drains.append(tasks / seconds(drained))
        yield rate(f"SQLite: add_task, {tasks:,} one by one", adds, "rows/s", "18,000-24,000 (SqliteHuey)")
        yield rate(f"SQLite: drain of {tasks:,} by worker.py", drains, "tasks/s", "13,000 (SqliteHuey)")
