"""procrastinate: a job at a time is fetched, run and deleted, each by a call of a function in the database."""

from __future__ import annotations

from .peer import ADDING, PROGRAM, TASKS, Peer, Safety

APP = """
import os, sys
from procrastinate import App, PsycopgConnector, SyncPsycopgConnector
import both

connector = SyncPsycopgConnector if "program.py" in sys.argv[0] else PsycopgConnector
app = App(connector=connector(conninfo=os.environ["BENCH_URL"]))


@app.task(name="nothing")
async def nothing(n):
    both.nothing(n)


@app.task(name="effect")
async def effect(n):
    await both.effect_async(n)


@app.periodic(cron="* * * * *")
@app.task(queueing_lock="retry_stalled_jobs", pass_context=True)
async def retry_stalled_jobs(context, timestamp):
    for job in await app.job_manager.get_stalled_jobs(seconds_since_heartbeat=60):
        await app.job_manager.retry_job(job)


def connect(install):
    app.open()
    if install:
        app.schema_manager.apply_schema()


def add(task, numbers):
    for n in numbers:
        task.defer(n=n)


def add_many(task, numbers):
    task.batch_defer(*({"n": n} for n in numbers))
"""
WORK = "procrastinate --log-level=warning --app=app.app worker --delete-jobs=always --concurrency=10"

PEERS = [
    Peer(
        name="procrastinate",
        base="postgresql",
        packages="procrastinate==3.10.0 asgiref==3.13.0 attrs==26.1.0 croniter==7.0.0 packaging==26.4 psycopg==3.3.9 "
        "psycopg-binary==3.3.9 psycopg-pool==3.3.3 python-dateutil==4.0.0 typing_extensions==4.16.0 tzdata==2026.6",
        files={"both.py": TASKS, "app.py": APP, "program.py": PROGRAM},
        commands={**ADDING, "work": WORK, "empty": WORK + " --one-shot"},
        tables=("procrastinate_jobs",),
        copied={
            "queue_name": "queue_name",
            "task_name": "task_name",
            "priority": "priority",
            "args": "args",
            "status": "'todo'",
        },
        unfinished="SELECT COUNT(*) FROM procrastinate_jobs WHERE status IN ('todo', 'doing')",
        safety=Safety(durable=True, survives=True, runs="at least once"),
        notes=(
            "psycopg 3; a worker runs 10 coroutines at once, as its documents advise; finished jobs are deleted",
            "stalled jobs are retried by the periodic task of its documents, each minute, after 60 s",
            "a killed worker breaks off up to 10 tasks",
        ),
        environment={"PYTHONPATH": "."},
    )
]
