"""The tables: schema.sql by hand and by `client.py init`, in every mode of a server, and what the columns promise."""

from __future__ import annotations

import json
import re
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pymysql
import pytest

from taskserver import DatabaseError, TablesOutdated, TaskServer
from taskserver.model.task import Due
from taskserver.stores.database.tables import SCHEMA_VERSION, schema_statements
from tests.support.deployment import ROOT, Deployment
from tests.support.servers import MySQLServer

SCHEMA = (ROOT / "schema.sql").read_text(encoding="utf-8")
OTHERS = ("dependencies", "done", "paused", "schedules", "schema", "stats", "workers")
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
    """A column as information_schema has it; a default as an expression without its server's way of writing it."""

    type: str
    nullable: bool
    default: str | None
    extra: str


@pytest.fixture
def empty(mysql_server: MySQLServer) -> Iterator[str]:
    """A database with MySQL's old default character set."""
    with mysql_server.database() as name:
        mysql_server.execute(f"ALTER DATABASE `{name}` CHARACTER SET latin1 COLLATE latin1_swedish_ci")
        yield name


def load(mysql_server: MySQLServer, database: str, *before: str, text: str = SCHEMA) -> None:
    mysql_server.execute(*before, *statements(text), database=database)


def read(mysql_server: MySQLServer, database: str, sql: str) -> tuple[tuple[Any, ...], ...]:
    return mysql_server.execute(sql, database=database)


def columns(mysql_server: MySQLServer, database: str, table: str = "jobs_queue") -> dict[str, Column]:
    found = read(
        mysql_server,
        database,
        "SELECT column_name, column_type, is_nullable, column_default, extra FROM information_schema.columns"
        f" WHERE table_schema = '{database}' AND table_name = '{table}' ORDER BY ordinal_position",
    )
    return {
        name: Column(without_width(kind), nullable == "YES", plain(default), plain(extra) or "")
        for name, kind, nullable, default, extra in found
    }


def without_width(kind: str) -> str:
    """`bigint(20) unsigned` is `bigint unsigned` on newer servers."""
    return re.sub(r"int\(\d+\)", "int", kind)


def plain(text: str | None) -> str | None:
    """MariaDB writes NULL for no default, MySQL 9 adds DEFAULT_GENERATED."""
    if text is None or text == "NULL":
        return None
    return text.lower().replace("default_generated", "").strip().replace("()", "")


NOW = "current_timestamp(6)"
INSTANT = Column("timestamp(6)", True, None, "")
QUEUE = {
    "id": Column("bigint unsigned", False, None, "auto_increment"),
    "task": Column("varchar(255)", False, None, ""),
    "args": Column("mediumtext", True, None, ""),
    "group_id": Column("int unsigned", False, "0", ""),
    "priority": Column("int", False, "0", ""),
    "status": Column("tinyint unsigned", False, "0", ""),
    "attempts": Column("int unsigned", False, "0", ""),
    "max_attempts": Column("int unsigned", True, None, ""),
    "due_at": INSTANT,
    "claim": Column("bigint unsigned", True, None, ""),
    "unique_key": Column("varbinary(255)", True, None, ""),
    "error_text": Column("varchar(1000)", True, None, ""),
    "created_at": Column("timestamp(6)", False, NOW, ""),
    "started_at": INSTANT,
    "finished_at": INSTANT,
    "updated_at": Column("timestamp(6)", False, NOW, f"on update {NOW}"),
    "version": Column("bigint unsigned", True, None, ""),
    "stages": Column("text", True, None, ""),
    "stage": Column("smallint unsigned", False, "0", ""),
    "awaited": Column("tinyint unsigned", False, "0", ""),
    "result": Column("mediumtext", True, None, ""),
    "progress": Column("text", True, None, ""),
}


def assert_schema_is_right(mysql_server: MySQLServer, database: str) -> None:
    tables = read(mysql_server, database, "SHOW TABLES")
    assert tuple(sorted(name for (name,) in tables)) == TABLES
    assert columns(mysql_server, database) == QUEUE
    assert_archive_is_right(mysql_server, database)
    assert read(mysql_server, database, "SELECT version FROM jobs_queue_schema") == ((SCHEMA_VERSION,),)
    engines = read(
        mysql_server, database, f"SELECT DISTINCT engine FROM information_schema.tables WHERE table_schema='{database}'"
    )
    assert engines == (("InnoDB",),)


def assert_archive_is_right(mysql_server: MySQLServer, database: str) -> None:
    archive = columns(mysql_server, database, "jobs_queue_done")
    assert archive.pop("done_id") == QUEUE["id"]
    assert archive.pop("id") == Column("bigint unsigned", False, None, "")
    assert archive.pop("status").default == "2"
    assert archive.pop("updated_at") == Column("timestamp(6)", False, NOW, "")
    assert archive == {name: QUEUE[name] for name in QUEUE if name not in ("id", "status", "updated_at")}


# ---- loading it


def test_the_package_has_the_same_schema_as_the_file_for_people() -> None:
    assert (ROOT / "taskserver" / "stores" / "mysql" / "schema.sql").read_text(encoding="utf-8") == SCHEMA


@pytest.mark.parametrize("sql_mode", SQL_MODES.values(), ids=SQL_MODES)
def test_it_loads_by_the_statement_and_twice_in_every_sql_mode(
    mysql_server: MySQLServer, empty: str, sql_mode: str | None
) -> None:
    before = [] if sql_mode is None else [f"SET SESSION sql_mode = '{sql_mode}'"]
    for _ in range(2):
        load(mysql_server, empty, *before)
        assert_schema_is_right(mysql_server, empty)
        mysql_server.execute("INSERT INTO jobs_queue (task) VALUES ('tasks.a')", database=empty)
    assert read(mysql_server, empty, "SELECT COUNT(*) FROM jobs_queue") == ((2,),)


@pytest.mark.parametrize("explicit", ["ON", "OFF"])
@pytest.mark.parametrize("sql_mode", ["", "TRADITIONAL"])
def test_it_means_the_same_whatever_explicit_defaults_for_timestamp_says(
    mysql_server: MySQLServer, empty: str, explicit: str, sql_mode: str
) -> None:
    try:
        load(
            mysql_server,
            empty,
            f"SET SESSION explicit_defaults_for_timestamp = {explicit}",
            f"SET SESSION sql_mode = '{sql_mode}'",
        )
    except pymysql.OperationalError as error:
        if error.args[0] != 1238:
            raise
        pytest.skip("this server has explicit_defaults_for_timestamp as a start option alone")
    assert_schema_is_right(mysql_server, empty)


def test_it_loads_where_a_simple_import_cuts_at_every_semicolon(mysql_server: MySQLServer, empty: str) -> None:
    mysql_server.execute(*statements_of_a_simple_tool(SCHEMA), database=empty)
    assert_schema_is_right(mysql_server, empty)


def test_it_loads_as_one_text_of_many_statements(mysql_server: MySQLServer, empty: str) -> None:
    flag = pymysql.constants.CLIENT.MULTI_STATEMENTS
    with mysql_server.connect(database=empty, client_flag=flag) as connection, connection.cursor() as cursor:
        cursor.execute(SCHEMA)
        while cursor.nextset():
            pass
    assert_schema_is_right(mysql_server, empty)


def test_it_is_plain_ascii_so_that_no_import_asks_for_its_encoding() -> None:
    assert SCHEMA.isascii()


def test_init_makes_the_same_tables_as_the_file(mysql_server: MySQLServer, mysql_dsn: str, empty: str) -> None:
    load(mysql_server, empty)
    made = mysql_dsn.rpartition("/")[2]
    with TaskServer(mysql_dsn) as server:
        server.create_tables()
    for table in TABLES:
        assert definition(mysql_server, made, table) == definition(mysql_server, empty, table)


def definition(mysql_server: MySQLServer, database: str, table: str) -> str:
    text = str(read(mysql_server, database, f"SHOW CREATE TABLE `{table}`")[0][1])
    return re.sub(r" AUTO_INCREMENT=\d+", "", text)


def test_init_repairs_tables_of_which_one_is_missing_and_keeps_the_rows(dsn: str) -> None:
    with TaskServer(dsn) as server:
        server.create_tables()
        task_id = server.add_task("tasks.a")
        server.store.database.change("DROP TABLE {workers}")
        server.create_tables()
        server.create_tables()
        assert server.store.views.show(task_id) is not None
        assert server.store.views.runs() == []


def test_two_that_make_the_tables_at_once_both_succeed(dsn: str) -> None:
    together = threading.Barrier(4)
    errors: list[BaseException] = []

    def make() -> None:
        with TaskServer(dsn) as server:
            together.wait(30)
            try:
                server.create_tables()
            except BaseException as error:
                errors.append(error)

    threads = [threading.Thread(target=make) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert errors == []
    with TaskServer(dsn) as server:
        assert server.add_task("tasks.a") == 1


# ---- other names


def test_a_file_with_another_name_replaced_by_hand_works_under_that_name(
    mysql_server: MySQLServer, empty: str, deployment: Deployment
) -> None:
    load(mysql_server, empty, text=SCHEMA.replace("jobs_queue", "letters"))
    deployment.write_env(TASKSERVER_DSN=mysql_server.dsn(empty), TASKSERVER_TABLE="letters", TASKSERVER_MODE="move")
    deployment.write_tasks("def send(): pass\n")
    added = deployment.client("add", "tasks.send")
    assert (added.returncode, added.stderr) == (0, "")
    assert deployment.worker().returncode == 0
    assert read(mysql_server, empty, "SELECT task, status FROM letters_done") == (("tasks.send", 2),)


@pytest.mark.parametrize("name", ["x", "_", LONGEST_NAME, "Jobs_Queue_2", "order", "group", "select", "_utf8", "task"])
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


def test_init_of_the_command_line_takes_a_name_of_40_characters(dsn: str, deployment: Deployment) -> None:
    deployment.write_env(TASKSERVER_DSN=dsn, TASKSERVER_TABLE=LONGEST_NAME)
    deployment.write_tasks("def send(): pass\n")
    for _ in range(2):
        ended = deployment.client("init")
        assert (ended.returncode, ended.stderr) == (0, "")
    assert deployment.client("add", "tasks.send").stdout == "1\n"
    assert deployment.worker().returncode == 0
    assert "empty" in deployment.client("status").stdout


def test_two_queues_share_a_database(dsn: str) -> None:
    with TaskServer(dsn, table="letters") as letters, TaskServer(dsn, table="letters_2") as others:
        letters.create_tables()
        others.create_tables()
        letters.add_task("os.getcwd")
        assert others.run().taken == 0
        assert letters.run().taken == 1


# ---- what columns do


def test_updated_at_alone_moves_when_a_row_changes(mysql_server: MySQLServer, empty: str) -> None:
    load(mysql_server, empty)
    mysql_server.execute(
        "INSERT INTO jobs_queue (task, due_at, started_at) VALUES ('tasks.a', NOW(6) + INTERVAL 1 HOUR, NOW(6))",
        database=empty,
    )
    instants = "SELECT created_at, due_at, started_at, finished_at, updated_at FROM jobs_queue"
    (before,) = read(mysql_server, empty, instants)
    assert before[0] == before[4]
    mysql_server.execute("UPDATE jobs_queue SET priority = 5", database=empty)
    (after,) = read(mysql_server, empty, instants)
    assert after[:4] == before[:4]
    assert after[4] > before[4]


def test_a_row_s_status_beyond_its_type_and_a_row_without_a_task_are_refused(
    mysql_server: MySQLServer, empty: str
) -> None:
    load(mysql_server, empty)
    for refused in (
        "INSERT INTO jobs_queue (group_id) VALUES (3)",
        "INSERT INTO jobs_queue (task) VALUES (NULL)",
        "INSERT INTO jobs_queue (task, group_id) VALUES ('tasks.a', -1)",
        "INSERT INTO jobs_queue (task, priority) VALUES ('tasks.a', NULL)",
    ):
        with pytest.raises(pymysql.MySQLError):
            mysql_server.execute("SET SESSION sql_mode = 'STRICT_ALL_TABLES'", refused, database=empty)


@pytest.mark.parametrize("key_pairs", [("a", "A"), ("a", "a "), ("a", "ä"), ("ä", "Ä"), ("ss", "ß"), ("é", "e\u0301")])
def test_unique_keys_are_compared_byte_by_byte(dsn: str, key_pairs: tuple[str, str]) -> None:
    with TaskServer(dsn) as server:
        server.create_tables()
        for key in key_pairs:
            insert(server, "unique_key", key)
        for key in key_pairs:
            with pytest.raises(DatabaseError, match=r"(?i)unique|1062"):
                insert(server, "unique_key", key)
        assert [task.unique_key for task in server.store.views.list([], [], 10)] == [*reversed(key_pairs)]


def test_many_rows_have_no_unique_key_and_a_key_has_255_bytes_at_most(dsn: str) -> None:
    with TaskServer(dsn) as server:
        server.create_tables()
        insert(server, "unique_key", None)
        insert(server, "unique_key", None)
        insert(server, "unique_key", "a" * 255)
        with pytest.raises(DatabaseError):
            insert(server, "unique_key", "ä" * 128)
        assert len(server.store.views.list([], [], 10)) == 3


def insert(server: TaskServer, column: str, value: str | None) -> None:
    sql = f"INSERT INTO {{table}} (task, {column}) VALUES ('tasks.a', ?)"
    server.store.database.change(sql, (value,))


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
        insert(server, "error_text", text)
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


def test_the_queue_on_mysql_has_these_indexes_and_no_other(mysql_server: MySQLServer, empty: str) -> None:
    load(mysql_server, empty)
    found: dict[str, list[str]] = {}
    unique: dict[str, bool] = {}
    for row in read(mysql_server, empty, "SHOW INDEX FROM jobs_queue"):
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


def test_both_stores_have_the_same_columns_in_the_same_order(
    mysql_server: MySQLServer, empty: str, sqlite_file: sqlite3.Connection
) -> None:
    load(mysql_server, empty)
    for table in TABLES:
        names = list(columns(mysql_server, empty, table))
        assert [row[1] for row in sqlite_file.execute(f"PRAGMA table_info({table})")] == names
    assert [row[0] for row in sqlite_file.execute("SELECT name FROM sqlite_master WHERE type = 'table'")] != []


def test_both_stores_have_the_same_defaults_and_nulls(
    mysql_server: MySQLServer, empty: str, sqlite_file: sqlite3.Connection
) -> None:
    load(mysql_server, empty)
    for table in ("jobs_queue", "jobs_queue_done"):
        expected = columns(mysql_server, empty, table)
        for _, name, _, not_null, default, is_key in sqlite_file.execute(f"PRAGMA table_info({table})"):
            assert bool(not_null or is_key) != expected[name].nullable, name
            if expected[name].default == NOW:
                assert "'now'" in default
            else:
                assert plain(default) == expected[name].default, name


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("task", None),
        ("task", "a" * 256),
        ("group_id", -1),
        ("group_id", 2**32),
        ("group_id", "three"),
        ("group_id", 1.5),
        ("priority", 2**31),
        ("priority", -(2**31) - 1),
        ("priority", None),
        ("status", -1),
        ("status", 256),
        ("status", "new"),
        ("attempts", -1),
        ("max_attempts", -1),
        ("due_at", "tomorrow"),
        ("due_at", "2026-01-31"),
        ("due_at", "2026-01-31T12:00:00"),
        ("due_at", 1_790_000_000),
        ("unique_key", "ä" * 128),
        ("stage", -1),
        ("stage", 65_536),
        ("stage", "first"),
        ("awaited", 256),
        ("awaited", "yes"),
        ("awaited", None),
    ],
)
def test_sqlite_refuses_what_the_types_of_mysql_refuse(
    sqlite_file: sqlite3.Connection, column: str, value: object
) -> None:
    row = {"task": "tasks.a"} | {column: value}
    marks = ", ".join("?" * len(row))
    with pytest.raises(sqlite3.IntegrityError):
        sqlite_file.execute(f"INSERT INTO jobs_queue ({', '.join(row)}) VALUES ({marks})", tuple(row.values()))


def test_a_producer_s_minimal_insert_makes_a_whole_task_on_sqlite(sqlite_file: sqlite3.Connection) -> None:
    sqlite_file.execute(
        "INSERT INTO jobs_queue (task, args, group_id, priority)"
        " VALUES ('tasks.send_letter', '{\"to\": \"a@example.org\"}', 3, 10)"
    )
    names = [name for name in QUEUE if name not in ("created_at", "updated_at")]
    row = sqlite_file.execute(f"SELECT {', '.join(names)} FROM jobs_queue").fetchone()
    assert dict(zip(names, row, strict=True)) == dict.fromkeys(names) | {
        "id": 1, "task": "tasks.send_letter", "args": '{"to": "a@example.org"}', "group_id": 3, "priority": 10,
        "status": 0, "attempts": 0, "stage": 0, "awaited": 0,
    }  # fmt: skip
    created_at, updated_at = sqlite_file.execute("SELECT created_at, updated_at FROM jobs_queue").fetchone()
    assert created_at == updated_at
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}000", created_at)


def test_the_sqlite_schema_is_that_of_the_package(sqlite_file: sqlite3.Connection) -> None:
    text = Path(ROOT, "taskserver", "stores", "sqlite", "schema.sql").read_text(encoding="utf-8")
    assert sqlite_file.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    sqlite_file.executescript(text)
    assert sqlite_file.execute("SELECT version FROM jobs_queue_schema").fetchall() == [(SCHEMA_VERSION,)]


def test_the_upgrade_by_hand_that_the_documentation_gives_does_what_init_does(mysql_dsn: str) -> None:
    text = Path(ROOT, "docs", "upgrading.md").read_text(encoding="utf-8")
    steps = [block for block in re.findall(r"```sql\n(.*?)```", text, re.DOTALL) if block.startswith("ALTER")]
    changed = ("jobs_queue", "jobs_queue_done", "jobs_queue_workers")
    with TaskServer(mysql_dsn) as server:
        look = server.store.database.fetch
        server.create_tables()
        before = [look(f"SHOW CREATE TABLE {table}") for table in changed]
        look("ALTER TABLE jobs_queue_workers DROP COLUMN previous_started_at")
        for table in ("jobs_queue", "jobs_queue_done"):
            for column in ("version", "stages", "stage", "awaited", "result", "progress"):
                look(f"ALTER TABLE {table} DROP COLUMN {column}")
        for table in ("paused", "schedules", "stats", "dependencies"):
            look(f"DROP TABLE jobs_queue_{table}")
        look("UPDATE jobs_queue_schema SET version = 1")
        for statement in schema_statements(server.store.database.dialect):  # "load it first"
            look(statement)
        with pytest.raises(TablesOutdated, match="have version 1"):
            server.store.tables.check()
        for statement in "".join(steps).split(";"):
            if statement.strip():
                look(statement)
        server.store.tables.check()
        assert [look(f"SHOW CREATE TABLE {table}") for table in changed] == before
        server.create_tables()
        assert server.store.due.look() == Due([], [], [], [], [])
