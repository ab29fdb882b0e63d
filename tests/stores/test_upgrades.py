"""The tables of every store: missing, made again, of older and newer versions, and names that are somebody else's."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from taskserver import TaskServer
from taskserver.errors import DatabaseError, TablesMissing, TablesOutdated
from taskserver.stores import Store
from taskserver.stores.tables import SCHEMA_VERSION, schema_statements
from tests.stores.verbs import add, claim, claim_one, finish, ids, keyed, rerun, start
from tests.support.deployment import ROOT
from tests.support.rows import COLUMNS, Rows
from tests.support.servers import MySQLServer

QUEUE_TABLES = ("jobs_queue", "jobs_queue_done")
COLUMNS_SINCE = {3: ("version",), 4: ("stages", "stage", "awaited"), 5: ("result", "progress")}
TABLES_SINCE = {3: ("paused", "schedules", "stats"), 4: ("dependencies",), 6: ("processes",), 7: ("notes",)}


def to_version(rows: Rows, version: int) -> None:
    """The tables as an earlier taskserver made them."""
    for table in QUEUE_TABLES:
        for column in added_since(COLUMNS_SINCE, version):
            rows.execute(f"ALTER TABLE {table} DROP COLUMN {column}")
    for name in added_since(TABLES_SINCE, version):
        rows.execute(f"DROP TABLE jobs_queue_{name}")
    if version == 1:
        rows.execute("ALTER TABLE jobs_queue_workers DROP COLUMN previous_started_at")
    rows.execute(f"UPDATE jobs_queue_schema SET version = {version}")


def added_since(what: dict[int, tuple[str, ...]], version: int) -> list[str]:
    return [name for since, names in what.items() if since > version for name in names]


@pytest.mark.parametrize("was_cut_off", [False, True])
@pytest.mark.parametrize("version", [1, 2, 3, 4])
def test_tables_of_an_older_version_are_brought_up_to_date_with_what_they_hold(
    open_store: Callable[..., Store], rows: Rows, queue_dsn: str, version: int, was_cut_off: bool
) -> None:
    """An upgrade that was cut off had made all tables, and the first of the columns."""
    store = open_store("move")
    store.runs.begin("host", "3")
    new, done = store.producing.add(keyed("new", "[1]")), store.producing.add(keyed("done", "[2]", priority=-1))
    (task,) = claim(store, 1)
    assert start(store, task)
    assert finish(store, task)
    rows.set(f"updated_at = {rows.after(-500)}")
    missing = added_since(COLUMNS_SINCE, version)
    kept = ", ".join(name for name in COLUMNS.split(", ") if name not in missing)
    before = [rows.all(table, kept) for table in QUEUE_TABLES]
    to_version(rows, version)
    if was_cut_off:
        for statement in schema_statements(store.database.dialect):
            rows.execute(statement)
        kind = "BIGINT" if missing[0] == "version" else "TEXT"
        rows.execute(f"ALTER TABLE jobs_queue ADD COLUMN {missing[0]} {kind} NULL")
    for use in (store.tables.check, TaskServer(queue_dsn).run):
        with pytest.raises(TablesOutdated, match=rf"version {version}.*needs {SCHEMA_VERSION}.*client\.py init"):
            use()
    store.tables.create()
    store.tables.check()
    assert [rows.all(table, kept) for table in QUEUE_TABLES] == before
    assert rows.execute("SELECT MAX(version) FROM jobs_queue_schema") == [(SCHEMA_VERSION,)]
    store.runs.begin("host", "3")
    assert [run.every_seconds is not None for run in store.views.runs()] == [True]
    assert store.producing.add(rerun("[3]", unique_key="new", version=7)) == new
    assert store.producing.add(rerun("[4]", unique_key="done", version=7)) not in (new, done)
    assert [task.args for task in claim(store)] == ["[3]", "[4]"]


@pytest.mark.parametrize("version", [0, 1])
def test_an_upgrade_of_which_all_was_done_but_the_number_is_brought_to_its_end(
    store: Store, rows: Rows, version: int
) -> None:
    rows.execute(f"UPDATE jobs_queue_schema SET version = {version}")
    with pytest.raises(TablesOutdated, match=rf"version {version}.*client\.py init"):
        store.tables.check()
    store.tables.create()
    store.tables.check()


@pytest.mark.parametrize("missing", ["workers", "schema"])
def test_an_upgrade_makes_the_tables_that_are_missing_too(store: Store, rows: Rows, missing: str) -> None:
    """As that of the version, which was not restored with the others."""
    to_version(rows, 1)
    rows.execute(f"DROP TABLE jobs_queue_{missing}")
    store.tables.create()
    store.tables.check()
    store.runs.begin("host", "3")


def test_the_schema_file_loaded_over_older_tables_does_not_call_them_new(store: Store, rows: Rows) -> None:
    to_version(rows, 1)
    for statement in schema_statements(store.database.dialect):
        rows.execute(statement)
    with pytest.raises(TablesOutdated, match="version 1"):
        store.tables.check()
    store.tables.create()


def test_the_upgrade_by_hand_that_the_documentation_gives_does_what_init_does(
    mysql_dsn: str, mysql_server: MySQLServer
) -> None:
    text = (ROOT / "docs" / "upgrading.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```sql\n(.*?)```", text, re.DOTALL)
    steps = [block for block in blocks if block.startswith(("ALTER", "INSERT"))]
    with TaskServer(mysql_dsn) as server:
        rows = Rows(mysql_dsn)
        server.create_tables()
        definitions = [f"SHOW CREATE TABLE {table}" for table in (*QUEUE_TABLES, "jobs_queue_workers")]
        before = [rows.execute(definition) for definition in definitions]
        to_version(rows, 1)
        for statement in schema_statements(server.store.database.dialect):  # "load it first"
            rows.execute(statement)
        with pytest.raises(TablesOutdated, match="have version 1"):
            server.store.tables.check()
        for statement in filter(str.strip, "".join(steps).split(";")):
            rows.execute(statement)
        server.store.tables.check()
        assert [rows.execute(definition) for definition in definitions] == before
        server.create_tables()
        assert server.run().taken == 0
        rows.close()


def test_tables_whose_version_was_lost_are_refused_until_init_mends_them(store: Store, rows: Rows) -> None:
    rows.execute("DELETE FROM jobs_queue_schema")
    with pytest.raises(TablesOutdated, match=r"client\.py init"):
        store.tables.check()
    store.tables.create()
    store.tables.check()


def test_tables_of_a_newer_version_are_refused_and_left_alone(store: Store, rows: Rows) -> None:
    rows.execute("INSERT INTO jobs_queue_schema (version) VALUES (99)")
    for use in (store.tables.check, store.tables.create):
        with pytest.raises(TablesOutdated, match=r"version 99.*newer taskserver"):
            use()


def test_the_tables_can_be_created_again_and_again(store: Store, rows: Rows) -> None:
    task_id = add(store)
    rows.execute("DROP TABLE jobs_queue_workers")
    store.tables.create()
    store.tables.create()
    assert [row["id"] for row in rows.all()] == [task_id]
    assert len(rows.execute("SELECT version FROM jobs_queue_schema")) == 1
    assert store.views.runs() == []


@pytest.mark.parametrize("has_others", [False, True])
def test_the_tables_that_are_not_there_are_named_with_the_way_out(dsn: str, has_others: bool) -> None:
    if has_others:
        other = Rows(dsn)
        other.execute("CREATE TABLE something (id INTEGER PRIMARY KEY)")
        other.close()
    with TaskServer(dsn) as server:
        for use in (server.store.tables.check, server.run, lambda: server.add_task("tasks.send")):
            with pytest.raises(TablesMissing, match=r"run client\.py init"):
                use()


@pytest.mark.parametrize("name", ["jobs_queue", "jobs_queue_schema"])
def test_a_foreign_table_of_our_name_is_a_clear_error(dsn: str, name: str) -> None:
    foreign = Rows(dsn)
    foreign.execute(f"CREATE TABLE {name} (id INTEGER PRIMARY KEY, payload VARCHAR(20))")
    foreign.execute(f"INSERT INTO {name} VALUES (1, 'precious')")
    with TaskServer(dsn) as server, pytest.raises(DatabaseError, match=r"not made by taskserver.*TASKSERVER_TABLE"):
        server.create_tables()
    assert foreign.execute(f"SELECT * FROM {name}") == [(1, "precious")]
    foreign.close()


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
        assert [count.rows for count in one.store.views.counts()] == [1]
