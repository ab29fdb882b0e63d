"""PgQueuer: claims a batch in one statement, runs it as coroutines at once, and records their ends in one statement."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from importlib import import_module
from typing import Any

from .calls import CALLS, work_async

FILLED_AT_ONCE = 10_000


class PgQueuer:
    """As its documentation advises: asyncpg, one connection for a worker, uvloop, and `pgq autovac`."""

    def __init__(self, dsn: str, batch: int) -> None:
        self._dsn = dsn
        self._batch = batch
        self._asyncpg: Any = import_module("asyncpg")
        self._module: Any = import_module("pgqueuer")
        self._queries: Any = import_module("pgqueuer.queries")
        self._modes: Any = import_module("pgqueuer.types").QueueExecutionMode

    def install(self) -> None:
        async def install(connection: Any) -> None:
            queries = self._queries.Queries.from_asyncpg_connection(connection)
            await queries.install()
            await queries.optimize_autovacuum()

        self._connected(install)

    def add(self, numbers: range) -> None:
        async def add(connection: Any) -> None:
            queries = self._queries.Queries.from_asyncpg_connection(connection)
            await queries.enqueue("work", b"-1")
            CALLS.begin()
            for n in numbers:
                await queries.enqueue("work", b"%d" % n)
                CALLS.note()

        self._connected(add)

    def add_many(self, numbers: range, at_once: int) -> None:
        async def add_many(connection: Any) -> None:
            queries = self._queries.Queries.from_asyncpg_connection(connection)
            CALLS.begin()
            for begin in range(0, len(numbers), at_once):
                part = numbers[begin : begin + at_once]
                await queries.enqueue(["work"] * len(part), [b"%d" % n for n in part], [0] * len(part))
                CALLS.note(len(part))

        self._connected(add_many)

    def fill(self, numbers: range) -> None:
        self.add_many(numbers, FILLED_AT_ONCE)

    def run(self) -> None:
        self._connected(self._run)

    async def _run(self, connection: Any) -> None:
        queue = self._module.PgQueuer.from_asyncpg_connection(connection)

        async def work(job: Any) -> None:
            await work_async(int(job.payload))

        queue.entrypoint("work")(work)
        CALLS.stop = queue.shutdown.set
        await queue.run(batch_size=self._batch, mode=self._modes.drain)

    def _connected(self, act: Callable[[Any], Awaitable[None]]) -> None:
        async def connected() -> None:
            connection = await self._asyncpg.connect(self._dsn)
            try:
                await act(connection)
            finally:
                await connection.close()

        loop = import_module("uvloop").new_event_loop()
        asyncio.set_event_loop(loop)
        loop.run_until_complete(connected())
