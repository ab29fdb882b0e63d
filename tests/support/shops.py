"""Shops with orders in the database of their queue: one that adds on its own connections, and those of examples/."""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import sys
from contextlib import suppress
from datetime import datetime, timezone
from typing import Any

import psycopg

from tests.support.deployment import TIMEOUT_SECONDS, Deployment
from tests.support.processes import assert_silent
from tests.support.queues import Queue
from tests.support.rows import as_instant
from tests.support.servers import MySQLServer, plain_connection
from tests.support.websites import EXAMPLES, MINIMAL

TASKS = """
import json

note_text = note

def note(*args, **kwargs):
    note_text(json.dumps([args, kwargs]))

def first(*args):
    return args

def send_letter(**kwargs):
    note(**kwargs)

confirm_order = check_comment = send_letter
"""
ODD_TEXT = "Grüße 🎉 日本語 'quoted' \"twice\" \\ back / slash \t tab %s %d ? {x} :y <b>bold</b>"
DEEP = {"tief": [1, 2.0, -2.5, True, None]}
VALUES: list[list[Any]] = [
    [[], {"to": "a@example.org", "text": ODD_TEXT, "größe": DEEP, "list": [], "dict": {}}],
    [[ODD_TEXT, 9007199254740993], {}],
    [[], {}],
]
"""Positions and keywords of tasks that every language should add unchanged."""
NEEDED_BY_DJANGO_5 = {"mysql": (8, 0), "mariadb": (10, 5), "postgresql": (14, 0)}
NEEDED_BY_DJANGO_6 = {"mysql": (8, 4), "mariadb": (10, 11), "postgresql": (15, 0)}
AT = datetime(2031, 3, 4, 5, 6, 7, 89_000, timezone.utc)
KEY = {"sqlite": "INTEGER", "postgresql": "BIGSERIAL", "mysql": "BIGINT AUTO_INCREMENT"}
CHARSET = {"sqlite": "", "postgresql": "", "mysql": " DEFAULT CHARACTER SET utf8mb4"}


class Shop(Queue):
    """A queue beside a table of orders, and a server of the shop's to add tasks with."""

    def __init__(self, deployment: Deployment, dsn: str) -> None:
        super().__init__(deployment, dsn, TASKS)
        self.database = dsn.rpartition("/")[2]
        self._opened: list[Any] = []
        self.sql(
            f"CREATE TABLE orders (id {KEY[self.kind]} PRIMARY KEY, customer VARCHAR(100) NOT NULL){CHARSET[self.kind]}"
        )

    def open(self, **kwargs: Any) -> Any:
        """A connection of the shop's own, that has begun nothing yet."""
        connect: Any = psycopg.connect if self.is_postgresql else plain_connection
        connection = sqlite3.connect(self.path, **kwargs) if self.is_sqlite else connect(**(self.place | kwargs))
        self._opened.append(connection)
        return connection

    @property
    def place(self) -> dict[str, Any]:
        """Of a server's database, as drivers want it."""
        at: Any = self.server.settings.dsn
        name = "dbname" if self.is_postgresql else "database"
        return {"host": at.host, "port": at.port, "user": at.user, "password": at.password, name: at.database}

    @property
    def place_in_django(self) -> dict[str, Any]:
        """The database, as in Django's settings."""
        if self.is_sqlite:
            return {"ENGINE": "django.db.backends.sqlite3", "NAME": str(self.path)}
        place = {"NAME" if key in ("database", "dbname") else key.upper(): value for key, value in self.place.items()}
        if self.is_postgresql:
            return {"ENGINE": "django.db.backends.postgresql", **place}
        return {"ENGINE": "django.db.backends.mysql", "OPTIONS": {"charset": "utf8mb4"}, **place}

    def order(self, connection: Any) -> None:
        """A row of the shop's own."""
        cursor = connection.cursor()
        cursor.execute("INSERT INTO orders (customer) VALUES ('Ada')")
        cursor.close()

    def customers(self) -> list[str]:
        return [customer for (customer,) in self.rows("customer", "orders")]

    def added(self) -> list[Any]:
        """The arguments of all tasks."""
        return [args and json.loads(args) for (args,) in self.rows("args")]

    def noted(self) -> list[Any]:
        """With what `note` was called."""
        return [json.loads(note) for note in self.notes()]

    def instants(self, column: str) -> list[Any]:
        """In UTC, as text."""
        return [value and as_instant(value).isoformat(" ", "microseconds") for (value,) in self.rows(column)]

    def due_in(self) -> list[float | None]:
        """Seconds until the tasks are due."""
        rows = self.rows(self.seconds_between(self.now, "due_at"))
        return [None if value is None else float(value) for (value,) in rows]

    def run_all(self) -> None:
        assert_silent(self.worker(100, "3,5,6"))

    def assert_values_arrived(self, printed: str) -> None:
        """VALUES, in their types too: 2.0 equals 2, and is another thing. What was printed are their ids."""
        assert [int(word) for word in printed.split()] == [task_id for (task_id,) in self.rows("id")]
        self.run_all()
        assert list(map(repr, self.noted())) == list(map(repr, VALUES))

    def assert_waits_an_hour(self) -> None:
        """The only task."""
        self.run_all()
        assert self.rows("status, attempts") == [(5, 0)]
        assert [round(seconds or 0, -2) for seconds in self.due_in()] == [3600]

    def assert_ordered(self) -> None:
        """An order of ODD_TEXT and its task, which runs."""
        assert self.rows("id, customer", "orders") == [(1, ODD_TEXT)]
        self.run_all()
        assert self.noted() == [[[], {"order": 1, "customer": ODD_TEXT}]]

    def add_some(self, connection: Any) -> list[int]:
        """Tasks of several kinds, by statements of all forms."""
        server = self.server
        first = server.add_task("tasks.note", [ODD_TEXT], connection=connection)
        return [
            first,
            server.add_task("tasks.note", delay=60, connection=connection),
            server.add_task("tasks.note", depends_on=[first], connection=connection),
            server.add_pipeline(["tasks.first", "tasks.note"], unique_key="p", connection=connection),
            *server.add_tasks(
                [
                    *({"task": "tasks.note", "unique_key": key, "rerun": True} for key in ("a", "é", "a")),
                    *({"task": "tasks.note", "at": AT} for _ in range(3)),
                ],
                connection=connection,
            ),
        ]

    def assert_added(self, ids: list[int]) -> None:
        """The rows of `add_some` are there, and no other ones."""
        rows = {row[0]: row[1:] for row in self.rows("id, unique_key, status")}
        assert set(rows) == set(ids)
        assert len(rows) == len(ids) - 1
        key = str.encode if self.kind == "mysql" else str
        keys = [None, None, None, key("p"), key("a"), key("é"), key("a"), None, None, None]
        assert [rows[task_id][0] for task_id in ids] == keys
        assert self.sql("SELECT parent_id, child_id FROM jobs_queue_dependencies") == [(ids[0], ids[2])]

    def close(self) -> None:
        for connection in self._opened:
            with suppress(Exception):
                connection.close()


PREPARED = {
    "django_project": "from shop.worker import setup\n\nsetup()\nfrom django.db import connection, transaction\n"
    "from shop import tasks\nfrom shop.models import Book, Order\nfrom shop.queue import queue\n",
    "flask_app": "from shop.worker import setup\n\nsetup()\n"
    "from shop import tasks\nfrom shop.db import Order, session\nfrom shop.queue import queue\n",
}
"""With what code of a test begins, which runs in a project."""


class Project(Queue):
    """A project with the settings of its .env.example, but for where the database lies."""

    def __init__(self, deployment: Deployment, name: str, server: MySQLServer | None, dsn: str) -> None:
        """Without a server the site has its SQLite file."""
        self._name = name
        shutil.copytree(EXAMPLES / name, deployment.folder, dirs_exist_ok=True)
        super().__init__(deployment, dsn, tables=False)
        text = (self.folder / ".env.example").read_text()
        if server:
            for word, ours in {
                "localhost/": f"{server.host}:{server.port}/",
                "you_site": dsn.rpartition("/")[2],
                "you_web": server.user,
                "web-password": server.password,
            }.items():
                assert word in text
                text = text.replace(word, ours)
            text += f"\nMYSQL_HOST={server.host}\nMYSQL_PORT={server.port}\n"
        else:
            left_out = ("MYSQL_", "DATABASE=", "TASKSERVER_DSN=", "TASKSERVER_PASSWORD=")
            kept = [line for line in text.splitlines() if not line.startswith(left_out)]
            text = "\n".join([*kept, f"TASKSERVER_DSN={dsn}", ""])
        deployment.write_env(text)
        if name == "django_project":
            self.program("manage.py", "migrate", "-v", "0")
        assert deployment.client("init").returncode == 0

    def program(self, *arguments: str) -> str:
        """Runs a program of the project to its end; what it prints."""
        command = [sys.executable, *arguments]
        done = subprocess.run(
            command, cwd=self.folder, env=MINIMAL, capture_output=True, text=True, timeout=TIMEOUT_SECONDS
        )
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    def run(self, code: str) -> Any:
        """Runs code with the project's models, tasks and queue; what it prints, which is JSON, or nothing."""
        printed = self.program("-c", PREPARED[self._name] + code)
        return json.loads(printed) if printed else None

    def define_beside(self, code: str) -> None:
        """Have these in a module of tasks beside the project's own."""
        self.deployment.write_tasks(code, "tasks_of_test.py")
        self.add_settings("TASKSERVER_MODULES=shop.tasks,tasks_of_test\n")

    def add_settings(self, lines: str) -> None:
        """Put these into .env, in the place of what it has of the same keys."""
        keys = tuple(f"{line.partition('=')[0]}=" for line in lines.splitlines())
        path = self.folder / ".env"
        kept = [line for line in path.read_text().splitlines() if not line.startswith(keys)]
        path.write_text("\n".join([*kept, lines]))
