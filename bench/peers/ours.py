"""taskserver by its public interface, with a commit for each task, or with one that some tasks share."""

from __future__ import annotations

from pathlib import Path

import psycopg

from taskserver import TaskServer, task

from .calls import CALLS, work

FILL = b"INSERT INTO jobs_queue (task, args) SELECT %s, '[' || n || ']' FROM generate_series(0, %s) AS n"


def each(n: int) -> None:
    work(n)


@task(commit_every=10)
def by_10(n: int) -> None:
    work(n)


@task(commit_every=100)
def by_100(n: int) -> None:
    work(n)


class Ours:
    """Runs in a process of its own, as worker.py does, without its start."""

    def __init__(self, dsn: str, name: str) -> None:
        self._dsn = dsn
        self._task = f"{__name__}.{name}"
        self._server = TaskServer(dsn, modules=__name__, folder=Path(__file__).parents[2], backoff="fixed:1")

    def install(self) -> None:
        self._server.create_tables()

    def add(self, numbers: range) -> None:
        self._server.add_task(self._task, [-1])
        CALLS.begin()
        for n in numbers:
            self._server.add_task(self._task, [n])
            CALLS.note()

    def add_many(self, numbers: range, at_once: int) -> None:
        CALLS.begin()
        for begin in range(0, len(numbers), at_once):
            part = numbers[begin : begin + at_once]
            self._server.add_tasks([{"task": self._task, "args": [n]} for n in part])
            CALLS.note(len(part))

    def fill(self, numbers: range) -> None:
        with psycopg.connect(self._dsn) as connection:
            connection.execute(FILL, (self._task, numbers.stop - 1))

    def run(self) -> None:
        self._server.run(CALLS.quota)
