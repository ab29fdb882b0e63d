"""The tables of every store: missing, made again, of older and newer versions, and names that are somebody else's."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from taskserver import TaskServer
from taskserver.errors import DatabaseError, TablesMissing, TablesOutdated
from taskserver.stores import Store
from taskserver.stores.table_faults import table_faults
from taskserver.stores.words import HELPERS, SCHEMA_VERSION
from tests.contract.verbs import add, claim, claim_one, finish, ids
from tests.support.databases import on
from tests.support.queues import row_counts
from tests.support.rows import Rows

TABLES = ("jobs_queue", *(f"jobs_queue_{name}" for name in HELPERS))
FIXTURES = Path(__file__).with_name("fixtures")


@pytest.fixture
def old(dsn: str) -> Iterator[Rows]:
    """Tables of version 7 with rows, whose names are quoted as `client.py init` made them."""
    with closing(Rows(dsn)) as rows:
        for name in (f"version_7.{rows.kind}.sql", "rows_of_7.sql"):
            text = (FIXTURES / name).read_text(encoding="utf-8").partition("\n\n")[2].strip()
            text = re.sub(r"jobs_queue\w*", r"`\g<0>`" if rows.is_mysql else r'"\g<0>"', text)
            for statement in re.split(r";\n+(?=\S)", text):
                rows.execute(statement)
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
    for statement in (
        "CREATE TABLE log (id INTEGER)",
        "CREATE INDEX by_task ON jobs_queue (task)",
        "CREATE TRIGGER noted AFTER INSERT ON jobs_queue BEGIN INSERT INTO log VALUES (NEW.id); END",
        "CREATE VIEW waiting AS SELECT id FROM jobs_queue WHERE status = 5",
        "ALTER TABLE jobs_queue_notes ADD COLUMN ours TEXT",
        "INSERT INTO jobs_queue_notes (name, value, ours) VALUES ('a', 'b', 'kept')",
    ):
        old.execute(statement)
    with TaskServer(dsn) as server:
        server.create_tables()
        server.create_tables()
        server.add_task("tasks.a", delay=60)
    assert old.execute("SELECT COUNT(*) FROM log, waiting") == [(2,)]
    assert old.execute("SELECT ours FROM jobs_queue_notes WHERE name = 'a'") == [("kept",)]
    assert old.execute("SELECT tbl_name FROM sqlite_master WHERE name = 'by_task'") == [("jobs_queue",)]


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


def test_two_queues_live_in_one_database(dsn: str) -> None:
    with TaskServer(dsn, table="one") as one, TaskServer(dsn, table="Two_2", mode="move") as two:
        for server in (one, two):
            server.create_tables()
        ours, theirs = one.add_task("tasks.a"), two.add_task("tasks.b")
        assert ids(claim(one.store)) == [ours]
        task = claim_one(two.store)
        assert (task.id, task.task) == (theirs, "tasks.b")
        assert finish(two.store, task)
        assert two.store.views.show(theirs) is not None
        assert [count.rows for count in row_counts(one.store)] == [1]
