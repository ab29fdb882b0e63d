"""The stage of a chaos run: its database, the network to it, and who works there: producers, workers, a bystander."""

from __future__ import annotations

import json
import random
import signal
import sqlite3
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from itertools import count
from typing import Any

import psycopg
import pymysql

from taskserver import TaskServer
from taskserver.errors import DatabaseError
from tests.faults.chaos.evidence import DELETED, Tied, WorkerRun
from tests.faults.chaos.schedule import wish
from tests.faults.chaos.settings import (
    ARGUMENTS,
    CHANGE_SECONDS,
    KEYS,
    PRODUCERS,
    SETTINGS,
    SLACK_SECONDS,
    SLOTS,
    TIE_SECONDS,
)
from tests.faults.chaos.spans import Span
from tests.faults.chaos.tasks import TASKS
from tests.support.deployment import Deployment
from tests.support.postgresql import PostgreSQL
from tests.support.proxy import Proxy, Requests
from tests.support.servers import MariaDB

DRIVER_ERRORS = (pymysql.MySQLError, psycopg.Error, sqlite3.Error, OSError)
MOST_NEW = 80
"""Producers add little while so many tasks are new: what is left when the faults end must drain soon."""

HISTORY = {
    "mysql": """
        CREATE TABLE history (
            n BIGINT AUTO_INCREMENT PRIMARY KEY, args VARCHAR(200), id BIGINT UNSIGNED, at DOUBLE, was INT, status INT,
            attempts_before INT, attempts INT, max_attempts INT, claim BIGINT UNSIGNED, lease_ended_at DOUBLE,
            due_at DOUBLE, error_text VARCHAR(1000) CHARACTER SET utf8mb4) ENGINE = InnoDB;
        CREATE TABLE pulse (id INT PRIMARY KEY, beats INT) ENGINE = InnoDB;
        INSERT INTO pulse VALUES (1, 0);
        CREATE TRIGGER remember AFTER UPDATE ON jobs_queue FOR EACH ROW {remember_change};
        CREATE TRIGGER remember_deleted AFTER DELETE ON jobs_queue FOR EACH ROW {remember_deleted}
    """,
    "postgresql": """
        CREATE TABLE history (
            n BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, args TEXT, id BIGINT, at DOUBLE PRECISION, was INT,
            status INT, attempts_before INT, attempts INT, max_attempts INT, claim BIGINT,
            lease_ended_at DOUBLE PRECISION, due_at DOUBLE PRECISION, error_text VARCHAR(1000));
        CREATE TABLE pulse (id INT PRIMARY KEY, beats INT);
        INSERT INTO pulse VALUES (1, 0);
        CREATE FUNCTION remember() RETURNS trigger LANGUAGE plpgsql AS
            'BEGIN {remember_change}; RETURN NULL; END';
        CREATE FUNCTION remember_deleted() RETURNS trigger LANGUAGE plpgsql AS
            'BEGIN {remember_deleted}; RETURN NULL; END';
        CREATE TRIGGER remember AFTER UPDATE ON jobs_queue FOR EACH ROW EXECUTE FUNCTION remember();
        CREATE TRIGGER remember_deleted AFTER DELETE ON jobs_queue FOR EACH ROW EXECUTE FUNCTION remember_deleted()
    """,
    "sqlite": """
        CREATE TABLE history (n INTEGER PRIMARY KEY, args, id, at, was, status, attempts_before, attempts,
            max_attempts, claim, lease_ended_at, due_at, error_text);
        CREATE TABLE pulse (id INTEGER PRIMARY KEY, beats);
        INSERT INTO pulse VALUES (1, 0);
        CREATE TRIGGER remember AFTER UPDATE ON jobs_queue BEGIN {remember_change}; END;
        CREATE TRIGGER remember_deleted AFTER DELETE ON jobs_queue BEGIN {remember_deleted}; END
    """,
}
MOVING = 6
"""The status of a row on its way to the archive, within one transaction; nobody but a trigger sees it."""
REMEMBER = """
    INSERT INTO history (args, id, at, was, status, attempts_before, attempts, max_attempts, claim, lease_ended_at,
                         due_at, error_text)
"""
REMEMBER_CHANGE = f"""
    {REMEMBER}
    VALUES (NEW.args, NEW.id, {{now}}, OLD.status, CASE NEW.status WHEN {MOVING} THEN 2 ELSE NEW.status END,
            OLD.attempts, NEW.attempts, NEW.max_attempts, COALESCE(NEW.claim, OLD.claim), {{old_due_at}},
            {{new_due_at}}, NEW.error_text)
"""
REMEMBER_DELETED = f"""
    {REMEMBER}
    VALUES (OLD.args, OLD.id, {{now}}, OLD.status, {DELETED}, OLD.attempts, OLD.attempts, OLD.max_attempts, OLD.claim,
            {{old_due_at}}, NULL, OLD.error_text)
"""
INSTANTS = {
    "mysql": ("UNIX_TIMESTAMP({})", "NOW(6)"),
    "postgresql": ("CAST(EXTRACT(EPOCH FROM {}) AS float8)", "clock_timestamp()"),
    "sqlite": ("(julianday({}) - 2440587.5) * 86400.0", "'now'"),
}
"""An instant as seconds, and now."""


def history_statements(dsn_kind: str) -> list[str]:
    """The tables of the test's own, and the triggers that keep what becomes of each row."""
    seconds, now = INSTANTS[dsn_kind]
    columns = {"now": now, "old_due_at": "OLD.due_at", "new_due_at": "NEW.due_at"}
    instants = {name: seconds.format(column) for name, column in columns.items()}
    return [
        statement.replace("{remember_change}", REMEMBER_CHANGE.format_map(instants)).replace(
            "{remember_deleted}", REMEMBER_DELETED.format_map(instants)
        )
        for statement in HISTORY[dsn_kind].split(";\n")
    ]


class Sql:
    """A connection of the test's own, past every proxy; made anew after an error. For one thread."""

    def __init__(self, dsn_kind: str, connect: Callable[[], Any]) -> None:
        self._mark = "?" if dsn_kind == "sqlite" else "%s"
        self._connect = connect
        self._connection: Any = None

    def run(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        """The rows of one statement, which commits by itself. Raises one of DRIVER_ERRORS."""
        try:
            if self._connection is None:
                self._connection = self._connect()
            with closing(self._connection.cursor()) as cursor:
                cursor.execute(statement.replace("?", self._mark), *[values] if values else ())
                return list(cursor.fetchall()) if cursor.description else []
        except DRIVER_ERRORS:
            self.close()
            raise

    def close(self) -> None:
        if self._connection is not None:
            with suppress(*DRIVER_ERRORS):
                self._connection.close()
            self._connection = None


SERVERS: dict[str, type[MariaDB] | type[PostgreSQL]] = {"mysql": MariaDB, "postgresql": PostgreSQL}


def proxy_of(server: MariaDB | PostgreSQL) -> Proxy:
    if isinstance(server, PostgreSQL):
        return Proxy(server.host, server.port, Requests)
    return Proxy(server.host, server.port)


class Stage:
    """The database of a chaos run, and the network between it and each slot."""

    def __init__(self, dsn_kind: str, deployment: Deployment, modes: Sequence[str], backoff: str) -> None:
        """With the mode of each slot."""
        self.dsn_kind = dsn_kind
        self.modes = modes
        self.deployment = deployment
        self.server: MariaDB | PostgreSQL | None = None
        self.proxies: list[Proxy] = []
        self._stack = ExitStack()
        self._path = deployment.folder / "var" / "taskserver.db"
        self._database = ""
        dsn = "sqlite:///var/taskserver.db"
        if dsn_kind != "sqlite":
            server = SERVERS[dsn_kind](durable=True)
            self._stack.callback(server.remove)
            self.server, self._database = server, server.create_database()
            dsn = server.dsn(self._database)
            self.proxies = [self._stack.enter_context(proxy_of(server)) for _ in range(SLOTS)]
        self.dsn = dsn
        """Past every proxy."""
        self.dsns = [proxy.dsn(dsn) for proxy in self.proxies] or [dsn] * SLOTS
        deployment.write_tasks(TASKS)
        (deployment.folder / "runs").mkdir()
        (deployment.folder / "kept").mkdir()
        (deployment.folder / "tied").mkdir()
        deployment.write_env(**{"TASKSERVER_DSN": dsn, "TASKSERVER_BACKOFF": backoff} | SETTINGS)
        made = deployment.client("init")
        assert made.returncode == 0, made.stderr
        with closing(self.sql()) as sql:
            for statement in history_statements(dsn_kind):
                sql.run(statement)

    def sql(self) -> Sql:
        return Sql(self.dsn_kind, self._connect)

    def close(self) -> None:
        self._stack.close()

    def _connect(self) -> Any:
        if isinstance(self.server, PostgreSQL):
            return self.server.connect(dbname=self._database, connect_timeout=5)
        if self.server is not None:
            return self.server.connect(database=self._database, connect_timeout=5, read_timeout=30)
        return sqlite3.connect(self._path, isolation_level=None, timeout=60, check_same_thread=False)


class Producer(threading.Thread):
    """Adds tasks by SQL, as a web script does. An INSERT without an answer is not repeated: its outcome is unknown."""

    def __init__(self, stage: Stage, seed: int, first: int, weights: Mapping[str, float]) -> None:
        super().__init__(name=f"producer-{first}", daemon=True)
        self.acknowledged: set[int] = set()
        self.unknown: set[int] = set()
        self.stopped = threading.Event()
        self.is_adding = False
        self._sql = stage.sql()
        self._seed = seed
        self._numbers = count(first, PRODUCERS)
        self._weights = weights

    def run(self) -> None:
        while not self.stopped.wait(0.05):
            with suppress(*DRIVER_ERRORS):
                new = self._sql.run("SELECT COUNT(*) FROM jobs_queue WHERE status = 0")[0][0]
                for _ in range(10 if new < MOST_NEW else 1):
                    self._add(next(self._numbers))
        self._sql.close()

    def _add(self, number: int) -> None:
        wished = wish(self._seed, number, self._weights)
        args = {"number": number, "seed": self._seed, "kind": wished.kind, "is_sure": wished.is_sure}
        self.is_adding = True
        try:
            self._sql.run(
                "INSERT INTO jobs_queue (task, args, max_attempts, group_id, priority) VALUES (?, ?, ?, ?, ?)",
                "tasks.play",
                json.dumps(args),
                wished.max_attempts,
                wished.group_id,
                wished.priority,
            )
        except DRIVER_ERRORS:
            self.unknown.add(number)
        else:
            self.acknowledged.add(number)
        finally:
            self.is_adding = False


class Changer(threading.Thread):
    """Changes what keys stand for, now and then, by reruns; between them it adds what may stand already.

    Sooner that of a task which is running.
    """

    def __init__(self, stage: Stage, seed: int) -> None:
        super().__init__(name="changer", daemon=True)
        self.changed: dict[str, int] = {}
        self.stopped = threading.Event()
        self._server = TaskServer(stage.dsn, folder=stage.deployment.folder)
        self._sql = stage.sql()
        self._chance = random.Random(f"{seed}:changes")

    def run(self) -> None:
        with self._server, closing(self._sql):
            for version in count(1):
                if self.stopped.wait(self._chance.uniform(*CHANGE_SECONDS)):
                    return
                self._change(self._chance.choice(self._running() or KEYS), version, self._chance.random() < 0.8)

    def _running(self) -> list[str]:
        with suppress(*DRIVER_ERRORS):
            rows = self._sql.run("SELECT args FROM jobs_queue WHERE status = 1 AND started_at IS NOT NULL")
            return [args["key"] for args in (json.loads(row[0]) for row in rows) if "key" in args]
        return []

    def _change(self, key: str, version: int, is_rerun: bool) -> None:
        args = {"key": key, "version": version}
        given = {"priority": -20, "max_attempts": 1000, "unique_key": key}
        # Of one that had no answer it is not known whether it was done.
        with suppress(DatabaseError):
            if is_rerun:
                self._server.add_task("tasks.keep", args, rerun=True, version=version, **given)  # type: ignore[arg-type]
                self.changed[key] = version
            else:
                self._server.add_task("tasks.keep", args, **given)  # type: ignore[arg-type]


class Binder(threading.Thread):
    """Adds tasks that wait for some of those before them, and now and then one that fails for good."""

    def __init__(self, stage: Stage, seed: int) -> None:
        super().__init__(name="binder", daemon=True)
        self.tied: list[Tied] = []
        self.stopped = threading.Event()
        self._server = TaskServer(stage.dsn, folder=stage.deployment.folder)
        self._chance = random.Random(f"{seed}:ties")

    def run(self) -> None:
        with self._server:
            for number in count():
                if self.stopped.wait(self._chance.uniform(*TIE_SECONDS)):
                    return
                self._add(number)

    def _add(self, number: int) -> None:
        # A few at a time: the first of them for nothing, and all the others for some of those.
        few = [one for one in self.tied if one.number // FEW == number // FEW]
        parents = self._chance.sample(few, min(len(few), self._chance.choice((1, 1, 2, 3))))
        is_fatal = not parents and number // FEW % 3 == 0
        tied = Tied(number, None, [one.number for one in parents], is_fatal)
        if any(one.id is None for one in parents):
            return
        with suppress(DatabaseError):
            task_id = self._server.add_task(
                "tasks.tie",
                {"tied": number, "is_fatal": is_fatal},
                priority=-15,
                max_attempts=1 if is_fatal else 1000,
                depends_on=[one.id for one in parents if one.id is not None],
            )
            tied = tied._replace(id=task_id)
        self.tied.append(tied)


FEW = 7
"""Tasks that are tied with one another, and with no others."""


class Bystander(threading.Thread):
    """Writes to the database again and again, unhindered by any fault but the server's own.

    While it cannot, no worker is to be blamed: the machine is too slow, or a frozen worker holds SQLite's one lock.
    """

    def __init__(self, stage: Stage) -> None:
        super().__init__(name="bystander", daemon=True)
        self.delays: list[Span] = []
        self.stopped = threading.Event()
        self._sql = stage.sql()

    def run(self) -> None:
        last = time.monotonic()
        while not self.stopped.wait(0.1):
            with suppress(*DRIVER_ERRORS):
                self._sql.run("UPDATE pulse SET beats = beats + 1")
                now = time.monotonic()
                if now - last > 0.1 + SLACK_SECONDS:
                    self.delays.append(Span(last, now))
                last = now
        self._sql.close()


class Slot(threading.Thread):
    """A line of a crontab, with less than a minute between its starts."""

    def __init__(self, number: int, stage: Stage) -> None:
        super().__init__(name=f"slot-{number}", daemon=True)
        self.number = number
        self.runs: list[WorkerRun] = []
        self.process: subprocess.Popen[str] | None = None
        self.stopped = threading.Event()
        self._deployment = stage.deployment
        self._env = {
            "TASKSERVER_DSN": stage.dsns[number],
            "TASKSERVER_MODE": stage.modes[number],
            "PYTHONFAULTHANDLER": "1",
        }

    def run(self) -> None:
        while not self.stopped.is_set():
            began = time.monotonic()
            process = self._deployment.popen("worker.py", *ARGUMENTS[self.number], env=self._env)
            self.process = process
            _, errors = process.communicate()
            self.process = None
            self.runs.append(WorkerRun(self.number, process.pid, began, time.monotonic(), process.returncode, errors))
            self.stopped.wait(0.3 if process.returncode == 1 else 0.05)

    def is_over(self, seconds: float) -> bool:
        """Wait for the last worker; one that does not end is killed, and says before in which line each thread is."""
        self.join(seconds)
        if not self.is_alive():
            return True
        if self.process is not None:
            self.process.send_signal(signal.SIGABRT)
        self.join()
        return False
