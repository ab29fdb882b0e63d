"""A queue whose MySQL or MariaDB fails under its workers. The tests' own SQL goes straight to the server."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

import pymysql

from tests.support.deployment import Deployment
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
LOCK_TASK = "SELECT id FROM jobs_queue WHERE id = %s FOR UPDATE"
LOCK_TASKS = "SELECT id FROM jobs_queue WHERE id BETWEEN %s AND %s FOR UPDATE"


class FailingQueue(Queue):
    """On a server that is to fail, or behind a proxy that breaks the network."""

    def __init__(self, deployment: Deployment, server: MySQLServer, database: str, proxy: Proxy | None = None) -> None:
        super().__init__(deployment, server.dsn(database), TASKS)
        self.database_server = server
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
        try:
            if self._server_connection is not None:
                self._server_connection.ping(reconnect=False)
        except pymysql.MySQLError:
            self._server_connection = None  # the database was away meanwhile
        return super().sql(statement, *values)

    @contextmanager
    def locking(self, statement: str, *values: object) -> Iterator[pymysql.cursors.Cursor]:
        """Another program's open transaction that holds the rows which a statement reached."""
        with closing(self.connect()) as connection, connection.cursor() as cursor:
            # As ours, so that it locks no more than the rows that it names.
            cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
            cursor.execute("SET innodb_lock_wait_timeout = 30")
            cursor.execute("BEGIN")
            cursor.execute(statement, values)
            yield cursor
            connection.rollback()

    def waiting_since(self) -> list[tuple[Any, ...]]:
        """Since when somebody waits for a row's lock in this database: instants, one for each wait."""
        time.sleep(0.11)  # who asks sooner gets the answer of the last time, and so for ever
        return self.sql(
            "SELECT trx_wait_started FROM information_schema.innodb_trx JOIN information_schema.processlist"
            " ON processlist.id = trx_mysql_thread_id WHERE db = ? AND trx_state = 'LOCK WAIT'",
            self.database,
        )

    @contextmanager
    def set_for_all(self, variable: str, value: int) -> Iterator[None]:
        """In the `with`, a variable of the server has this value, for connections made from now on at least."""
        ((usual,),) = self.sql(f"SELECT @@GLOBAL.{variable}")
        self.sql(f"SET GLOBAL {variable} = {value}")
        try:
            yield
        finally:
            self.sql(f"SET GLOBAL {variable} = {usual}")

    # ---- connections

    def connections(self) -> list[int]:
        """The server's numbers of all connections to this database but the one that asks."""
        which = "SELECT id FROM information_schema.processlist WHERE db = ? AND id <> CONNECTION_ID()"
        return [number for (number,) in self.sql(which, self.database)]

    def kill_connections(self) -> int:
        """Have the server end all connections to this database; how many there were."""
        found = self.connections()
        for number in found:
            self.sql(f"KILL {number}")
        wait_until(lambda: not self.connections())
        return len(found)

    # ---- runs

    def start_first(self, *args: object) -> subprocess.Popen[str]:
        """A worker in the midst of its first task, which ends at `go`, with two more claimed."""
        self.add_named("first", task="wait_for_go")
        self.add_named("second", "third")
        return self.start_task(*args)

    def log(self) -> str:
        path = self.folder / "log"
        return path.read_text() if path.exists() else ""

    def tries(self, *numbers: int) -> int:
        """How often a worker met an error and tried again: one of these numbers, or any."""
        lines = [line for line in self.log().splitlines() if "trying again: " in line]
        return sum(not numbers or any(f"({number})" in line for number in numbers) for line in lines)

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
