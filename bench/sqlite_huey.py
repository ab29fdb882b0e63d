"""Tasks that share their commits (`@task(commit_every=50)`) on SQLite, beside SqliteHuey at the same durability."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from taskserver import TaskServer

from . import rows
from .measure import Bound, Line, compare, seconds
from .place import Place

MODULE = "bench_shared_tasks"
TASKS = """
from taskserver import task


@task(commit_every=50)
def by_50(n):
    pass
"""
EVERY = 50
OF_HUEY = Bound("at least", 1)
SYNCHRONOUS = {"full": 2, "normal": 1}


def sqlite_huey(place: Place) -> Iterator[Line]:
    """Runs of this process, against SqliteHuey's own loop; huey is installed by `make bench`."""
    if find_spec("huey") is None:
        return
    (place.folder / f"{MODULE}.py").write_text(TASKS)
    tasks = place.size(10_000, 500)
    for synchronous, level in SYNCHRONOUS.items():
        path = place.folder / f"huey_{synchronous}.db"
        with TaskServer(f"sqlite:///{path}?synchronous={synchronous}", modules=MODULE, folder=place.folder) as server:
            server.create_tables()
            yield _beside_huey(place, server, path, level, tasks, synchronous)


def _beside_huey(place: Place, server: TaskServer, path: Path, level: int, tasks: int, synchronous: str) -> Line:
    def ours() -> float:
        rows.sqlite(path).fill("jobs_queue", tasks, task=f"{MODULE}.by_50")
        took = seconds(server.run)
        with closing(sqlite3.connect(path)) as connection:
            if connection.execute("SELECT COUNT(*) FROM jobs_queue").fetchone() != (0,):
                raise SystemExit("tasks were left in SQLite")
        return tasks / took

    return compare(
        f"SQLite, {synchronous}: commit_every={EVERY}, {tasks:,} tasks / SqliteHuey",
        ours,
        lambda: _rate_of_huey(path.with_suffix(".huey"), level, tasks),
        pairs=place.pairs,
        unit="tasks/s",
        bound=OF_HUEY,
    )


def _rate_of_huey(path: Path, level: int, tasks: int) -> float:
    """Huey's consumer without threads and pauses: take a task, which commits, and execute it, until none is left."""
    queue, nothing = _huey(path, level)
    with closing(sqlite3.connect(path, isolation_level=None)) as quick:
        quick.execute("PRAGMA synchronous = OFF")
        data = [(queue.name, queue.serialize_task(nothing.s(n))) for n in range(tasks)]
        quick.execute("BEGIN")
        quick.executemany("INSERT INTO task (queue, data) VALUES (?, ?)", data)
        quick.execute("COMMIT")
    done = 0

    def drain() -> None:
        nonlocal done
        while (task := queue.dequeue()) is not None:
            queue.execute(task)
            done += 1

    took = seconds(drain)
    queue.storage.close()
    if done != tasks:
        raise SystemExit(f"huey did {done} of {tasks} tasks")
    return tasks / took


def _huey(path: Path, level: int) -> tuple[Any, Any]:
    """A queue, and its task that does nothing."""
    queue = import_module("huey").SqliteHuey("bench", filename=str(path))
    queue.storage.conn.execute(f"PRAGMA synchronous = {level}")  # huey's own option knows FULL and OFF alone
    return queue, queue.task()(_nothing)


def _nothing(n: int) -> None:
    """Do nothing."""
