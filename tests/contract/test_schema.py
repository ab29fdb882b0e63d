"""Schema: schema.sql by hand and `client.py init` make the same tables; what columns keep and refuse."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import closing

import pytest

from taskserver import TaskServer
from taskserver.errors import Refused
from taskserver.stores import Store
from taskserver.stores.words import HELPERS
from tests.contract.verbs import add
from tests.support.databases import on
from tests.support.deployment import ROOT
from tests.support.processes import WAIT_SECONDS
from tests.support.queues import row_counts
from tests.support.rows import Rows
from tests.support.servers import MySQLServer
from tests.support.threads import together

SCHEMA = (ROOT / "schema.sql").read_text(encoding="utf-8")
TABLES = ("jobs_queue", *sorted(f"jobs_queue_{name}" for name in HELPERS))
LONGEST_NAME = "q" + "_2345678" * 4 + "_abcdef"  # 40 letters


def definitions(server: MySQLServer, name: str) -> list[str]:
    """As the server describes them, of all tables."""
    texts = [str(server.execute(f"SHOW CREATE TABLE `{table}`", database=name)[0][1]) for table in TABLES]
    return [re.sub(r" AUTO_INCREMENT=\d+", "", text) for text in texts]


@pytest.fixture
def empty(mysql_server: MySQLServer) -> Iterator[str]:
    """A database with MySQL's old default character set."""
    with mysql_server.database() as name:
        mysql_server.execute(f"ALTER DATABASE `{name}` CHARACTER SET latin1 COLLATE latin1_swedish_ci")
        yield name


def load(server: MySQLServer, database: str, *before: str, name: str = "jobs_queue") -> None:
    """As a host's simple import does: cut at every ';', comments left in, pieces of only comments skipped."""
    pieces = [piece for piece in SCHEMA.split(";") if re.sub(r"--[^\n]*", "", piece).strip()]
    server.execute(*before, *(piece.replace("jobs_queue", name) for piece in pieces), database=database)


@pytest.mark.parametrize("sql_mode", ["", "TRADITIONAL", "ANSI,NO_BACKSLASH_ESCAPES"])
def test_it_loads_in_every_session_and_twice(
    mysql_server: MySQLServer, kept_mysql_dsn: str, empty: str, sql_mode: str
) -> None:
    assert SCHEMA.isascii(), "an import would ask for its encoding"
    for _ in range(2):
        load(mysql_server, empty, f"SET sql_mode = '{sql_mode}'")
        # As `client.py init` makes the tables.
        assert definitions(mysql_server, empty) == definitions(mysql_server, kept_mysql_dsn.rpartition("/")[2])
        mysql_server.execute("INSERT INTO jobs_queue (task) VALUES ('tasks.a')", database=empty)
    assert mysql_server.execute("SELECT COUNT(*) FROM jobs_queue", database=empty) == ((2,),)


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


def test_a_file_in_which_the_name_was_replaced_works_under_that_name(mysql_server: MySQLServer, empty: str) -> None:
    load(mysql_server, empty, name="letters")
    with TaskServer(mysql_server.dsn(empty), table="letters", mode="move") as server:
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


def test_only_updated_at_moves_when_a_row_changes(mysql_store: Store, mysql_queue_dsn: str) -> None:
    add(mysql_store)
    with closing(Rows(mysql_queue_dsn)) as rows:
        rows.set("due_at = NOW(6) + INTERVAL 1 HOUR, started_at = NOW(6)")
        (before,) = rows.all()
        rows.set("priority = 5")
        (after,) = rows.all()
    assert after == before | {"priority": 5, "updated_at": after["updated_at"]}
    assert after["updated_at"] > before["updated_at"]


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
