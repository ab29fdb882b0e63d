"""The tables: schema.sql by hand and by `client.py init`, in every mode of a server, and what the columns promise."""

from __future__ import annotations

import json
import re
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pymysql
import pytest

from taskserver import TaskServer
from taskserver.stores.tables import SCHEMA_VERSION
from tests.support.deployment import ROOT, Deployment
from tests.support.processes import WAIT_SECONDS
from tests.support.servers import MySQLServer
from tests.support.threads import together

SCHEMA = (ROOT / "schema.sql").read_text(encoding="utf-8")
OTHERS = ("dependencies", "done", "notes", "paused", "processes", "schedules", "schema", "stats", "workers")
TABLES = ("jobs_queue", *(f"jobs_queue_{name}" for name in OTHERS))
LONGEST_NAME = "q" + "_2345678" * 4 + "_abcdef"
SQL_MODES = {
    "none": "",
    "strict": "STRICT_ALL_TABLES",
    "traditional": "TRADITIONAL",
    "ansi quotes": "ANSI_QUOTES",
    "ansi": "ANSI",
    "no backslashes": "NO_BACKSLASH_ESCAPES,STRICT_TRANS_TABLES",
    "the server's": None,
}


def statements(text: str) -> list[str]:
    """As a tool that knows comments splits a file: phpMyAdmin, or the mysql program."""
    lines = (re.split(r"-- |--$", line)[0].rstrip() for line in text.splitlines())
    return [statement.strip() for statement in "\n".join(lines).split(";") if statement.strip()]


def statements_of_a_simple_tool(text: str) -> list[str]:
    """As a host's simple import does: cut at every ';', comments left in, pieces of nothing but comments skipped."""
    return [piece for piece in text.split(";") if re.sub(r"--[^\n]*", "", piece).strip()]


class Column(NamedTuple):
    """A default is an expression without its server's way of writing it."""

    nullable: bool
    default: str | None


class Database:
    """One with MySQL's old default character set, into which schema.sql is loaded."""

    def __init__(self, server: MySQLServer, name: str) -> None:
        self.name = name
        self._server = server
        self.execute(f"ALTER DATABASE `{name}` CHARACTER SET latin1 COLLATE latin1_swedish_ci")

    def execute(self, *sql: str) -> tuple[tuple[Any, ...], ...]:
        return self._server.execute(*sql, database=self.name)

    def load(self, *before: str, text: str = SCHEMA) -> None:
        self.execute(*before, *statements(text))

    def columns(self, table: str = "jobs_queue") -> dict[str, Column]:
        found = self.execute(
            "SELECT column_name, is_nullable, column_default FROM information_schema.columns"
            f" WHERE table_schema = '{self.name}' AND table_name = '{table}' ORDER BY ordinal_position",
        )
        return {name: Column(nullable == "YES", plain(default)) for name, nullable, default in found}

    def definitions(self) -> list[str]:
        """As the server tells them, of all tables."""
        texts = (str(self.execute(f"SHOW CREATE TABLE `{table}`")[0][1]) for table in TABLES)
        return [re.sub(r" AUTO_INCREMENT=\d+", "", text) for text in texts]


@pytest.fixture
def empty(mysql_server: MySQLServer) -> Iterator[Database]:
    with mysql_server.database() as name:
        yield Database(mysql_server, name)


@pytest.fixture
def loaded(empty: Database) -> Database:
    empty.load()
    return empty


def plain(text: str | None) -> str | None:
    """MariaDB writes NULL for no default, MySQL 9 adds DEFAULT_GENERATED."""
    if text is None or text == "NULL":
        return None
    return text.lower().replace("default_generated", "").strip().replace("()", "")


NOW = "current_timestamp(6)"


def assert_schema_is_right(database: Database, expected: Sequence[str]) -> None:
    assert tuple(sorted(name for (name,) in database.execute("SHOW TABLES"))) == TABLES
    assert database.definitions() == expected
    assert database.execute("SELECT version FROM jobs_queue_schema") == ((SCHEMA_VERSION,),)
    engines = f"SELECT DISTINCT engine FROM information_schema.tables WHERE table_schema = '{database.name}'"
    assert database.execute(engines) == (("InnoDB",),)


@pytest.fixture
def expected(mysql_server: MySQLServer) -> Iterator[Sequence[str]]:
    """The tables as `client.py init` makes them."""
    with mysql_server.database() as name, TaskServer(mysql_server.dsn(name)) as server:
        server.create_tables()
        yield Database(mysql_server, name).definitions()


# ---- loading it


@pytest.mark.parametrize("sql_mode", SQL_MODES.values(), ids=SQL_MODES)
def test_it_loads_by_the_statement_and_twice_in_every_sql_mode(
    empty: Database, expected: Sequence[str], sql_mode: str | None
) -> None:
    before = [] if sql_mode is None else [f"SET SESSION sql_mode = '{sql_mode}'"]
    for _ in range(2):
        empty.load(*before)
        assert_schema_is_right(empty, expected)
        empty.execute("INSERT INTO jobs_queue (task) VALUES ('tasks.a')")
    assert empty.execute("SELECT COUNT(*) FROM jobs_queue") == ((2,),)


@pytest.mark.parametrize("explicit", ["ON", "OFF"])
@pytest.mark.parametrize("sql_mode", ["", "TRADITIONAL"])
def test_it_means_the_same_whatever_explicit_defaults_for_timestamp_says(
    empty: Database, expected: Sequence[str], explicit: str, sql_mode: str
) -> None:
    try:
        empty.load(f"SET explicit_defaults_for_timestamp = {explicit}", f"SET sql_mode = '{sql_mode}'")
    except pymysql.OperationalError as error:
        if error.args[0] != 1238:
            raise
        pytest.skip("this server has explicit_defaults_for_timestamp as a start option alone")
    assert_schema_is_right(empty, expected)


def test_it_loads_where_a_simple_import_cuts_at_every_semicolon(empty: Database, expected: Sequence[str]) -> None:
    assert SCHEMA.isascii(), "an import would ask for its encoding"
    empty.execute(*statements_of_a_simple_tool(SCHEMA))
    assert_schema_is_right(empty, expected)


def test_it_loads_as_one_text_of_many_statements(
    mysql_server: MySQLServer, empty: Database, expected: Sequence[str]
) -> None:
    flag = pymysql.constants.CLIENT.MULTI_STATEMENTS
    with mysql_server.connect(database=empty.name, client_flag=flag) as connection, connection.cursor() as cursor:
        cursor.execute(SCHEMA)
        while cursor.nextset():
            pass
    assert_schema_is_right(empty, expected)


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


# ---- other names


def test_a_file_with_another_name_replaced_by_hand_works_under_that_name(
    mysql_server: MySQLServer, empty: Database, deployment: Deployment
) -> None:
    empty.load(text=SCHEMA.replace("jobs_queue", "letters"))
    deployment.write_env(
        TASKSERVER_DSN=mysql_server.dsn(empty.name), TASKSERVER_TABLE="letters", TASKSERVER_MODE="move"
    )
    deployment.write_tasks("def send(): pass\n")
    added = deployment.client("add", "tasks.send")
    assert (added.returncode, added.stderr) == (0, "")
    assert deployment.worker().returncode == 0
    assert empty.execute("SELECT task, status FROM letters_done") == (("tasks.send", 2),)


@pytest.mark.parametrize("name", ["_", LONGEST_NAME, "Jobs_Queue_2", "select"])
def test_init_add_and_a_run_work_under_every_allowed_name(dsn: str, name: str) -> None:
    assert len(LONGEST_NAME) == 40
    with TaskServer(dsn, table=name, mode="move") as server:
        server.create_tables()
        server.create_tables()
        server.add_tasks([{"task": "os.getcwd"}] * 2)
        assert server.run(groups=[0, 3]).fatal == 2
        assert [count.rows for count in server.store.views.counts()] == [2]
        assert len(server.store.views.list([4], [0], 10)) == 2
        assert len(server.store.views.runs()) == 1


# ---- what columns do


def test_updated_at_alone_moves_when_a_row_changes(loaded: Database) -> None:
    loaded.execute(
        "INSERT INTO jobs_queue (task, due_at, started_at) VALUES ('tasks.a', NOW(6) + INTERVAL 1 HOUR, NOW(6))"
    )
    instants = "SELECT created_at, due_at, started_at, finished_at, updated_at FROM jobs_queue"
    (before,) = loaded.execute(instants)
    assert before[0] == before[4]
    (after,) = loaded.execute("UPDATE jobs_queue SET priority = 5", instants)
    assert after[:4] == before[:4]
    assert after[4] > before[4]


def test_rows_without_a_task_and_values_beyond_their_types_are_refused(loaded: Database) -> None:
    for refused in (
        "(group_id) VALUES (3)",
        "(task) VALUES (NULL)",
        "(task, group_id) VALUES ('tasks.a', -1)",
        "(task, priority) VALUES ('tasks.a', NULL)",
    ):
        with pytest.raises(pymysql.MySQLError):
            loaded.execute("SET SESSION sql_mode = 'STRICT_ALL_TABLES'", f"INSERT INTO jobs_queue {refused}")


def test_tasks_are_compared_byte_by_byte(dsn: str) -> None:
    names = ["tasks.a", "tasks.A", "tasks.ä", "tasks.á"]
    with TaskServer(dsn) as server:
        server.create_tables()
        server.add_tasks({"task": name} for name in names)
        for name in names:
            sql = "SELECT task FROM {table} WHERE task = ?"
            assert list(server.store.database.fetch(sql, (name,))) == [(name,)]


@pytest.mark.parametrize("text", ["Grüße 😀", "\\' \" ` % ? {table} ; --", "\x01\t\n", "\u202e\ufeff"])
def test_text_of_every_kind_comes_back_as_it_was_written(dsn: str, text: str) -> None:
    with TaskServer(dsn) as server:
        server.create_tables()
        task_id = server.add_task("tasks.a", {"text": text})
        server.store.database.change("INSERT INTO {table} (task, error_text) VALUES ('tasks.a', ?)", (text,))
        stored = server.store.views.show(task_id)
        assert stored is not None
        assert json.loads(stored.args or "") == {"text": text}
        assert server.store.views.list([], [], 1)[0].error_text == text


# ---- indexes, and SQLite beside MySQL

INDEXES = {
    ("id",): True,
    ("unique_key",): True,
    ("status", "group_id", "priority", "id"): False,
    ("status", "priority", "id"): False,
    ("status", "due_at"): False,
}


def test_the_queue_on_mysql_has_these_indexes_and_no_other(loaded: Database) -> None:
    found: dict[str, list[str]] = {}
    unique: dict[str, bool] = {}
    for row in loaded.execute("SHOW INDEX FROM jobs_queue"):
        found.setdefault(row[2], []).append(row[4])
        unique[row[2]] = row[1] == 0
    assert {tuple(names): unique[index] for index, names in found.items()} == INDEXES


@pytest.fixture
def sqlite_file(sqlite_dsn: str) -> Iterator[sqlite3.Connection]:
    with TaskServer(sqlite_dsn) as server:
        server.create_tables()
    with closing(sqlite3.connect(sqlite_dsn.removeprefix("sqlite:///"), isolation_level=None)) as connection:
        yield connection


def test_the_queue_on_sqlite_has_these_indexes_and_no_other(sqlite_file: sqlite3.Connection) -> None:
    found = {("id",): True}  # the rowid itself
    for row in sqlite_file.execute("PRAGMA index_list(jobs_queue)").fetchall():
        names = tuple(name for _, _, name in sqlite_file.execute(f"PRAGMA index_info({row[1]})"))
        found[names] = bool(row[2])
    assert found == INDEXES


def test_both_stores_have_the_same_columns_in_order_with_the_same_defaults_and_nulls(
    loaded: Database, sqlite_file: sqlite3.Connection
) -> None:
    for table in TABLES:
        expected = loaded.columns(table)
        here = sqlite_file.execute(f"PRAGMA table_info({table})").fetchall()
        assert [row[1] for row in here] == list(expected)
        for _, name, _, not_null, default, is_key in here if table in ("jobs_queue", "jobs_queue_done") else ():
            assert bool(not_null or is_key) != expected[name].nullable, name
            if expected[name].default == NOW:
                assert "'now'" in default
            else:
                assert plain(default) == expected[name].default, name


REFUSED: dict[str, tuple[object, ...]] = {
    "task": (None, "a" * 256),
    "group_id": (-1, 2**32, "three", 1.5),
    "priority": (2**31, -(2**31) - 1, None),
    "status": (-1, 256, "new"),
    "attempts": (-1,),
    "max_attempts": (-1,),
    "due_at": ("tomorrow", "2026-01-31", "2026-01-31T12:00:00", 1_790_000_000),
    "unique_key": ("ä" * 128,),
    "stage": (-1, 65_536, "first"),
    "awaited": (256, "yes", None),
}


@pytest.mark.parametrize("column", REFUSED)
def test_sqlite_refuses_what_the_types_of_mysql_refuse(sqlite_file: sqlite3.Connection, column: str) -> None:
    for value in REFUSED[column]:
        row = {"task": "tasks.a"} | {column: value}
        insert = f"INSERT INTO jobs_queue ({', '.join(row)}) VALUES ({', '.join('?' * len(row))})"
        with pytest.raises(sqlite3.IntegrityError):
            sqlite_file.execute(insert, tuple(row.values()))


def test_the_sqlite_schema_is_that_of_the_package(sqlite_file: sqlite3.Connection) -> None:
    text = Path(ROOT, "taskserver", "stores", "sqlite", "schema.sql").read_text(encoding="utf-8")
    assert sqlite_file.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    sqlite_file.executescript(text)
    assert sqlite_file.execute("SELECT version FROM jobs_queue_schema").fetchall() == [(SCHEMA_VERSION,)]
