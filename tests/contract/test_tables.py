"""The tables of every store: by init and by schema.sql, missing, of other versions; what columns keep and refuse."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import closing

import pytest

from taskserver import TaskServer
from taskserver.errors import DatabaseError, Refused, TablesMissing, TablesOutdated
from taskserver.stores import Store
from taskserver.stores.table_faults import table_faults
from taskserver.stores.words import HELPERS, SCHEMA_VERSION
from tests.contract.verbs import add, claim, finish
from tests.support.databases import on
from tests.support.deployment import ROOT
from tests.support.processes import WAIT_SECONDS, together
from tests.support.queues import row_counts
from tests.support.rows import Rows, run_fixture
from tests.support.servers import MySQLServer

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
def test_it_loads_in_every_session_twice_and_under_another_name(
    mysql_server: MySQLServer, kept_mysql_dsn: str, empty: str, sql_mode: str
) -> None:
    assert SCHEMA.isascii(), "an import would ask for its encoding"
    for _ in range(2):
        load(mysql_server, empty, f"SET sql_mode = '{sql_mode}'")
        # As `client.py init` makes the tables.
        assert definitions(mysql_server, empty) == definitions(mysql_server, kept_mysql_dsn.rpartition("/")[2])
        mysql_server.execute("INSERT INTO jobs_queue (task) VALUES ('tasks.a')", database=empty)
    assert mysql_server.execute("SELECT COUNT(*) FROM jobs_queue", database=empty) == ((2,),)
    load(mysql_server, empty, name="letters")
    with TaskServer(mysql_server.dsn(empty), table="letters", mode="move") as server:
        server.add_task("os.getcwd")
        server.store.tables.check()
        assert server.run().fatal == 1


@pytest.mark.parametrize("name", ["jobs_queue", "second", "third"])  # each time is another race
def test_some_that_make_the_tables_at_once_all_succeed(dsn: str, name: str) -> None:
    line = threading.Barrier(4, timeout=WAIT_SECONDS)

    def make() -> None:
        with TaskServer(dsn, table=name) as server:
            line.wait()
            server.create_tables()
            server.store.tables.check()

    with together(*[make] * 4):
        pass


@pytest.mark.parametrize("name", [LONGEST_NAME, "Jobs_Queue_2", "select"])
def test_queues_of_every_allowed_name_live_in_one_database(dsn: str, name: str) -> None:
    with TaskServer(dsn, table=name, mode="move") as server, TaskServer(dsn) as other:
        for each in (server, other, server):
            each.create_tables()
        other.add_task("os.getcwd")
        server.add_tasks([{"task": "os.getcwd"}] * 2)
        assert server.run(groups=[0, 3]).fatal == 2
        assert [count.rows for each in (server, other) for count in row_counts(each.store)] == [2, 1]


def test_only_updated_at_moves_when_a_row_changes(mysql_store: Store, mysql_rows: Rows) -> None:
    add(mysql_store)
    mysql_rows.set("due_at = NOW(6) + INTERVAL 1 HOUR, started_at = NOW(6)")
    (before,) = mysql_rows.all()
    mysql_rows.set("priority = 5")
    (after,) = mysql_rows.all()
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


@pytest.fixture
def old(dsn: str) -> Iterator[Rows]:
    """Tables of version 7 with rows, whose names are quoted as `client.py init` made them."""
    with closing(Rows(dsn)) as rows:
        for name in (f"version_7.{rows.kind}.sql", "rows_of_7.sql"):
            run_fixture(rows, name)
        if rows.is_postgresql:
            rows.execute("SELECT setval('jobs_queue_id_seq', 50)")
        yield rows


def everything(rows: Rows) -> dict[str, list[str]]:
    """All rows, without the number of the last group."""
    found = {table: rows.execute(f"SELECT * FROM {table}") for table in TABLES if table != "jobs_queue_schema"}
    return {
        table: sorted(re.sub("4294967295|4294967294", "last", repr(row)) for row in found[table]) for table in found
    }


def test_an_upgrade_keeps_every_row(old: Rows, dsn: str) -> None:
    before = everything(old)
    (cancelled,) = [row for row in before["jobs_queue"] if "'cancelled'" in row]
    with TaskServer(dsn, mode="mark") as server:
        for use in (server.store.tables.check, server.run):
            with pytest.raises(TablesOutdated, match=rf"version 7.*needs {SCHEMA_VERSION}.*client\.py init"):
                use()
        for _ in range(2):
            server.create_tables()
            expected = [row for row in before["jobs_queue"] if row != cancelled]
            expected.append(cancelled.replace("0, 0, 4, 1", "0, 0, 7, 1"))
            assert everything(old) == before | {"jobs_queue": sorted(expected)}
        assert old.execute("SELECT group_id FROM jobs_queue WHERE id = 7") == [(4294967294,)]
        assert server.add_task("os.getcwd") == 51
        claimed = claim(server.store)
        assert [(task.id, task.args) for task in claimed] == [(1, "[1]"), (51, None)]
        assert finish(server.store, claimed[0])
        assert old.statuses() == [2, 1, 2, 3, 4, 7, 5, 1]
        assert table_faults(server.store.database) == []


# ---- SQLite, whose tables are made again


@on("sqlite")
def test_what_a_site_added_to_its_sqlite_tables_outlives_an_upgrade(old: Rows, dsn: str) -> None:
    old.execute("CREATE TABLE log (id INTEGER)")
    old.execute("CREATE TRIGGER noted AFTER INSERT ON jobs_queue BEGIN INSERT INTO log VALUES (NEW.id); END")
    old.execute("ALTER TABLE jobs_queue_notes ADD COLUMN ours TEXT")
    old.execute("UPDATE jobs_queue_notes SET ours = 'kept'")
    with TaskServer(dsn) as server:
        server.create_tables()
        task_id = server.add_task("tasks.a")
    assert old.execute("SELECT id, ours FROM log, jobs_queue_notes") == [(task_id, "kept")]


@on("sqlite")
def test_an_upgrade_that_cannot_end_changes_nothing(old: Rows, dsn: str) -> None:
    old.execute("PRAGMA ignore_check_constraints = ON")
    old.set("attempts = -1 WHERE id = 1")
    tables = "SELECT name, sql FROM sqlite_master ORDER BY name"
    before = (old.execute(tables), everything(old))
    with TaskServer(dsn) as server, pytest.raises(DatabaseError, match="attempts"):
        server.create_tables()
    assert (old.execute(tables), everything(old)) == before


# ---- other versions, and none


def test_tables_of_an_unknown_version_are_refused_with_the_way_out(store: Store, rows: Rows) -> None:
    for version, verb, words in (
        (3, store.tables.create, r"version 3.*client\.py init of version 0\.1\.0 first"),
        (99, store.tables.create, r"version 99.*newer taskserver"),
        (99, store.tables.check, r"version 99.*newer taskserver"),
    ):
        rows.execute(f"UPDATE jobs_queue_schema SET version = {version}")
        with pytest.raises(TablesOutdated, match=words):
            verb()


def test_the_tables_can_be_created_again_and_again(store: Store, rows: Rows) -> None:
    """As after a partial restore: a table and the version were lost."""
    task_id = add(store)
    rows.execute("DROP TABLE jobs_queue_workers")
    rows.execute("DELETE FROM jobs_queue_schema")
    with pytest.raises(TablesOutdated, match=r"client\.py init"):
        store.tables.check()
    store.tables.create()
    store.tables.create()
    assert [row["id"] for row in rows.all()] == [task_id]
    store.tables.check()
    assert store.views.runs() == []


def test_the_tables_that_are_missing_are_named_with_the_way_out(dsn: str) -> None:
    with TaskServer(dsn) as server:
        for use in (server.store.tables.check, server.run, lambda: server.add_task("tasks.send")):
            with pytest.raises(TablesMissing, match=r"run client\.py init"):
                use()


def test_a_table_of_another_program_with_our_name_is_a_clear_error(dsn: str) -> None:
    with closing(Rows(dsn)) as other, TaskServer(dsn) as server:
        other.execute("CREATE TABLE jobs_queue (id INTEGER PRIMARY KEY, payload VARCHAR(20))")
        other.execute("INSERT INTO jobs_queue VALUES (1, 'precious')")
        with pytest.raises(DatabaseError, match=r"not made by taskserver.*TASKSERVER_TABLE"):
            server.create_tables()
        assert other.execute("SELECT * FROM jobs_queue") == [(1, "precious")]
