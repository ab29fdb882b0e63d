"""The least rights that docs/security.md grants: each account does its work with them, and no more."""

from __future__ import annotations

import re
from contextlib import closing, suppress
from typing import Any

import psycopg
import pymysql
import pytest

from taskserver import DatabaseError, Reason, TaskServer
from taskserver.health.accepted import accept
from taskserver.health.alarm import changed
from taskserver.messages.finding import Level
from taskserver.model.task import MODES
from tests.support.documents import prose, sections
from tests.support.postgresql import PostgreSQLServer
from tests.support.printed import examined
from tests.support.queues import row_counts
from tests.support.reader import Reader

SECURITY = "docs/security.md"
SECTIONS = {"mysql": "Least rights", "postgresql": "Least rights on PostgreSQL"}
ADD = "INSERT INTO jobs_queue (task, args, group_id, priority) VALUES ('tasks.greet', '[1]', 3, 10)"
REFUSED = [
    "SELECT task FROM jobs_queue",
    "INSERT INTO jobs_queue (task, status) VALUES ('tasks.greet', 4)",
    "INSERT INTO jobs_queue (id, task) VALUES (17, 'tasks.greet')",
    "UPDATE jobs_queue SET status = 0",
    "DELETE FROM jobs_queue",
    "TRUNCATE jobs_queue",
    "INSERT INTO jobs_queue_schema (version) VALUES (99)",
    "INSERT INTO jobs_queue_paused (group_id) VALUES (3)",
    "DROP TABLE jobs_queue",
]
REFUSED_ON = {
    "mysql": [
        "INSERT INTO jobs_queue (task) VALUES ('x') ON DUPLICATE KEY UPDATE task = 'y'",
        "REPLACE INTO jobs_queue (task) VALUES ('tasks.greet')",
    ],
    "postgresql": [
        "INSERT INTO jobs_queue (task) VALUES ('x') ON CONFLICT (id) DO UPDATE SET task = 'y'",
        "DO $$BEGIN LOCK TABLE jobs_queue IN SHARE MODE; END$$",
        "SELECT id FROM jobs_queue FOR UPDATE",
        "SELECT nextval('jobs_queue_id_seq')",
    ],
}


class Guarded:
    """A queue on a server that has the accounts of the document, under names of this reader's own."""

    def __init__(self, reader: Reader, kind: str) -> None:
        self.kind = kind
        self._reader = reader
        reader.install()
        for block in dict(sections(SECURITY))[SECTIONS[kind]]:
            reader.follow(block)

    def dsn(self, role: str) -> str:
        password = f"{role.removeprefix('you_')}-password"
        if self.kind == "mysql":
            return self._reader.dsn(role, password)
        server = self._reader.on_postgresql
        login = f"{self._reader.translated(role)}:{password}"
        return f"postgresql://{login}@{server.host}:{server.port}/{self._reader.database}"

    def connect(self, role: str) -> Any:
        if self.kind == "mysql":
            return self._reader.connect(role, f"{role.removeprefix('you_')}-password")
        return psycopg.connect(self.dsn(role), autocommit=True)

    def server(self, role: str, **settings: Any) -> TaskServer:
        return TaskServer(self.dsn(role), folder=self._reader.folder, **settings)

    def execute(self, statement: str) -> Any:
        """As the owner of the tables."""
        if self.kind == "mysql":
            return self._reader.execute(statement)
        server = self._reader.on_postgresql
        return server.execute(self._reader.translated(statement), database=self._reader.database)


@pytest.fixture(params=["mysql", "postgresql"])
def guarded(request: pytest.FixtureRequest, reader: Reader) -> Guarded:
    return Guarded(reader, request.param)


@pytest.fixture
def on_mysql(reader: Reader) -> Guarded:
    return Guarded(reader, "mysql")


@pytest.fixture
def on_postgresql(reader: Reader) -> Guarded:
    return Guarded(reader, "postgresql")


# ---- on both servers


def test_a_website_adds_tasks_and_is_refused_all_else(guarded: Guarded) -> None:
    with closing(guarded.connect("you_web")) as connection, connection.cursor() as cursor:
        cursor.execute(ADD)
        for statement in REFUSED + REFUSED_ON[guarded.kind]:
            with pytest.raises((pymysql.MySQLError, psycopg.Error), match=r"denied|must be owner"):
                cursor.execute(statement)
    with guarded.server("you_web") as server:
        assert len(server.add_tasks([{"task": "tasks.greet", "args": ["Ada"]}] * 100)) == 100
        with pytest.raises(DatabaseError, match=r"see docs/security\.md"):
            server.add_task("tasks.greet", ["Ada"], delay=60)


def test_a_worker_runs_tasks_of_all_kinds_in_each_mode_and_waits_for_more(guarded: Guarded) -> None:
    for mode in MODES:
        with guarded.server("you_worker", mode=mode) as server:
            ids = server.add_tasks({"task": f"tasks.{name}", "args": ["Ada"]} for name in ("greet", "nothing", "greet"))
            server.add_task("tasks.greet", ["Ada"], depends_on=ids[::2])
            server.store.claims.claim(1, ())
            guarded.execute("UPDATE jobs_queue SET due_at = NOW() - INTERVAL '1' DAY WHERE status = 1")
            result = server.run(linger=0.1)
            assert (result.done, result.fatal, result.reason) == (3, 1, Reason.EMPTY), mode
            assert server.store.views.show(10**6) is None


def test_an_operator_may_pause_and_a_worker_is_told_who_may(guarded: Guarded) -> None:
    with guarded.server("you_worker") as server, pytest.raises(DatabaseError, match=r"prune need an operator's"):
        server.pause(3)
    with guarded.server("you_operator") as server:
        assert server.pause(3)


def test_a_monitor_looks_and_notes_what_was_told(guarded: Guarded) -> None:
    with guarded.server("you_monitor") as server:
        assert row_counts(server.store) == []
        assert server.store.views.show(1) is None
        status = server.status()
        assert changed(server.store, "check", status) is not None
        assert changed(server.store, "check", status) is None
        accept(server.store, "cron", "so be it")
        with pytest.raises(DatabaseError, match="denied"):
            server.add_task("tasks.greet")


# ---- on MySQL and MariaDB


def test_the_trigger_keeps_a_website_from_choosing_ids(on_mysql: Guarded) -> None:
    with closing(on_mysql.connect("you_web")) as connection, connection.cursor() as cursor:
        cursor.execute(ADD)
        for forged in (2**64 - 2, 1):
            cursor.execute(f"SET insert_id = {forged}")
            with pytest.raises(pymysql.MySQLError, match="a forged id"):
                cursor.execute(ADD)
        cursor.execute("SET insert_id = 0, auto_increment_increment = 7, auto_increment_offset = 1")
        with suppress(pymysql.MySQLError):  # MySQL takes 0 for a choice, and MariaDB for none
            cursor.execute("INSERT INTO jobs_queue (task) VALUES ('a'), ('b'), ('c')")
            assert cursor.lastrowid > 1


BEYOND_THE_FOUR = "(status, max_attempts, due_at, unique_key, version, stages)"


def test_a_producer_of_more_than_four_columns_needs_the_rights_that_the_document_names(on_mysql: Guarded) -> None:
    assert all(f"`{column}`" in prose(SECURITY) for column in re.findall(r"\w+", BEYOND_THE_FOUR))
    on_mysql.execute(f"GRANT INSERT {BEYOND_THE_FOUR} ON you_queue.jobs_queue TO 'you_web'@'%'")
    with on_mysql.server("you_web") as server:
        parent = server.add_task("tasks.greet", ["Ada"], delay=60, max_attempts=3)
        server.add_pipeline(["tasks.greet", "tasks.rebuild_index"], ["Ada"])
        for right, table, more in (
            ("INSERT", "jobs_queue_dependencies", {"depends_on": [parent]}),
            ("SELECT, UPDATE", "jobs_queue", {"unique_key": "one", "rerun": True}),
        ):
            with pytest.raises(DatabaseError, match=r"see docs/security\.md"):
                server.add_task("tasks.greet", ["Ada"], **more)
            on_mysql.execute(f"GRANT {right} ON you_queue.{table} TO 'you_web'@'%'")
            server.add_task("tasks.greet", ["Ada"], **more)


# ---- on PostgreSQL


def test_a_website_with_keys_delays_and_reruns_has_what_these_take(on_postgresql: Guarded) -> None:
    with on_postgresql.server("you_shop") as server:
        server.add_task("tasks.greet", ["Ada"], delay=60, max_attempts=3)
        server.add_pipeline(["tasks.greet", "tasks.greet"], ["Ada"])
        first = server.add_task("tasks.greet", ["Ada"], unique_key="one")
        assert server.add_task("tasks.greet", ["Ada"], unique_key="one", rerun=True, version=2) == first


def test_doctor_finds_nothing_missing_for_a_worker_and_names_what_a_website_lacks(on_postgresql: Guarded) -> None:
    with on_postgresql.server("you_worker") as server:
        found = examined(server)
    assert {name for name, one in found.items() if one.level is not Level.OK} - {"durability"} == {"transactions"}
    assert "pg_read_all_stats" in found["transactions"].fix
    with on_postgresql.server("you_web") as server:
        lacked = examined(server)["rights"].words
    assert all(f"{verb} on jobs_queue," in lacked for verb in ("SELECT", "UPDATE", "DELETE"))
    assert "INSERT on jobs_queue " not in lacked


def test_an_account_that_may_make_no_tables_is_told_what_init_needs(
    postgresql_dsn: str, postgresql_server: PostgreSQLServer
) -> None:
    name = postgresql_dsn.rpartition("/")[2]
    postgresql_server.execute("REVOKE CREATE ON SCHEMA public FROM PUBLIC", database=name)
    postgresql_server.execute(f"CREATE ROLE {name}_poor LOGIN PASSWORD 'x'")
    dsn = re.sub("//[^@]*@", f"//{name}_poor:x@", postgresql_dsn)
    try:
        with TaskServer(dsn) as server, pytest.raises(DatabaseError) as refused:
            server.create_tables()
        grant = f"GRANT CREATE ON SCHEMA public TO {name}_poor"
        assert "permission denied for schema public" in str(refused.value)
        assert grant in str(refused.value)
        postgresql_server.execute(grant, database=name)
        with TaskServer(dsn) as server:
            server.create_tables()
    finally:
        postgresql_server.execute(f"DROP OWNED BY {name}_poor CASCADE", database=name)
        postgresql_server.execute(f"DROP ROLE {name}_poor")
