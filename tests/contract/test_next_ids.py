"""A new row gets no id, or one that another row has: the error says why, and names the statement that fixes it."""

from __future__ import annotations

import re
from contextlib import closing
from types import SimpleNamespace

import pytest

from taskserver import TaskServer
from taskserver.errors import DatabaseError, Refused
from tests.support.rows import Rows

GREATEST = {
    "sqlite": f"INSERT INTO jobs_queue (id, task) VALUES ({2**63 - 1}, 'tasks.send')",
    "mysql": f"INSERT INTO jobs_queue (id, task) VALUES ({2**64 - 1}, 'tasks.send')",
    "postgresql": f"SELECT setval('jobs_queue_id_seq', {2**63 - 1})",
}


def fix_of(error: DatabaseError) -> str:
    return str(re.findall("(?:UPDATE sqlite_sequence|ALTER TABLE|SELECT setval).*", str(error))[0])


def test_the_greatest_id_is_named_with_the_statement_that_fixes_it(queue_dsn: str, rows: Rows) -> None:
    with TaskServer(queue_dsn) as server:
        first = server.add_task("tasks.send")
        rows.execute(GREATEST[server.store.database.dialect.kind])
        with server.store.database.tried_once(5), pytest.raises(DatabaseError, match="greatest") as raised:
            server.add_task("tasks.send")
        rows.execute(f"DELETE FROM jobs_queue WHERE id > {2**60}")
        rows.execute(fix_of(raised.value))
        assert server.add_task("tasks.send") == first + 1


def test_on_a_disk_without_space_the_error_says_nothing_of_ids(
    sqlite_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite has the same words for both."""
    with TaskServer(sqlite_dsn) as server, closing(Rows(sqlite_dsn)) as rows:
        server.create_tables()
        rows.execute(GREATEST["sqlite"])
        monkeypatch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=4096))
        with server.store.database.tried_once(5), pytest.raises(DatabaseError, match="raise the quota") as raised:
            server.add_task("tasks.send")
        assert "sqlite_sequence" not in str(raised.value)


def test_an_id_that_a_row_has_already_is_named_with_the_statement_that_fixes_it(postgresql_queue_dsn: str) -> None:
    """Only PostgreSQL's counter does not follow the ids that rows are given."""
    with TaskServer(postgresql_queue_dsn) as server, closing(Rows(postgresql_queue_dsn)) as rows:
        first = server.add_task("tasks.send")
        for step in (1, 7):
            rows.execute(f"INSERT INTO jobs_queue (id, task) VALUES ({first + step}, 'tasks.send')")
        with pytest.raises(Refused, match="ids of their own") as raised:
            server.add_task("tasks.send")
        rows.execute(fix_of(raised.value))
        assert server.add_task("tasks.send") == first + 8


def test_rows_that_a_trigger_of_the_site_drops_are_an_error_and_its_own_ids_count(postgresql_dsn: str) -> None:
    with TaskServer(postgresql_dsn) as server, closing(Rows(postgresql_dsn)) as rows:
        server.create_tables()
        rows.execute(
            "CREATE FUNCTION site() RETURNS trigger LANGUAGE plpgsql AS "
            "'BEGIN IF NEW.group_id = 7 THEN RETURN NULL; END IF; NEW.id := NEW.id * 10; RETURN NEW; END'"
        )
        rows.execute("CREATE TRIGGER site BEFORE INSERT ON jobs_queue FOR EACH ROW EXECUTE FUNCTION site()")
        with pytest.raises(Refused, match="1 of 1 tasks were not added: a trigger"):
            server.add_task("tasks.send", group_id=7)
        assert [server.add_task("tasks.send")] == [row["id"] for row in rows.all()]
