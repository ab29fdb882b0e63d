"""Huey on PostgreSQL: deletes a task as it takes it, then runs it; the task of a worker that is killed is gone."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import psycopg

from .calls import CALLS, work


class Huey:
    """The loop of its consumer, without threads."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._queue: Any = None
        self._task: Any = None

    def install(self) -> None:
        self._open()

    def add(self, numbers: range) -> None:
        self._open()
        self._task(-1)
        CALLS.begin()
        for n in numbers:
            self._task(n)
            CALLS.note()

    def add_many(self, numbers: range, at_once: int) -> None:
        """It has no such call."""
        raise NotImplementedError

    def fill(self, numbers: range) -> None:
        """By COPY."""
        self._open()
        insert = f"COPY {self._queue.storage.table_task} (queue, data) FROM STDIN (FORMAT BINARY)"
        with psycopg.connect(self._dsn) as connection, connection.cursor().copy(insert.encode()) as copy:
            copy.set_types(["text", "bytea"])
            for n in numbers:
                copy.write_row((self._queue.name, self._queue.serialize_task(self._task.s(n))))

    def run(self) -> None:
        self._open()
        while (task := self._queue.dequeue()) is not None:
            self._queue.execute(task)
            if CALLS.is_over():
                break

    def _open(self) -> None:
        self._queue = import_module("huey").PostgresHuey("bench", dsn=self._dsn, results=False, blocking=False)
        self._task = self._queue.task()(work)
