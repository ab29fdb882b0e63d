"""Schema: schema.sql by hand and `client.py init` make the same tables; what columns keep and refuse."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pymysql
import pytest

from taskserver import TaskServer
from taskserver.errors import Refused
from taskserver.stores import Store
from taskserver.stores.words import HELPERS
from tests.support.databases import on
from tests.support.deployment import ROOT
from tests.support.processes import WAIT_SECONDS
from tests.support.queues import row_counts
from tests.support.servers import MySQLServer
from tests.support.threads import together

SCHEMA = (ROOT / "schema.sql").read_text(encoding="utf-8")
TABLES = ("jobs_queue", *sorted(f"jobs_queue_{name}" for name in HELPERS))
LONGEST_NAME = "q" + "_2345678" * 4 + "_abcdef"  # 40 letters


class Database:
    """One with MySQL's old default character set, into which schema.sql is loaded."""

    def __init__(self, server: MySQLServer, name: str) -> None:
        self.name = name
        self._server = server
        self.execute(f"ALTER DATABASE `{name}` CHARACTER SET latin1 COLLATE latin1_swedish_ci")

    def execute(self, *sql: str) -> tuple[tuple[Any, ...], ...]:
        return self._server.execute(*sql, database=self.name)

    def load(self, *before: str, name: str = "jobs_queue") -> None:
        """As a host's simple import does: cut at every ';', comments left in, pieces of only comments skipped."""
        pieces = [piece for piece in SCHEMA.split(";") if re.sub(r"--[^\n]*", "", piece).strip()]
        self.execute(*before, *(piece.replace("jobs_queue", name) for piece in pieces))

    def definitions(self) -> list[str]:
        """As the server describes them, of all tables."""
        assert tuple(sorted(name for (name,) in self.execute("SHOW TABLES"))) == TABLES
        texts = (str(self.execute(f"SHOW CREATE TABLE `{table}`")[0][1]) for table in TABLES)
        return [re.sub(r" AUTO_INCREMENT=\d+", "", text) for text in texts]


@pytest.fixture
def empty(mysql_server: MySQLServer) -> Iterator[Database]:
    with mysql_server.database() as name:
        yield Database(mysql_server, name)


@pytest.fixture
def expected(mysql_server: MySQLServer) -> Iterator[Sequence[str]]:
    """The tables as `client.py init` makes them."""
    with mysql_server.database() as name, TaskServer(mysql_server.dsn(name)) as server:
        server.create_tables()
        yield Database(mysql_server, name).definitions()


@pytest.mark.parametrize(
    "before",
    [
        "SET sql_mode = 'TRADITIONAL'",
        "SET sql_mode = 'ANSI,NO_BACKSLASH_ESCAPES'",
        "SET explicit_defaults_for_timestamp = OFF, sql_mode = ''",
    ],
)
def test_it_loads_in_every_session_and_twice(empty: Database, expected: Sequence[str], before: str) -> None:
    assert SCHEMA.isascii(), "an import would ask for its encoding"
    for _ in range(2):
        try:
            empty.load(before)
        except pymysql.OperationalError as error:
            if error.args[0] != 1238:
                raise
            pytest.skip("on this server explicit_defaults_for_timestamp is only a start option")
        assert empty.definitions() == expected
        empty.execute("INSERT INTO jobs_queue (task) VALUES ('tasks.a')")
    assert empty.execute("SELECT COUNT(*) FROM jobs_queue") == ((2,),)


def test_some_that_make_the_tables_at_once_all_succeed(dsn: str) -> None:
    line = threading.Barrier(4)

    def make() -> None:
        with TaskServer(dsn) as server:
            line.wait(WAIT_SECONDS)
            server.create_tables()

    with together(*[make] * 4):
        pass
    with TaskServer(dsn) as server:
        assert server.add_task("tasks.a") == 1


def test_a_file_in_which_the_name_was_replaced_works_under_that_name(
    mysql_server: MySQLServer, empty: Database
) -> None:
    empty.load(name="letters")
    with TaskServer(mysql_server.dsn(empty.name), table="letters", mode="move") as server:
        server.add_task("os.getcwd")
        server.store.tables.check()
        assert server.run().fatal == 1


@pytest.mark.parametrize("name", [LONGEST_NAME, "Jobs_Queue_2", "select"])
def test_init_add_and_a_run_work_under_every_allowed_name(dsn: str, name: str) -> None:
    with TaskServer(dsn, table=name, mode="move") as server:
        server.create_tables()
        server.create_tables()
        server.add_tasks([{"task": "os.getcwd"}] * 2)
        assert server.run(groups=[0, 3]).fatal == 2
        assert [count.rows for count in row_counts(server.store)] == [2]


def test_only_updated_at_moves_when_a_row_changes(empty: Database) -> None:
    empty.load()
    empty.execute(
        "INSERT INTO jobs_queue (task, due_at, started_at) VALUES ('tasks.a', NOW(6) + INTERVAL 1 HOUR, NOW(6))"
    )
    instants = "SELECT created_at, due_at, started_at, finished_at, updated_at FROM jobs_queue"
    (before,) = empty.execute(instants)
    (after,) = empty.execute("UPDATE jobs_queue SET priority = 5", instants)
    assert after[:4] == before[:4]
    assert after[4] > before[4]


def test_tasks_and_texts_come_back_byte_by_byte(store: Store) -> None:
    names = ["tasks.a", "tasks.A", "tasks.ä", "tasks.á", "😀", "\\' \" ` % ? {table} ; --", "\x01\t\n", "\u202e\ufeff"]
    for name in names:
        store.database.change("INSERT INTO {table} (task, error_text) VALUES (?, ?)", (name, name))
    for name in names:
        found = store.database.fetch("SELECT task, error_text FROM {table} WHERE task = ?", (name,))
        assert list(found) == [(name, name)]


@on("sqlite", "postgresql")
def test_the_number_that_pauses_all_groups_is_no_group(store: Store) -> None:
    change = store.database.change
    for table, columns, values in (("table", "task", "'a'"), ("schedules", "name, task", "'a', 'a'")):
        change(f"INSERT INTO {{{table}}} ({columns}, group_id) VALUES ({values}, 4294967294)")
        with pytest.raises(Refused, match=r"(?i)check constraint"):
            change(f"INSERT INTO {{{table}}} ({columns}, group_id) VALUES ({values.replace('a', 'b')}, 4294967295)")
