"""A queue whose server fails under its workers. The tests' own SQL goes straight to the server."""

from __future__ import annotations

import itertools
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any, NamedTuple

import psycopg
import pymysql
import pytest

from taskserver import TaskServer
from tests.support.deployment import Deployment
from tests.support.postgresql import PostgreSQLServer
from tests.support.processes import end_of, wait_until
from tests.support.proxy import Proxy
from tests.support.queues import NOTE, Queue
from tests.support.servers import MySQLServer

TASKS = """
import time

from taskserver import task

note_text = note


def note(name, seconds=0.0):
    note_text(name)
    time.sleep(seconds)


@task(commit_every=50)
def share(name, waits=False):
    note(name)
    while waits and not (HERE / "go").exists():
        time.sleep(0.01)


def wait_for_go(name):
    note(name)
    while not (HERE / "go").exists():
        time.sleep(0.01)


def fail(name):
    note(name)
    raise ValueError(name)
"""
ACCOUNT_PASSWORD = "workers_own"
LOCK_TASK = "SELECT id FROM jobs_queue WHERE id = %s FOR UPDATE"
LOCK_TASKS = "SELECT id FROM jobs_queue WHERE id BETWEEN %s AND %s FOR UPDATE"


class ErrorWords(NamedTuple):
    """Words of a driver's errors."""

    refused: str
    """Where nobody listens."""
    lost: Sequence[str]
    """A connection broke."""
    cut_off: str
    """The same if it was cut."""


WORDS = {
    "mysql": ErrorWords("(2003)", ("(0)", "(2006)", "(2013)", "(1927)", "(1053)"), "(2013)"),
    # By libpq in its own words, unless the server said why.
    "postgresql": ErrorWords(
        "connection failed",
        ("(57P01)", "(57P02)", "(57P05)", "server closed", "consuming input", "connection is ", "timed out", "reset"),
        "(OperationalError)",
    ),
}
CONNECTIONS = {
    "mysql": "SELECT id FROM information_schema.processlist WHERE db = DATABASE() AND id <> CONNECTION_ID()",
    "postgresql": "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()",
}
"""The server's numbers of all connections to this database but the one that asks."""
KILL = {"mysql": "KILL {}", "postgresql": "SELECT pg_terminate_backend({})"}
MAKE_ACCOUNT = {
    "mysql": (
        f"CREATE USER '{{0}}'@'%' IDENTIFIED BY '{ACCOUNT_PASSWORD}' WITH MAX_USER_CONNECTIONS {{1}}",
        "GRANT SELECT, INSERT, UPDATE, DELETE ON `{0}`.* TO '{0}'@'%'",
    ),
    "postgresql": (
        f"CREATE ROLE {{0}} LOGIN PASSWORD '{ACCOUNT_PASSWORD}' CONNECTION LIMIT {{1}}",
        "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {0}",
        "GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO {0}",
    ),
}
DROP_ACCOUNT = {"mysql": ["DROP USER '{0}'@'%'"], "postgresql": ["DROP OWNED BY {0}", "DROP ROLE {0}"]}
ON_MYSQL = pytest.mark.parametrize("failing_kind", ["mysql"], indirect=True)
_numbers = itertools.count()


class FailingQueue(Queue):
    """On a server that is to fail, or behind a proxy that breaks the network."""

    def __init__(
        self,
        deployment: Deployment,
        server: MySQLServer | PostgreSQLServer,
        database: str,
        proxy: Proxy | None = None,
        tasks: str = TASKS,
    ) -> None:
        super().__init__(deployment, server.dsn(database), tasks)
        self.database, self.database_server = database, server
        self.words = WORDS[self.kind]
        self.workers_dsn = proxy.dsn(self.dsn) if proxy else self.dsn
        self.set()

    def set(self, **settings: object) -> None:
        """Write the worker's .env: the way to the database, and TASKSERVER_… settings by the ends of their names."""
        keys: dict[str, object] = {"DSN": self.workers_dsn, "LOG": "log", "LOG_LEVEL": "debug", **settings}
        self.deployment.write_env("".join(f"TASKSERVER_{key}='{value}'\n" for key, value in keys.items()))

    @contextmanager
    def opened(self, tasks: str = "", **settings: Any) -> Iterator[Here]:
        """A TaskServer of this process, on the worker's way to the database."""
        module = f"fault_tasks_{next(_numbers)}"
        self.deployment.write_tasks(NOTE + TASKS + tasks, f"{module}.py")
        with TaskServer(self.workers_dsn, modules=module, folder=self.folder, **settings) as server:
            yield Here(server, module)

    # ---- the tests' own SQL

    def add_named(self, *names: str, task: str = "note", module: str = "tasks") -> list[str]:
        for name in names:
            self.add(f"{module}.{task}", f'["{name}"]')
        return list(names)

    def sql(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        try:
            return super().sql(statement, *values)
        except (pymysql.OperationalError, pymysql.InterfaceError, psycopg.OperationalError):
            self._server_connection = None  # the database was away meanwhile
            return super().sql(statement, *values)

    @contextmanager
    def locking(self, statement: str, *values: object) -> Iterator[Any]:
        """Another program's open transaction that holds the rows which a statement reached; its cursor."""
        name = {"dbname" if self.is_postgresql else "database": self.database}
        with closing(self.database_server.connect(**name, autocommit=False)) as connection:
            with connection.cursor() as cursor:
                if not self.is_postgresql:
                    # As ours, so that it locks no more than the rows that it names.
                    cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
                cursor.execute(statement, values or None)
                yield cursor
            connection.rollback()

    def await_lock_wait(self) -> None:
        wait_until(self.database_server.count_lock_waits)

    # ---- connections

    @contextmanager
    def with_account(self, connections: int = 1000, **settings: object) -> Iterator[None]:
        """The worker has an account of its own with no more rights than it needs, as on a shared host."""
        for statement in MAKE_ACCOUNT[self.kind]:
            self.sql(statement.format(self.database, connections))
        dsn = self.workers_dsn
        self.workers_dsn = self.dsn.replace(self.database_server.login, f"{self.database}:{ACCOUNT_PASSWORD}")
        self.set(**settings)
        try:
            if isinstance(self.database_server, MySQLServer):
                self.database_server.meet(self.database, ACCOUNT_PASSWORD)
            yield
        finally:
            self.workers_dsn = dsn
            for statement in DROP_ACCOUNT[self.kind]:
                self.sql(statement.format(self.database))

    def connect_plainly(self) -> Any:
        """A connection of that account."""
        name = {"dbname": self.database} if self.is_postgresql else {}
        return self.database_server.connect(**name, user=self.database, password=ACCOUNT_PASSWORD)

    def connections(self) -> list[int]:
        return [number for (number,) in self.sql(CONNECTIONS[self.kind])]

    def kill_connections(self) -> int:
        """The server ends all connections to this database; how many there were."""
        found = self.connections()
        for number in found:
            self.sql(KILL[self.kind].format(number))
        wait_until(lambda: not self.connections())
        return len(found)

    # ---- runs

    def start_first(self, *args: object) -> subprocess.Popen[str]:
        """A worker in the midst of its first task, which ends at `go`, with two more claimed."""
        self.deployment.claim_at_once()
        self.add_named("first", task="wait_for_go")
        self.add_named("second", "third")
        return self.start_task(*args)

    def log(self) -> str:
        path = self.folder / "log"
        return path.read_text() if path.exists() else ""

    def tries(self, *words: str) -> int:
        """How often a worker met an error and tried again: one with one of these words, or any."""
        lines = [line for line in self.log().splitlines() if "trying again: " in line]
        return sum(not words or any(word in line for word in words) for line in lines)

    def counts(self) -> dict[str, Any]:
        """What the last run recorded."""
        names = ("taken", "done", "fatal", "lost", "released", "reason")
        (row,) = self.sql(f"SELECT {', '.join(names)} FROM jobs_queue_workers")
        return dict(zip(names, row, strict=True))

    def assert_all_once(
        self, worker: subprocess.Popen[str], names: Sequence[str] = ("first", "second", "third")
    ) -> None:
        """The run ends well, each task ran once, in order, and none is left, failed, or reported as lost."""
        assert end_of(worker) == (0, "", "")
        assert self.notes() == list(names)
        counts = self.counts()
        assert (counts["taken"], counts["done"], counts["reason"]) == (len(names), len(names), "empty")
        assert (counts["fatal"], counts["lost"]) == (0, 0)
        assert set(self.rows("status, attempts, error_text")) <= {(2, 1, None)}


class Here(NamedTuple):
    """A TaskServer of this process, and the module of its tasks."""

    server: TaskServer
    module: str
