"""procrastinate: a job at a time is fetched, run and deleted, each by a call of a function in the database."""

from __future__ import annotations

import asyncio
from importlib import import_module
from typing import Any

from .calls import CALLS, work_async

FILLED_AT_ONCE = 10_000


class Procrastinate:
    """A worker of one process runs some coroutines at once, as its documentation advises for more throughput."""

    def __init__(self, dsn: str, concurrency: int) -> None:
        self._dsn = dsn
        self._concurrency = concurrency
        self._module: Any = import_module("procrastinate")
        self._app: Any = None
        self._task: Any = None

    def install(self) -> None:
        with self._producing():
            self._app.schema_manager.apply_schema()

    def add(self, numbers: range) -> None:
        with self._producing():
            self._task.defer(n=-1)
            CALLS.begin()
            for n in numbers:
                self._task.defer(n=n)
                CALLS.note()

    def add_many(self, numbers: range, at_once: int) -> None:
        with self._producing():
            CALLS.begin()
            for begin in range(0, len(numbers), at_once):
                part = numbers[begin : begin + at_once]
                self._task.batch_defer(*({"n": n} for n in part))
                CALLS.note(len(part))

    def fill(self, numbers: range) -> None:
        self.add_many(numbers, FILLED_AT_ONCE)

    def run(self) -> None:
        asyncio.run(self._run())

    def _producing(self) -> Any:
        """On connections without coroutines, which add faster."""
        self._make_app(self._module.SyncPsycopgConnector(conninfo=self._dsn))
        return self._app.open()

    def _make_app(self, connector: Any) -> None:
        self._app = self._module.App(connector=connector)
        self._task = self._app.task(name="work")(work_async)

    async def _run(self) -> None:
        self._make_app(self._module.PsycopgConnector(conninfo=self._dsn))
        async with self._app.open_async():
            worker = asyncio.create_task(
                self._app.run_worker_async(wait=False, concurrency=self._concurrency, delete_jobs="always")
            )
            CALLS.stop = worker.cancel
            await asyncio.wait([worker])
