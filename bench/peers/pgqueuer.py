"""PgQueuer: claims a batch in one statement, runs it as coroutines at once, and records their ends in one statement."""

from __future__ import annotations

from .peer import ADDING, PROGRAM, TASKS, Peer, Safety

APP = """
import asyncio, os
from contextlib import asynccontextmanager
import asyncpg
from pgqueuer import PgQueuer
from pgqueuer.queries import Queries
import both

nothing, effect = "nothing", "effect"


@asynccontextmanager
async def main():
    queue = PgQueuer.from_asyncpg_connection(await asyncpg.connect(os.environ["BENCH_URL"]))

    @queue.entrypoint("nothing")
    async def nothing(job):
        both.nothing(int(job.payload))

    @queue.entrypoint("effect")
    async def effect(job):
        await both.effect_async(int(job.payload))

    yield queue


def connect(install):
    global loop, queries
    import uvloop
    loop = uvloop.new_event_loop()
    asyncio.set_event_loop(loop)
    connection = loop.run_until_complete(asyncpg.connect(os.environ["BENCH_URL"]))
    queries = Queries.from_asyncpg_connection(connection)
    if install:
        loop.run_until_complete(queries.install())
        loop.run_until_complete(queries.optimize_autovacuum())


def add(task, numbers):
    async def each():
        for n in numbers:
            await queries.enqueue(task, b"%d" % n)
    loop.run_until_complete(each())


def add_many(task, numbers):
    loop.run_until_complete(
        queries.enqueue([task] * len(numbers), [b"%d" % n for n in numbers], [0] * len(numbers)))
"""
WORK = """
import asyncio, signal, sys
from datetime import timedelta
import uvloop
from pgqueuer.types import QueueExecutionMode
import app


async def main(batch, mode):
    async with app.main() as queue:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, queue.shutdown.set)
        beat = timedelta(seconds=60)
        await queue.run(batch_size=int(batch), mode=QueueExecutionMode[mode], heartbeat_timeout=beat)


uvloop.run(main(*sys.argv[1:]))
"""
PACKAGES = (
    "pgqueuer==1.6.0 annotated-doc==0.0.7 annotated-types==0.8.0 anyio==4.16.0 asyncpg==0.32.0 croniter==7.0.0 "
    "idna==3.20 markdown-it-py==4.3.0 mdurl==0.1.2 pydantic==2.14.4 pydantic-settings==2.16.3 pydantic_core==2.50.5 "
    "Pygments==2.21.0 python-dateutil==4.0.0 python-dotenv==1.2.4 rich==15.0.0 shellingham==1.5.4 tabulate==0.10.0 "
    "typer==0.29.2 typing-inspection==0.4.5 typing_extensions==4.16.0 tzdata==2026.6 uvloop==0.23.0 "
    "psycopg==3.3.9 psycopg-binary==3.3.9"
)


def _pgqueuer(batch: int, *skips: str) -> Peer:
    return Peer(
        name="PgQueuer" if batch == 10 else f"PgQueuer, batches of {batch}",
        base="postgresql",
        packages=PACKAGES,
        files={"both.py": TASKS, "app.py": APP, "program.py": PROGRAM, "work.py": WORK},
        commands={**ADDING, "work": f"python work.py {batch} continuous", "empty": f"python work.py {batch} drain"},
        tables=("pgqueuer", "pgqueuer_log"),
        copied={
            "priority": "priority",
            "status": "'queued'",
            "entrypoint": "entrypoint",
            "payload": "payload",
        },
        unfinished="SELECT COUNT(*) FROM pgqueuer",
        safety=Safety(durable=True, survives=True, runs="at least once"),
        notes=(
            "asyncpg, uvloop, pgq autovac, heartbeat_timeout=60 (by default 30); its batch_size is 10 by default",
            "its run() from Python: `pgq run` fails with this version of typer",
            "a batch is claimed and finished in two commits, and the next ones are claimed meanwhile: a killed worker "
            "breaks off several batches",
            "psycopg writes the effects, not the queue",
        ),
        lead="The tasks of a batch run at once as coroutines and share two commits. taskserver also writes each start.",
        environment={"PYTHONPATH": "."},
        skips=skips,
    )


PEERS = [_pgqueuer(10), _pgqueuer(100, "add", "add_many", "empty_cpu", "empty_memory")]
