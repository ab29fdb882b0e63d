"""A queue whose server fails under its workers. The tests' own SQL goes straight to the server."""

from __future__ import annotations

import subprocess
import time
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from typing import Any

import psycopg
import pymysql
import pytest

from tests.support.deployment import Deployment
from tests.support.postgresql import PostgreSQLServer
from tests.support.processes import end_of, wait_until
from tests.support.proxy import Proxy
from tests.support.queues import Queue
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


class FailingQueue(Queue):
    """On a server that is to fail, or behind a proxy that breaks the network."""

    refused: str
    """A word of the error where nobody listens."""
    waited: str
    """The same where a row's lock did not come in time."""
    cut_off: str
    """The same of a connection that was cut."""
    lost: Sequence[str]
    """Words of the errors of a connection that broke."""

    def __init__(
        self,
        deployment: Deployment,
        server: MySQLServer | PostgreSQLServer,
        database: str,
        proxy: Proxy | None = None,
    ) -> None:
        super().__init__(deployment, server.dsn(database), TASKS)
        self.database = database
        self.workers_dsn = proxy.dsn(self.dsn) if proxy else self.dsn
        self.set()

    def set(self, **settings: object) -> None:
        """Write the worker's .env: the way to the database, and TASKSERVER_… settings by the ends of their names."""
        keys = {"DSN": self.workers_dsn, "LOG": "log", "LOG_LEVEL": "debug", **settings}
        self.deployment.write_env("".join(f"TASKSERVER_{key}='{value}'\n" for key, value in keys.items()))

    # ---- rows

    def add_named(self, *names: str, task: str = "note") -> list[str]:
        for name in names:
            self.add(f"tasks.{task}", f'["{name}"]')
        return list(names)

    def sql(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        if self._server_connection is not None and not self._is_alive(self._server_connection):
            self._server_connection = None  # the database was away meanwhile
        return super().sql(statement, *values)

    @abstractmethod
    def _is_alive(self, connection: Any) -> bool:
        """Whether the tests' own connection still stands."""

    @abstractmethod
    def locking(self, statement: str, *values: object) -> AbstractContextManager[Any]:
        """Another program's open transaction that holds the rows which a statement reached; its cursor."""

    @abstractmethod
    def locking_table(self) -> AbstractContextManager[object]:
        """Another program that lets nobody write to the queue's table, as a backup does."""

    @abstractmethod
    def make_worker_a_victim(self) -> None:
        """Have the server end the worker's transaction, in a deadlock with `locking_as_survivor`."""

    @abstractmethod
    def locking_as_survivor(self) -> AbstractContextManager[Any]:
        """The cursor of another program's transaction."""

    @abstractmethod
    def had_deadlock(self) -> bool:
        """Whether the server has met one."""

    @abstractmethod
    def waiting_since(self) -> list[tuple[Any, ...]]:
        """Since when somebody waits for a row's lock in this database: instants, one for each wait."""

    @abstractmethod
    def count_waiting(self) -> int:
        """How many statements wait for any lock."""

    # ---- connections

    @abstractmethod
    def make_account(self) -> None:
        """Give the worker an account of its own with no more rights than it needs, as on a shared host."""

    @abstractmethod
    def connecting_plainly(self) -> AbstractContextManager[object]:
        """A connection of that account."""

    @abstractmethod
    def dropping_idle(self) -> AbstractContextManager[None]:
        """In the `with`, the server ends connections that are made meanwhile and idle for a second."""

    @abstractmethod
    def connections(self) -> list[int]:
        """The server's numbers of all connections to this database but the one that asks."""

    @abstractmethod
    def kill_connection(self, number: int) -> None:
        """Have the server end one of them."""

    def kill_connections(self) -> int:
        """Have the server end all connections to this database; how many there were."""
        found = self.connections()
        for number in found:
            self.kill_connection(number)
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


class OnMySQL(FailingQueue):
    """On MySQL or MariaDB."""

    refused, waited, cut_off = "(2003)", "(1205)", "(2013)"
    lost = ("(0)", "(2006)", "(2013)", "(1927)", "(1053)")

    def __init__(self, deployment: Deployment, server: MySQLServer, database: str, proxy: Proxy | None = None) -> None:
        super().__init__(deployment, server, database, proxy)
        self.database_server = server

    def _is_alive(self, connection: Any) -> bool:
        try:
            connection.ping(reconnect=False)
        except pymysql.MySQLError:
            return False
        return True

    @contextmanager
    def locking(self, statement: str, *values: object) -> Iterator[Any]:
        with closing(self.connect()) as connection, connection.cursor() as cursor:
            # As ours, so that it locks no more than the rows that it names.
            cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
            cursor.execute("SET innodb_lock_wait_timeout = 30")
            cursor.execute("BEGIN")
            cursor.execute(statement, values)
            yield cursor
            connection.rollback()

    @contextmanager
    def locking_table(self) -> Iterator[None]:
        with closing(self.connect()) as backup, backup.cursor() as cursor:
            cursor.execute("LOCK TABLES jobs_queue READ")
            yield
            cursor.execute("UNLOCK TABLES")

    def make_worker_a_victim(self) -> None:
        # Of two in a deadlock the server ends the one that has changed less.
        weights = ", ".join(f"({task_id}, 'x', 4)" for task_id in range(1001, 1201))
        self.sql(f"INSERT INTO jobs_queue (id, task, status) VALUES {weights}")

    def locking_as_survivor(self) -> AbstractContextManager[Any]:
        return self.locking("UPDATE jobs_queue SET priority = 1 WHERE id BETWEEN 1001 AND 1200")

    def had_deadlock(self) -> bool:
        return "LATEST DETECTED DEADLOCK" in self.sql("SHOW ENGINE INNODB STATUS")[0][2]

    def waiting_since(self) -> list[tuple[Any, ...]]:
        time.sleep(0.11)  # who asks sooner gets the answer of the last time, and so for ever
        return self.sql(
            "SELECT trx_wait_started FROM information_schema.innodb_trx JOIN information_schema.processlist"
            " ON processlist.id = trx_mysql_thread_id WHERE db = ? AND trx_state = 'LOCK WAIT'",
            self.database,
        )

    def count_waiting(self) -> int:
        waiting = "SELECT COUNT(*) FROM information_schema.processlist WHERE state LIKE 'Waiting%lock%'"
        return int(self.sql(waiting)[0][0])

    @contextmanager
    def set_for_all(self, variable: str, value: int) -> Iterator[None]:
        """In the `with`, a variable of the server has this value, for connections made from now on at least."""
        ((usual,),) = self.sql(f"SELECT @@GLOBAL.{variable}")
        self.sql(f"SET GLOBAL {variable} = {value}")
        try:
            yield
        finally:
            self.sql(f"SET GLOBAL {variable} = {usual}")

    def make_account(self) -> None:
        self.database_server.execute(
            f"CREATE USER '{self.database}'@'%' IDENTIFIED BY '{ACCOUNT_PASSWORD}'",
            f"GRANT SELECT, INSERT, UPDATE, DELETE ON `{self.database}`.* TO '{self.database}'@'%'",
        )
        self.workers_dsn = self.dsn.replace(self.database_server.login, f"{self.database}:{ACCOUNT_PASSWORD}")
        self.set()

    def connecting_plainly(self) -> AbstractContextManager[object]:
        return closing(self.database_server.connect(user=self.database, password=ACCOUNT_PASSWORD))

    @contextmanager
    def dropping_idle(self) -> Iterator[None]:
        with self.set_for_all("wait_timeout", 1):
            yield

    def connections(self) -> list[int]:
        which = "SELECT id FROM information_schema.processlist WHERE db = ? AND id <> CONNECTION_ID()"
        return [number for (number,) in self.sql(which, self.database)]

    def kill_connection(self, number: int) -> None:
        self.sql(f"KILL {number}")


class OnPostgreSQL(FailingQueue):
    """On PostgreSQL."""

    refused, waited, cut_off = "connection failed", "(55P03)", "(OperationalError)"
    # By libpq in its own words, unless the server said why.
    lost = ("(57P01)", "(57P02)", "(57P05)", "server closed", "consuming input", "connection is ", "timed out", "reset")

    def __init__(
        self, deployment: Deployment, server: PostgreSQLServer, database: str, proxy: Proxy | None = None
    ) -> None:
        super().__init__(deployment, server, database, proxy)
        self.database_server = server

    def _is_alive(self, connection: Any) -> bool:
        try:
            connection.execute("SELECT 1")
        except psycopg.Error:
            return False
        return True

    @contextmanager
    def locking(self, statement: str, *values: object) -> Iterator[Any]:
        with closing(self.database_server.connect(dbname=self.database, autocommit=False)) as connection:
            cursor = connection.execute("SET deadlock_timeout = '30s'")  # the other side is the victim
            cursor.execute(statement.encode(), values)
            yield cursor
            connection.rollback()

    @contextmanager
    def locking_table(self) -> Iterator[None]:
        # What keeps writers out, and lets all others read.
        with self.locking("LOCK TABLE jobs_queue IN SHARE MODE"):
            yield

    def make_worker_a_victim(self) -> None:
        # The server ends the one that looks for a deadlock first: before its wait for the lock is over.
        self.sql(f"ALTER DATABASE {self.database} SET deadlock_timeout = '900ms'")

    def locking_as_survivor(self) -> AbstractContextManager[Any]:
        return self.locking("SELECT 1")

    def had_deadlock(self) -> bool:
        return self.sql("SELECT deadlocks > 0 FROM pg_stat_database WHERE datname = current_database()") == [(True,)]

    def waiting_since(self) -> list[tuple[Any, ...]]:
        return self.sql(
            "SELECT query_start FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        )

    def count_waiting(self) -> int:
        return len(self.waiting_since())

    @contextmanager
    def set_for_all(self, variable: str, value: object) -> Iterator[None]:
        """In the `with`, a setting of the server has this value for all, in connections that stand, too."""
        ((usual,),) = self.database_server.execute(f"SHOW {variable}")
        self._set_for_all(variable, value)
        try:
            yield
        finally:
            self._set_for_all(variable, usual)

    def _set_for_all(self, variable: str, value: object) -> None:
        self.sql("SET default_transaction_read_only = off")
        self.sql(f"ALTER SYSTEM SET {variable} = '{value}'")
        self.sql("SELECT pg_reload_conf()")
        wait_until(lambda: self.database_server.execute(f"SHOW {variable}") == [(value,)])

    def make_account(self) -> None:
        self.sql(f"CREATE ROLE {self.database} LOGIN PASSWORD '{ACCOUNT_PASSWORD}'")
        self.sql(f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {self.database}")
        self.workers_dsn = self.dsn.replace(self.database_server.login, f"{self.database}:{ACCOUNT_PASSWORD}")
        self.set()

    def connecting_plainly(self) -> AbstractContextManager[object]:
        account = {"user": self.database, "password": ACCOUNT_PASSWORD}
        return closing(self.database_server.connect(dbname=self.database, **account))

    @contextmanager
    def dropping_idle(self) -> Iterator[None]:
        with self.set_for_all("idle_session_timeout", "1s"):
            yield

    def connections(self) -> list[int]:
        which = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        return [number for (number,) in self.sql(which)]

    def kill_connection(self, number: int) -> None:
        self.sql(f"SELECT pg_terminate_backend({number})")


QUEUES = {"mysql": OnMySQL, "postgresql": OnPostgreSQL}
"""By the kind of the store."""
ON_MYSQL = pytest.mark.parametrize("failing_kind", ["mysql"], indirect=True)
"""Of a test that is about what MySQL alone does."""
