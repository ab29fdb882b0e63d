"""taskserver: worker.py as cron starts it, with a commit for each task, and with one that tasks share."""

from __future__ import annotations

import sys
from importlib.metadata import version
from pathlib import Path

from taskserver import __version__

from ..place import install
from .peer import PROGRAM, TASKS, Peer, Safety

EVERY = 100
TASKS_MODULE = """
import both
from taskserver import task


def nothing(n):
    both.nothing(n)


def effect(n):
    both.effect(n)
"""
SHARED = TASKS_MODULE.replace("def ", f"@task(commit_every={EVERY})\ndef ")
APP = """
from taskserver import TaskServer
import tasks

server = TaskServer.from_env()
nothing, effect = "tasks.nothing", "tasks.effect"


def connect(install):
    server.create_tables()


def add(task, numbers):
    for n in numbers:
        server.add_task(task, [n])


def add_many(task, numbers):
    server.add_tasks([{"task": task, "args": [n]} for n in numbers])
"""


class Ours(Peer):
    """In a folder as a user has it."""

    def lay(self, folder: Path) -> None:
        super().lay(folder)
        install(folder)

    def version(self) -> str:
        names = ("PyMySQL", "psycopg", "psycopg-binary")
        return " ".join([f"taskserver=={__version__}", *(f"{name}=={version(name)}" for name in names)])


def _ours(base: str, name: str, tasks: str, **more: object) -> Peer:
    python = sys.executable
    return Ours(
        name=name,
        base=base,
        files={"both.py": TASKS, "tasks.py": tasks, "app.py": APP, "program.py": PROGRAM, ".env": ""},
        commands={
            "install": f"{python} program.py install",
            "add": f"{python} program.py add {{count}}",
            "add_many": f"{python} program.py add_many {{count}}",
            "work": f"{python} worker.py 0",
            "empty": f"{python} worker.py 100",
        },
        tables=("jobs_queue",),
        copied={"task": "task", "args": "args"},
        unfinished="SELECT COUNT(*) FROM jobs_queue",
        safety=Safety(durable=True, survives=True, runs="at least once, or at most once with max_attempts=1"),
        notes=(
            "a lease of 60 s (by default 120), all else as it is by default: a killed worker's task is retried after "
            "the lease and then a backoff of 60 s",
        ),
        environment={"TASKSERVER_DSN": "{BENCH_URL}", "TASKSERVER_LEASE": "60"},
        is_ours=True,
        **more,  # type: ignore[arg-type]
    )


PEERS = [
    peer
    for base in ("mysql", "sqlite", "postgresql")
    for peer in (
        _ours(base, "taskserver", TASKS_MODULE),
        _ours(
            base, f"taskserver, commit_every={EVERY}", SHARED, skips=("add", "add_many", "empty_cpu", "empty_memory")
        ),
    )
]
