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
from taskserver.stores.words import HELPERS, SCHEMA_VERSION
from tests.contract.verbs import add, claim, claim_one, finish, ids
from tests.support.databases import on
from tests.support.queues import row_counts
from tests.support.rows import Rows

TABLES = ("jobs_queue", *(f"jobs_queue_{name}" for name in HELPERS))
FIXTURES = Path(__file__).with_name("fixtures")


def load(rows: Rows) -> None:
    """Make the tables of version 7, with quoted names as `client.py init` made them."""
    text = (FIXTURES / f"version_7.{rows.kind}.sql").read_text(encoding="utf-8").partition("\n\n")[2]
    named = re.sub(r"jobs_queue\w*", r"`\g<0>`" if rows.is_mysql else r'"\g<0>"', text.strip())
    for statement in re.split(r";\n+(?=\S)", named):
        rows.execute(statement)


ROWS_OF_7 = (
    "(1, 'tasks.new', '[1]', 3, -5, 0, 0, NULL, NULL, NULL)",
    "(2, 'tasks.claimed', NULL, 0, 0, 1, 0, 77, NULL, NULL)",
    "(3, 'tasks.done', NULL, 0, 0, 2, 1, NULL, NULL, NULL)",
    "(4, 'tasks.error', NULL, 0, 0, 3, 2, NULL, 'E: x', 'key')",
    "(5, 'tasks.fatal', NULL, 0, 0, 4, 9, NULL, 'E: cancelled', NULL)",
    "(6, 'tasks.cancelled', NULL, 0, 0, 4, 1, NULL, 'cancelled', NULL)",
    "(7, 'tasks.waiting', NULL, 4294967295, 0, 5, 0, NULL, NULL, NULL)",
)
COLUMNS_OF_7 = "id, task, args, group_id, priority, status, attempts, claim, error_text, unique_key"


@pytest.fixture
def old(dsn: str) -> Iterator[Rows]:
    """Tables of version 7 with a row of every status; the row of the greatest id is gone."""
    rows = Rows(dsn)
    load(rows)
    rows.execute(f"INSERT INTO jobs_queue ({COLUMNS_OF_7}) VALUES {', '.join(ROWS_OF_7)}")
    rows.set(f"due_at = {rows.after(3600)} WHERE status IN (1, 3, 5)")
    rows.set(f"updated_at = {rows.after(-500)}")
    if rows.is_postgresql:
        rows.execute("SELECT setval('jobs_queue_id_seq', 50)")
    else:
        rows.execute("INSERT INTO jobs_queue (id, task) VALUES (50, 'tasks.gone')")
        rows.execute("DELETE FROM jobs_queue WHERE id = 50")
    rows.execute("INSERT INTO jobs_queue_done (id, task, group_id) VALUES (9, 'tasks.kept', 4294967295)")
    rows.execute("INSERT INTO jobs_queue_dependencies (parent_id, child_id) VALUES (5, 7)")
    rows.execute("INSERT INTO jobs_queue_workers (host, group_ids, pid) VALUES ('host', 'all', 1)")
    rows.execute("INSERT INTO jobs_queue_paused (group_id) VALUES (8)")
    rows.execute("INSERT INTO jobs_queue_schedules (name, task, group_id) VALUES ('daily', 'tasks.a', 4294967295)")
    rows.execute(f"INSERT INTO jobs_queue_stats (hour, group_id, task) VALUES ({rows.after(0)}, 0, 'tasks.a')")
    rows.execute("INSERT INTO jobs_queue_notes (name, value) VALUES ('name', 'value')")
    yield rows
    rows.close()


def described(rows: Rows) -> list[object]:
    """All tables as the server describes them."""
    if rows.is_mysql:
        texts = [str(rows.execute(f"SHOW CREATE TABLE {table}")[0][1]) for table in TABLES]
        return [re.sub(r" AUTO_INCREMENT=\d+", "", text) for text in texts]
    if rows.is_sqlite:
        found = rows.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY name")
        return [(name, " ".join(sql.split())) for name, sql in found]
    looks = (
        "SELECT table_name, column_name, data_type, collation_name, character_maximum_length, is_nullable,"
        " column_default FROM information_schema.columns WHERE table_schema = 'public' ORDER BY 1, ordinal_position",
        "SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid) FROM pg_constraint"
        " WHERE connamespace = 'public'::regnamespace ORDER BY 1, 2",
        "SELECT indexdef FROM pg_indexes WHERE schemaname = 'public' ORDER BY 1",
        "SELECT pg_get_triggerdef(oid) FROM pg_trigger WHERE NOT tgisinternal ORDER BY 1",
        r"SELECT proname, regexp_replace(prosrc, '\s+', ' ', 'g'), prosecdef"
        " FROM pg_proc WHERE pronamespace = 'public'::regnamespace ORDER BY 1",
    )
    return [rows.execute(look) for look in looks]


def everything(rows: Rows) -> dict[str, list[str]]:
    """All rows, without the number of the last group."""
    found = {table: rows.execute(f"SELECT * FROM {table}") for table in TABLES if table != "jobs_queue_schema"}
    return {
        table: sorted(re.sub("4294967295|4294967294", "last", repr(row)) for row in found[table]) for table in found
    }


def test_an_upgrade_keeps_every_row_and_leaves_the_tables_as_new_ones_are(old: Rows, dsn: str) -> None:
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
        upgraded = described(old)
        if old.is_postgresql:
            old.execute("DROP SCHEMA public CASCADE")
            old.execute("CREATE SCHEMA public")
        else:
            for table in TABLES:
                old.execute(f"DROP TABLE {table}")
        server.create_tables()
        assert upgraded == described(old)


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
    before = (described(old), everything(old))
    with TaskServer(dsn) as server, pytest.raises(DatabaseError, match="attempts"):
        server.create_tables()
    assert (described(old), everything(old)) == before


# ---- other versions, and none


@pytest.mark.parametrize(
    ("version", "verbs", "words"),
    [
        (3, ("create",), r"version 3.*client\.py init of version 0\.1\.0 first"),
        (99, ("check", "create"), r"version 99.*newer taskserver"),
    ],
)
def test_tables_of_an_unknown_version_are_refused_with_the_way_out(
    store: Store, rows: Rows, version: int, verbs: tuple[str, ...], words: str
) -> None:
    rows.execute(f"UPDATE jobs_queue_schema SET version = {version}")
    for verb in verbs:
        with pytest.raises(TablesOutdated, match=words):
            getattr(store.tables, verb)()


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
