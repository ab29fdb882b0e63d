"""The stage of a chaos run: its database, the network to it, and who works there: producers, workers, a bystander."""

from __future__ import annotations

import random
import signal
import sqlite3
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
import pymysql

from taskserver import TaskServer
from taskserver.errors import DatabaseError
from tests.faults.chaos.tasks import CALLED, MONEY, PLAYED, TASKS, WEIGHTS
from tests.support.deployment import Deployment
from tests.support.postgresql import PostgreSQL
from tests.support.proxy import Proxy, Requests, as_sent
from tests.support.rows import MODES, Rows
from tests.support.servers import MariaDB

DRIVER_ERRORS = (pymysql.MySQLError, psycopg.Error, sqlite3.Error, OSError)
LEASE_SECONDS = 2
MAX_ATTEMPTS = 6
SETTINGS = {
    "TASKSERVER_LEASE": f"{LEASE_SECONDS}",
    "TASKSERVER_TIMEOUT": "3",
    "TASKSERVER_DB_PATIENCE": "10",
    "TASKSERVER_MAX_ATTEMPTS": f"{MAX_ATTEMPTS}",
}
ARGUMENTS: Sequence[Sequence[object]] = ((), ("--batch", 5), (15, "--batch", 3), ("--batch", 1))
"""Of each slot's worker.py."""
SLOTS, PRODUCERS = len(ARGUMENTS), 2
ACCOUNTS, BALANCE = 8, 10_000
FIRST = ("fail", "child", "transfer", "together", "share", "child")
"""So one child waits for a task that is fatal, and one for tasks that are done."""
MAX_BACKLOG = 60
"""Producers wait while so many tasks have not ended: what is left when the faults end must drain soon."""
FIND_SECONDS = 2.0
"""So long a fault waits for a worker that it can strike."""
SLACK_SECONDS = 0.3
"""For the way from a fault to its effect, and for a worker to get going again after it."""


class Span(NamedTuple):
    """A stretch of time."""

    began: float
    ended: float


class Added(NamedTuple):
    """A task as its producer added it."""

    number: int
    kind: str
    id: int | None
    """None if the add had no answer: it may be there or not."""
    max_attempts: int = MAX_ATTEMPTS
    parents: Sequence[int] = ()
    """Ids of the tasks that it waits for."""
    key: str = ""


class WorkerRun(NamedTuple):
    """One process of worker.py."""

    slot: int
    pid: int
    began: float
    ended: float
    code: int
    errors: str
    workers: int = 1
    """Of its line: more with --processes."""


class Stage:
    """The database of a chaos run, and the network between it and each slot."""

    tasks = TASKS
    """The tasks.py of its deployment."""
    lease_seconds = LEASE_SECONDS
    max_attempts = MAX_ATTEMPTS
    arguments: Sequence[Sequence[object]] = ARGUMENTS
    """Of each slot's worker.py."""
    rare_faults = frozenset({"server kill"})
    """Seconds are between these."""
    is_cluster = False
    """Whether a transaction may lose a conflict at its COMMIT, and is then tried again within its attempt."""

    def __init__(
        self, dsn_kind: str, folder: Path, seed: int, settings: Mapping[str, str] = SETTINGS, linked: bool = True
    ) -> None:
        chance = random.Random(f"{seed}:stage")
        self.modes = chance.sample([*MODES, chance.choice(MODES)], SLOTS)
        """Of each slot: every mode is used, and completes what another worker began."""
        self.dsn_kind = dsn_kind
        self.deployment = Deployment(folder, linked=linked)
        self.folder = self.deployment.folder
        self.proxies: list[Proxy] = []
        self.backlog = 0
        """Tasks that have not ended, as the bystander counted them last."""
        self.server: MariaDB | PostgreSQL | None = None
        self._stack = ExitStack()
        self._stack.callback(self.deployment.close)
        self.dsn = self._open()
        """Past every proxy."""
        self.deployment.write_tasks(self.tasks)
        backoff = chance.choice(("fixed:0", "fixed:1"))
        self.deployment.write_env(**{"TASKSERVER_DSN": self.dsn, "TASKSERVER_BACKOFF": backoff, **settings})
        self.make_tables()
        self._make_accounts()

    def make_tables(self) -> None:
        with TaskServer(self.dsn, folder=self.folder) as queue:
            queue.create_tables()

    def _open(self) -> str:
        """Start the database, and the proxies before it; its DSN."""
        if self.dsn_kind == "sqlite":
            return f"sqlite:///{self.folder}/var/taskserver.db"
        self.server = server = MariaDB(durable=True) if self.dsn_kind == "mysql" else PostgreSQL(durable=True)
        self._stack.callback(server.remove)
        reader = as_sent if self.dsn_kind == "mysql" else Requests
        self.proxies = [self._stack.enter_context(Proxy(server.host, server.port, reader)) for _ in range(SLOTS)]
        return server.dsn(server.create_database())

    def dsn_of_producer(self, number: int) -> str:
        return self.dsn

    def dsn_of_slot(self, number: int) -> str:
        return self.proxies[number].dsn(self.dsn) if self.proxies else self.dsn

    def rows(self) -> Rows:
        """A connection of the tests' own, past every proxy."""
        return Rows(self.dsn)

    def end_adding(self) -> None:
        """Called when the producers have ended."""

    def _make_accounts(self) -> None:
        with closing(self.rows()) as rows:
            rows.execute("CREATE TABLE pulse (beats INT)")
            rows.execute("INSERT INTO pulse VALUES (0)")
            rows.execute("CREATE TABLE accounts (id INT PRIMARY KEY, balance INT)")
            # The number is not unique: a second transfer of it must show.
            rows.execute("CREATE TABLE transfers (number INT, source INT, target INT, amount INT)")
            accounts = ", ".join(f"({account}, {BALANCE})" for account in range(ACCOUNTS))
            rows.execute(f"INSERT INTO accounts VALUES {accounts}")

    def close(self) -> None:
        self._stack.close()


class Actor(threading.Thread):
    """Acts until it is stopped."""

    def __init__(self, stage: Stage) -> None:
        super().__init__(daemon=True)
        self.stage = stage
        self.stopped = threading.Event()

    def end(self) -> None:
        self.stopped.set()
        self.join(60)
        assert not self.is_alive(), f"{self} did not end"


class Producer(Actor):
    """Adds tasks past every proxy. An add without an answer is not repeated: its outcome is unknown."""

    pause_seconds, max_backlog = 0.02, MAX_BACKLOG

    def __init__(self, stage: Stage, seed: int, first: int) -> None:
        super().__init__(stage)
        self.added: list[Added] = []
        self._first = first
        self._numbers = count(first, PRODUCERS)
        self._chance = random.Random(f"{seed}:producer {first}")
        self._keys = (f"{first}-a", f"{first}-b")

    def run(self) -> None:
        kinds = [*FIRST, *self._chance.sample(list(WEIGHTS), len(WEIGHTS))]  # each kind once, then by chance
        with TaskServer(self.stage.dsn_of_producer(self._first), folder=self.stage.folder) as queue:
            for number in self._numbers:
                while self.stage.backlog >= self.max_backlog and not self.stopped.wait(0.05):
                    pass
                if self.stopped.wait(self._chance.uniform(0.0, self.pause_seconds)):
                    return
                kind = kinds.pop(0) if kinds else self._chance.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
                self._add(queue, number, kind)
                if self.added[-1].id is None:
                    self.stopped.wait(0.2)  # the database is away

    def _add(self, queue: TaskServer, number: int, kind: str) -> None:
        name, chance = CALLED.get(kind, kind), self._chance
        args: dict[str, object] = {"number": number, "kind": "quick" if kind == "child" else kind}
        options: dict[str, Any] = {"priority": chance.choice((0, 0, 0, -5, 10)), "group_id": self.group_of(kind)}
        added = Added(number, kind, None, max_attempts=1_000_000)  # on a full disk one fails a thousand times a second
        if kind in PLAYED:
            most = self.stage.max_attempts
            attempts = chance.choice((most, most, 1, 2, 3)) if number >= PRODUCERS else 1
            added = added._replace(max_attempts=attempts)
        elif kind in MONEY:
            args["source"], args["target"] = chance.sample(range(ACCOUNTS), 2)
            args["amount"] = chance.randint(1, 99)
            if kind == "once":
                added = added._replace(max_attempts=1)
        elif kind == "keep":
            args["key"] = key = chance.choice(self._keys)
            added = added._replace(key=key)
            options |= {"unique_key": key, "rerun": True, "version": number, "priority": -20}
        elif kind == "child":
            # What pays may be done before it says so, and a key's row is used again.
            known = [one.id for one in self.added[-3:] if one.id is not None and one.kind not in ("pay", "keep")]
            added = added._replace(parents=chance.sample(known, min(len(known), chance.randint(1, 3))))
            options["depends_on"] = added.parents
        with suppress(DatabaseError):
            task_id = queue.add_task(f"tasks.{name}", args, max_attempts=added.max_attempts, **options)
            added = added._replace(id=task_id)
        self.added.append(added)

    def group_of(self, kind: str) -> int:
        return self._chance.randrange(3)


class Bystander(Actor):
    """Writes to the database again and again, past every proxy.

    While it cannot, no worker is to blame: the machine is too slow, or a frozen worker holds SQLite's one lock.
    """

    def __init__(self, stage: Stage) -> None:
        super().__init__(stage)
        self.delays: list[Span] = []

    def run(self) -> None:
        last = time.monotonic()
        while not self.stopped.wait(0.05):
            with suppress(*DRIVER_ERRORS), closing(self.stage.rows()) as rows:
                while not self.stopped.wait(0.1):
                    rows.execute("UPDATE pulse SET beats = beats + 1")
                    now = time.monotonic()
                    if now - last > 0.1 + SLACK_SECONDS:
                        self.delays.append(Span(last, now))
                    last = now
                    left = "SELECT COUNT(*) FROM jobs_queue WHERE status NOT IN (2, 4)"
                    self.stage.backlog = int(rows.execute(left)[0][0])


class Slot(Actor):
    """A line of a crontab, with less than a minute between its starts."""

    def __init__(self, stage: Stage, number: int) -> None:
        super().__init__(stage)
        self.number = number
        self.runs: list[WorkerRun] = []
        self.process: subprocess.Popen[str] | None = None
        dsn = stage.dsn_of_slot(number)
        self._env = {"TASKSERVER_DSN": dsn, "TASKSERVER_MODE": stage.modes[number], "PYTHONFAULTHANDLER": "1"}
        self._env["CHAOS_DSN"] = dsn  # the worker keeps its own from tasks

    def run(self) -> None:
        while not self.stopped.is_set():
            began = time.monotonic()
            arguments = (*self.stage.arguments[self.number], "--slots", 0)
            self.process = process = self.stage.deployment.popen("worker.py", *arguments, env=self._env)
            _, errors = process.communicate()
            self.process = None
            workers = 2 if "--processes" in arguments else 1
            ended = time.monotonic()
            self.runs.append(WorkerRun(self.number, process.pid, began, ended, process.returncode, errors, workers))
            self.stopped.wait(0.3 if process.returncode == 1 else 0.05)

    def mark_of(self, process: subprocess.Popen[str]) -> Path:
        """A file that is there while a task's own transaction is open, and holds its number."""
        return self.stage.folder / f"open-{process.pid}"

    def is_in_transaction(self) -> bool:
        process = self.process
        return process is not None and self.mark_of(process).exists()

    def find_worker(self, in_transaction: bool = False) -> subprocess.Popen[str] | None:
        """Wait a moment for its worker, or for one in the midst of a transaction of a task's own."""
        deadline = time.monotonic() + FIND_SECONDS
        while time.monotonic() < deadline:
            process = self.process
            if process and (not in_transaction or self.mark_of(process).exists()):
                return process
            time.sleep(0.002)
        return None

    def has_ended(self, seconds: float) -> bool:
        """Wait for the last worker; one that does not end shows in which line each thread is, and dies."""
        self.join(seconds)
        if not self.is_alive():
            return True
        if self.process is not None:
            self.process.send_signal(signal.SIGABRT)
        self.join()
        return False
