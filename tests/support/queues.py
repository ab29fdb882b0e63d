"""A deployment and its queue: rows by SQL alone, as a web script writes them, and runs, here or by worker.py."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from taskserver import RunResult, TaskServer
from taskserver.stores import Store
from taskserver.stores.queue.counts import Counts
from taskserver.stores.records import QueueCount
from tests.support.deployment import Deployment
from tests.support.processes import wait_until
from tests.support.rows import AFTER, SECONDS_BETWEEN, connection_of, execute

NOTE = """
from pathlib import Path

HERE = Path(__file__).resolve().parent


def note(text="noted"):
    with open(HERE / "notes", "a") as file:
        file.write(f"{text}\\n")

"""
"""With what every tasks.py begins."""

LAST_GROUP = 4294967294
LONG_AGO = "2020-01-01 00:00:00.000000"
OF_RUNS = ("batch", "max_time", "linger", "stop", "on_progress")
"""What `run` takes as arguments."""


class Queue:
    """The queue of a deployment whose tasks.py has `note` and these tasks, and whose .env has these settings."""

    def __init__(
        self,
        deployment: Deployment,
        dsn: str,
        tasks: str = "",
        settings: Mapping[str, str] | None = None,
        tables: bool = True,
    ) -> None:
        self.deployment = deployment
        self.folder = deployment.folder
        self.client = deployment.client
        self.dsn = dsn
        self.kind = dsn.partition(":")[0]
        self.is_sqlite = self.kind == "sqlite"
        self.is_postgresql = self.kind == "postgresql"
        self._server_connection: Any = None
        self._tasks = tasks
        self.define("")
        deployment.write_env(TASKSERVER_DSN=dsn, **settings or {})
        if tables:
            with TaskServer(dsn, folder=deployment.folder) as server:
                server.create_tables()

    @cached_property
    def server(self) -> TaskServer:
        """A producer's and an operator's, by the settings of the deployment."""
        server = TaskServer.from_env(self.folder)
        self.deployment.at_close.append(server.close)
        return server

    def define(self, code: str) -> None:
        """Put this into tasks.py too, in place of what was defined before."""
        self.deployment.write_tasks(NOTE + self._tasks + code)

    # ---- rows

    @property
    def path(self) -> Path:
        """The file of an SQLite database."""
        return Path(self.folder, self.dsn.removeprefix("sqlite:///"))

    @property
    def now(self) -> str:
        return self.ago(0)

    def ago(self, seconds: int) -> str:
        """SQL for an instant so many seconds ago; in the future if negative."""
        return AFTER[self.kind].format(-seconds)

    def seconds_between(self, earlier: str, later: str) -> str:
        """SQL for the seconds from one instant to another."""
        return SECONDS_BETWEEN[self.kind].format(earlier, later)

    def sql(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        """Runs one statement, with a `?` for each value; its rows."""
        if self.is_sqlite:
            with closing(self.connect()) as connection:
                return execute(connection, statement, values)
        self._server_connection = self._server_connection or self.connect()
        return execute(self._server_connection, statement, values)

    def connect(self) -> Any:
        """A connection to its database."""
        return connection_of(f"sqlite:///{self.path}" if self.is_sqlite else self.dsn)

    def add(self, task: object, args: object = None, group_id: int = 0, priority: int = 0) -> None:
        insert = "INSERT INTO jobs_queue (task, args, group_id, priority) VALUES (?, ?, ?, ?)"
        self.sql(insert, task, args, group_id, priority)

    def add_many(self, groups_and_statuses: Sequence[tuple[int, int]]) -> None:
        values = ", ".join(f"('tasks.note', {group_id}, {status})" for group_id, status in groups_and_statuses)
        self.sql(f"INSERT INTO jobs_queue (task, group_id, status) VALUES {values}")

    def rows(self, columns: str = "*", table: str = "jobs_queue") -> list[tuple[Any, ...]]:
        """In order of id."""
        return self.sql(f"SELECT {columns} FROM {table} ORDER BY id")

    def statuses(self) -> list[int]:
        return [status for (status,) in self.rows("status")]

    def errors(self) -> list[str]:
        """The error_text of each row, empty where there is none."""
        return [text or "" for (text,) in self.rows("error_text")]

    def first_lines(self) -> list[str]:
        """Of the errors."""
        return [text.partition("\n")[0] for text in self.errors()]

    def reason(self) -> str:
        """Why the last run ended."""
        ((reason,),) = self.sql("SELECT reason FROM jobs_queue_workers")
        return str(reason)

    def move_workers(self) -> None:
        """As if the workers so far had run on another host, where nobody here can know whether they live."""
        self.sql("UPDATE jobs_queue_processes SET host = 'another'")

    def end_leases(self) -> None:
        """As if the lease of every claim had passed."""
        self.sql(f"UPDATE jobs_queue SET due_at = '{LONG_AGO}' WHERE status = 1")

    def end_backoffs(self) -> None:
        """As if every failed task had waited long enough."""
        self.sql(f"UPDATE jobs_queue SET due_at = '{LONG_AGO}' WHERE status = 3")

    def pass_time(self) -> None:
        """As if every delayed task had waited long enough."""
        self.sql(f"UPDATE jobs_queue SET due_at = '{LONG_AGO}' WHERE status = 5 AND due_at IS NOT NULL")

    def seconds_ahead(self) -> list[float]:
        """Seconds until each due_at by the database's clock, in order of id."""
        found = self.rows(self.seconds_between(self.now, "due_at"))
        return [float(seconds) for (seconds,) in found if seconds is not None]

    # ---- runs

    def run_here(self, max_tasks: int = 0, groups: Sequence[int] | None = None, **options: Any) -> RunResult:
        """A run inside this process, which imports tasks again; `lease` is TASKSERVER_LEASE, and so on."""
        how = {name: options.pop(name) for name in OF_RUNS if name in options}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "dont_write_bytecode", True)
            for name, value in options.items():
                patch.setenv(f"TASKSERVER_{name.upper()}", str(value))
            importlib.invalidate_caches()
            try:
                with TaskServer.from_env(self.folder) as server:
                    return server.run(max_tasks, groups, **how)
            finally:
                for name, module in list(sys.modules.items()):
                    if str(getattr(module, "__file__", "")).startswith(f"{self.folder}/"):
                        del sys.modules[name]

    def run_quietly(self, *args: Any, **options: Any) -> RunResult:
        """The same of a run in which no task becomes fatal, and none is lost."""
        result = self.run_here(*args, **options)
        assert (result.fatal, result.lost) == (0, 0), result
        return result

    def here(self, *args: object, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """Runs client.py inside this process."""
        return self.deployment.here(*args, env=env)

    def worker(self, *args: object, **env: str) -> subprocess.CompletedProcess[str]:
        """Runs worker.py to its end."""
        return self.deployment.worker(*args, env=env)

    def start(self, *args: object, **env: str) -> subprocess.Popen[str]:
        """Starts worker.py and returns at once."""
        return self.deployment.popen("worker.py", *args, env=env)

    def start_task(self, *args: object, **env: str) -> subprocess.Popen[str]:
        """Starts worker.py and returns once it is in the midst of a task, which leaves a note as it begins."""
        before = len(self.notes())
        process = self.start(*args, **env)
        wait_until(lambda: len(self.notes()) > before)
        return process

    def notes(self) -> list[str]:
        """What tasks wrote down."""
        path = self.folder / "notes"
        return path.read_text().splitlines() if path.exists() else []

    def go(self, name: str = "go") -> None:
        """Make the file that a task waits for."""
        (self.folder / name).touch()


def server_skips_locked(dsn: str) -> bool:
    """Whether a server has SKIP LOCKED; asks by a claim, so it is for an empty queue."""
    with TaskServer(dsn) as server:
        server.create_tables()
        server.store.claims.claim(1, ())
        return server.store.database.dialect.skips_locked


def row_counts(store: Store) -> list[QueueCount]:
    """Rows by group and status, as the overview has them."""
    return Counts(store.database).by_group().counts
