"""A queue whose tasks run in this process, from a module of their own that a test may use."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from taskserver import RunResult, TaskServer
from taskserver.stores import Store
from taskserver.stores.words import HELPERS, SCHEMA_VERSION
from tests.support.postgresql import PostgreSQLServer
from tests.support.rows import Rows
from tests.support.servers import MySQLServer

TABLES = ("", *(f"_{name}" for name in HELPERS))
_numbers = itertools.count()


@contextmanager
def kept_database(server: MySQLServer | PostgreSQLServer) -> Iterator[str]:
    """The DSN of a database with tables, for many tests: making them takes longer than most tests."""
    with server.database() as name:
        with TaskServer(server.dsn(name)) as task_server:
            task_server.create_tables()
        yield server.dsn(name)


def empty_tables(dsn: str) -> str:
    """Empty the tables of a kept database, whose ids start at 1 again; the DSN."""
    with closing(Rows(dsn)) as rows:
        for name in TABLES:
            rows.execute(f"DELETE FROM jobs_queue{name}")
        rows.execute(f"INSERT INTO jobs_queue_schema (version) VALUES ({SCHEMA_VERSION})")
        by_sequence = "ALTER SEQUENCE jobs_queue_id_seq RESTART"
        rows.execute(by_sequence if rows.is_postgresql else "ALTER TABLE jobs_queue AUTO_INCREMENT = 1")
    return dsn


class Site:
    """A server, the rows of its queue, and the module of its tasks."""

    def __init__(self, dsn: str, folder: Path, code: str, settings: Mapping[str, Any]) -> None:
        self.dsn = dsn
        self.mode = settings.get("mode", "delete")
        self.name = f"tasks_of_site_{next(_numbers)}"
        self._folder = str(folder)
        self.file = folder / f"{self.name}.py"
        self.file.write_text(code)
        self.server = TaskServer(dsn, modules=self.name, folder=folder, **settings)
        self.server.create_tables()
        self.store: Store = self.server.store
        self.rows = Rows(dsn)

    @property
    def module(self) -> Any:
        """Imported here at the latest, so that a test may say what its tasks do."""
        if self._folder not in sys.path:
            sys.path.insert(0, self._folder)
        return import_module(self.name)

    def add_args(self, name: str, args: Any = None, **more: Any) -> int:
        """As one of many, so that a worker is the first to look whether the task has to wait."""
        return self.server.add_tasks([{"task": f"{self.name}.{name}", "args": args, **more}])[0]

    def run(self, max_tasks: int = 0, **how: Any) -> RunResult:
        return self.server.run(max_tasks, **how)

    def columns(self, columns: str, table: str = "jobs_queue") -> list[tuple[Any, ...]]:
        return [tuple(row) for row in self.rows.execute(f"SELECT {columns} FROM {table} ORDER BY id")]

    def first_lines(self) -> list[str]:
        """Of the errors."""
        return [str(text or "").partition("\n")[0] for (text,) in self.columns("error_text")]

    def close(self) -> None:
        self.server.close()
        self.rows.close()
        sys.modules.pop(self.name, None)
        if self._folder in sys.path:
            sys.path.remove(self._folder)


class NumberedSite(Site):
    """Tasks whose arguments are {"n": number}; the tests of what several of them share count them by it."""

    def add(self, name: str, *numbers: int, **more: Any) -> list[int]:
        """Their ids."""
        new = [{"task": f"{self.name}.{name}", "args": {"n": number}, **more} for number in numbers]
        return self.server.add_tasks(new)

    def figures(self) -> tuple[int, ...]:
        """Begun, attempts, done, failed, fatal of all tasks."""
        columns = ("begun", "attempts", "done", "failed", "fatal")
        return tuple(sum(getattr(one, column) for one in self.server.stats()) for column in columns)


EFFECTS = {
    "sqlite": "CREATE TABLE effects (id INTEGER PRIMARY KEY AUTOINCREMENT, number INTEGER, CHECK (number < 2000))",
    "postgresql": "CREATE TABLE effects (id SERIAL PRIMARY KEY, number INT)",
    "mysql": "CREATE TABLE effects (id INT PRIMARY KEY AUTO_INCREMENT, number INT) ENGINE=InnoDB",
}
"""By the kind of the store."""


class EffectsSite(Site):
    """A site with that table; its tasks call `meanwhile` of their module, which is the test's."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.rows.execute("DROP TABLE IF EXISTS effects")
        self.rows.execute(EFFECTS[self.rows.kind])

    def effects(self) -> list[int]:
        """What was committed, in order."""
        return [number for (number,) in self.rows.execute("SELECT number FROM effects ORDER BY number")]

    def states(self) -> list[tuple[Any, ...]]:
        """The status and the attempts of each row."""
        return self.columns("status, attempts")
