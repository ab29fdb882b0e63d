"""The steps of docs/scaling.md, each against the one before: more workers, shared commits, groups, a second server."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from taskserver import TaskServer

from .bases import OnMariaDB
from .drain import must_be_empty
from .measure import Line, compare
from .place import DATABASE, Place, launched, rate
from .rows import mariadb

TABLE = "bench_spread"
TASKS = """
from taskserver import task


def nothing(n):
    pass


@task(commit_every=50)
def shared(n):
    pass
"""
WORKERS = 4
ADD = """
from taskserver import Spread, TaskServer
servers = [TaskServer.from_env(folder) for folder in {folders}]
server = servers[0] if len(servers) == 1 else Spread(servers)
for n in range({tasks}):
    server.add_task("tasks.nothing", [n])
"""


def spread(place: Place) -> Iterator[Line]:
    """Draining with four workers, and adding by four processes. All servers share this machine's cores and disk."""
    tasks = place.size(40_000, 400)
    with OnMariaDB(place.quick) as base:
        base.server.create_database(DATABASE)
        other = place._replace(folder=place.folder / "other", base=base)
        other.folder.mkdir()
        both = [place, other]
        folders = [_laid(one) for one in both]

        def drained(places: Sequence[Place], lines: Sequence[str], task: str = "tasks.nothing") -> Callable[[], float]:
            """How many tasks a second these lines of worker.py do, shared among the places."""

            def measure() -> float:
                for one in places:
                    mariadb(one).fill(TABLE, tasks // len(places), f"{{n}} % {WORKERS}, 0", task=task)
                    one.settle()
                programs = [["worker.py", *line.split()] for line in lines]
                found = rate(tasks, programs, folders[: len(places)] * len(lines))
                for one in places:
                    must_be_empty(one, TABLE)
                return found

            return measure

        def added(places: Sequence[Place]) -> Callable[[], float]:
            """How many tasks a second these processes add one by one."""
            each = tasks // 4 // WORKERS
            program = ADD.format(folders=[str(folder) for folder in folders[: len(places)]], tasks=each)

            def measure() -> float:
                found = rate(each * WORKERS, [["-c", program]] * WORKERS, folders[:1] * WORKERS)
                for one in both:
                    one.sql(f"TRUNCATE TABLE {TABLE}")
                return found

            return measure

        any_group = ["0 --slots 0"] * WORKERS
        own_groups = [f"0 {group} --slots 0" for group in range(WORKERS)]
        for name, ours, floor in (
            ("4 workers / 1 worker", drained([place], any_group), drained([place], any_group[:1])),
            (
                "4 workers, commit_every=50 / without",
                drained([place], any_group, "tasks.shared"),
                drained([place], any_group),
            ),
            ("4 workers, a group each / any group", drained([place], own_groups), drained([place], any_group)),
            ("2 servers, 4 workers / 1 server, 4 workers", drained(both, any_group), drained([place], any_group)),
            ("adding, 4 processes: Spread of 2 / 1 server", added(both), added([place])),
        ):
            yield compare(name, ours, floor, pairs=place.pairs, unit="tasks/s")
        yield from _of_one_life(place, folders[0])


def _of_one_life(place: Place, folder: Path) -> Iterator[Line]:
    """What a task costs the server from its INSERT to its DELETE: many at once against one by one."""
    tasks = place.size(10_000, 200)

    def cost(counters: Sequence[str], task: str, portion: int) -> float:
        status = f"SELECT SUM(VARIABLE_VALUE) FROM information_schema.GLOBAL_STATUS WHERE VARIABLE_NAME IN {counters}"
        before = float(place.sql(status))
        with TaskServer(place.dsn, table=TABLE) as server:
            for begin in range(0, tasks, portion):
                server.add_tasks([{"task": task, "args": [begin + n]} for n in range(portion)])
        launched(["worker.py"], folder)
        must_be_empty(place, TABLE)
        return (float(place.sql(status)) - before) / tasks

    for name, counters in (
        ("redo log", ("INNODB_OS_LOG_WRITTEN", "")),
        ("network", ("BYTES_RECEIVED", "BYTES_SENT")),
    ):
        together, alone = partial(cost, counters, "tasks.shared", 100), partial(cost, counters, "tasks.nothing", 1)
        yield compare(f"{name} of a task's life, together / alone", together, alone, pairs=1, unit="bytes")


def _laid(place: Place) -> Path:
    """A deployment with our tasks; its table is empty."""
    folder = place.deployment("spread", table=TABLE)
    (folder / "tasks.py").write_text(TASKS)
    with TaskServer(place.dsn, table=TABLE) as server:
        server.create_tables()
    return folder
