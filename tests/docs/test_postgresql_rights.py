"""The least rights on PostgreSQL that docs/security.md grants: each account does its work with them, and no more."""

from __future__ import annotations

import re
from collections.abc import Iterator

import psycopg
import pytest

from taskserver import DatabaseError, Reason, TaskServer
from taskserver.health.accepted import accept
from taskserver.health.alarm import changed
from taskserver.messages.finding import Level
from taskserver.model.task import MODES
from tests.support.doctor import examined
from tests.support.documents import sections
from tests.support.postgresql import PostgreSQLServer
from tests.support.queues import Queue, row_counts

SECTION = "Least rights on PostgreSQL"
TASKS = """
def greet(name): ...
def fail(name): raise ValueError(name)
"""
ADD = "INSERT INTO jobs_queue (task, args, group_id, priority) VALUES ('tasks.greet', '[1]', 3, 10)"
REFUSED = [
    "SELECT task FROM jobs_queue",
    "INSERT INTO jobs_queue (task, status) VALUES ('tasks.greet', 4)",
    "INSERT INTO jobs_queue (id, task) VALUES (17, 'tasks.greet')",
    "INSERT INTO jobs_queue (task) VALUES ('x') ON CONFLICT (id) DO UPDATE SET task = 'y'",
    "UPDATE jobs_queue SET status = 0",
    "DELETE FROM jobs_queue",
    "TRUNCATE jobs_queue",
    "DO $$BEGIN LOCK TABLE jobs_queue IN SHARE MODE; END$$",
    "SELECT id FROM jobs_queue FOR UPDATE",
    "SELECT nextval('jobs_queue_id_seq')",
    "SELECT setval('jobs_queue_id_seq', 9)",
    "CREATE TRIGGER mine AFTER INSERT ON jobs_queue EXECUTE FUNCTION suppress_redundant_updates_trigger()",
    "INSERT INTO jobs_queue_schema (version) VALUES (99)",
    "INSERT INTO jobs_queue_paused (group_id) VALUES (3)",
    "DROP TABLE jobs_queue",
]


class Guarded:
    """A queue whose server has the accounts of the document, under names of this test's own."""

    def __init__(self, queue: Queue, server: PostgreSQLServer) -> None:
        self.queue = queue
        self._server = server
        self._database = queue.dsn.rpartition("/")[2]
        (block,) = dict(sections("docs/security.md"))[SECTION]
        self.roles = set(re.findall(r"CREATE ROLE (\w+)", block.text))
        server.execute(*filter(str.strip, self._named(block.text).split(";\n")), database=self._database)

    def _named(self, text: str) -> str:
        return re.sub(r"\byou_", f"{self._database}_", text)

    def login(self, role: str) -> tuple[str, str]:
        return self._named(role), f"{role.removeprefix('you_')}-password"

    def dsn(self, role: str) -> str:
        name, password = self.login(role)
        return f"postgresql://{name}:{password}@{self._server.host}:{self._server.port}/{self._database}"

    def server(self, role: str, mode: str = "delete") -> TaskServer:
        return TaskServer(self.dsn(role), folder=self.queue.folder, mode=mode)

    def remove(self) -> None:
        for role in self.roles:
            name = self._named(role)
            self._server.execute(f"DROP OWNED BY {name}", f"DROP ROLE {name}", database=self._database)


@pytest.fixture
def guarded(postgresql_queue: Queue, postgresql_server: PostgreSQLServer) -> Iterator[Guarded]:
    made = Guarded(postgresql_queue, postgresql_server)
    yield made
    made.remove()


def test_a_website_adds_tasks_and_is_refused_all_else(guarded: Guarded) -> None:
    name, password = guarded.login("you_web")
    with psycopg.connect(guarded.queue.dsn, user=name, password=password, autocommit=True) as connection:
        connection.execute(ADD)
        for statement in REFUSED:
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(statement.encode())
    with guarded.server("you_web") as server:
        assert len(server.add_tasks([{"task": "tasks.greet", "args": ["Ada"]}] * 100)) == 100
        with pytest.raises(DatabaseError, match=r"see docs/security\.md"):
            server.add_task("tasks.greet", ["Ada"], delay=60)


def test_a_website_with_keys_delays_and_reruns_has_what_these_take(guarded: Guarded) -> None:
    with guarded.server("you_shop") as server:
        server.add_task("tasks.greet", ["Ada"], delay=60, max_attempts=3)
        server.add_pipeline(["tasks.greet", "tasks.greet"], ["Ada"])
        first = server.add_task("tasks.greet", ["Ada"], unique_key="one")
        assert server.add_task("tasks.greet", ["Ada"], unique_key="one") == first
        assert server.add_task("tasks.greet", ["Ada"], unique_key="one", rerun=True, version=2) == first


@pytest.mark.parametrize("mode", MODES)
def test_a_worker_runs_tasks_of_all_kinds_and_waits_for_more(guarded: Guarded, mode: str) -> None:
    guarded.queue.define(TASKS)
    with guarded.server("you_worker", mode) as server:
        ids = server.add_tasks({"task": f"tasks.{name}", "args": ["Ada"]} for name in ("greet", "nothing", "greet"))
        server.add_task("tasks.greet", ["Ada"], depends_on=ids[::2])
        server.store.claims.claim(1, ())
        guarded.queue.end_leases()
        result = server.run()
        assert (result.done, result.fatal, result.reason) == (3, 1, Reason.EMPTY)
        assert server.store.views.show(10**6) is None
    assert guarded.queue.worker("--linger", 1, TASKSERVER_DSN=guarded.dsn("you_worker")).stderr == ""


def test_doctor_finds_nothing_missing_for_that_worker_and_names_what_a_website_lacks(guarded: Guarded) -> None:
    with guarded.server("you_worker") as server:
        found = examined(server)
    assert {name for name, one in found.items() if one.level is not Level.OK} - {"durability"} == {"transactions"}
    assert "pg_read_all_stats" in found["transactions"].fix
    assert "SELECT on jobs_queue_notes (for what doctor and check accept)" in found["rights"].words
    guarded.queue.sql(f"GRANT pg_read_all_stats TO {guarded.login('you_worker')[0]}")
    with guarded.server("you_worker") as server:
        assert examined(server)["transactions"].level is Level.OK
    with guarded.server("you_web") as server:
        lacked = examined(server)["rights"].words
    assert all(f"{verb} on jobs_queue," in lacked for verb in ("SELECT", "UPDATE", "DELETE"))
    assert "INSERT on jobs_queue " not in lacked


def test_row_level_security_that_a_worker_is_under_is_named(guarded: Guarded) -> None:
    guarded.queue.sql("ALTER TABLE jobs_queue ENABLE ROW LEVEL SECURITY")
    with guarded.server("you_worker") as server:
        found = examined(server)["deletes"]
    assert (found.level, found.words) == (Level.WARNING, "the queue has row level security")


def test_an_operator_may_pause_and_a_worker_may_not(guarded: Guarded) -> None:
    with guarded.server("you_worker") as server, pytest.raises(DatabaseError, match=r"prune need an operator's"):
        server.pause(3)
    with guarded.server("you_operator") as server:
        assert server.pause(3)


def test_init_by_another_account_than_the_owner_names_the_owner(guarded: Guarded) -> None:
    with guarded.server("you_operator") as server, pytest.raises(DatabaseError) as refused:
        server.create_tables()
    (owner,) = guarded.queue.sql("SELECT tableowner FROM pg_tables WHERE tablename = 'jobs_queue'")
    assert f"the tables of jobs_queue belong to {owner[0]!r}: run client.py init as that account" in str(refused.value)


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
        assert "permission denied for schema public" in str(refused.value)
        assert f"GRANT CREATE ON SCHEMA public TO {name}_poor" in str(refused.value)
        postgresql_server.execute(f"GRANT CREATE ON SCHEMA public TO {name}_poor", database=name)
        with TaskServer(dsn) as server:
            server.create_tables()
            server.create_tables()
    finally:
        postgresql_server.execute(f"DROP OWNED BY {name}_poor CASCADE", database=name)
        postgresql_server.execute(f"DROP ROLE {name}_poor")
