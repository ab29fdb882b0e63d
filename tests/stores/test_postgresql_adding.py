"""What is added to a PostgreSQL table that its site has changed, or by an account with few rights."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from taskserver import TaskServer
from taskserver.errors import DatabaseError, Refused
from taskserver.stores.postgresql.inserts import MIN_COPIED
from tests.support.postgresql import PostgreSQLServer
from tests.support.rows import Rows

SITE_TRIGGER = """
    CREATE FUNCTION site() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            IF NEW.group_id = 7 THEN RETURN NULL; END IF;
            NEW.id := NEW.id * 10;
            RETURN NEW;
        END
    $$
"""


@pytest.fixture
def dsn(postgresql_server: PostgreSQLServer) -> Iterator[str]:
    with postgresql_server.database() as name:
        dsn = postgresql_server.dsn(name)
        with TaskServer(dsn) as server:
            server.create_tables()
        yield dsn


@pytest.fixture
def rows(dsn: str) -> Iterator[Rows]:
    rows = Rows(dsn)
    yield rows
    rows.close()


@pytest.fixture
def as_shop(postgresql_server: PostgreSQLServer, rows: Rows, dsn: str) -> Iterator[Callable[[], TaskServer]]:
    """Opens the queue as an account that a site has made for its pages."""
    rows.execute("CREATE ROLE shop LOGIN PASSWORD 'x'")
    yield lambda: TaskServer(dsn.replace(postgresql_server.login, "shop:x"))
    rows.execute("DROP OWNED BY shop")
    rows.execute("DROP ROLE shop")


@pytest.mark.parametrize("count", [2, MIN_COPIED])
def test_a_trigger_of_the_site_decides_on_ids_and_rows_however_many_are_added(dsn: str, rows: Rows, count: int) -> None:
    rows.execute(SITE_TRIGGER)
    rows.execute("CREATE TRIGGER site BEFORE INSERT ON jobs_queue FOR EACH ROW EXECUTE FUNCTION site()")
    with TaskServer(dsn) as server:
        ids = list(server.add_tasks([{"task": "tasks.send"}] * count))
        assert ids == sorted(row["id"] for row in rows.all())
        with pytest.raises(Refused, match=f"{count} of {count} tasks were not added: a trigger or a rule"):
            server.add_tasks([{"task": "tasks.send", "group_id": 7}] * count)
        with pytest.raises(Refused, match="1 of 1 tasks were not added"):
            server.add_task("tasks.send", group_id=7)
    assert len(rows.all()) == count


def test_who_may_not_insert_ids_or_has_policies_adds_many_tasks_as_well_as_one(
    rows: Rows, as_shop: Callable[[], TaskServer]
) -> None:
    rows.execute("GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO shop")
    rows.execute("GRANT INSERT (task, args, group_id, priority), SELECT (id) ON jobs_queue TO shop")
    many = [{"task": "tasks.send"}] * MIN_COPIED
    with as_shop() as server:
        server.add_tasks(many)
    rows.execute("GRANT SELECT, INSERT ON jobs_queue TO shop")
    rows.execute("ALTER TABLE jobs_queue ENABLE ROW LEVEL SECURITY")
    rows.execute("CREATE POLICY of_shop ON jobs_queue USING (group_id < 5)")
    with as_shop() as server:
        server.add_tasks(many)
    assert len(rows.all()) == 2 * MIN_COPIED


def test_an_id_that_a_row_has_already_is_told_with_the_way_out(dsn: str, rows: Rows) -> None:
    with TaskServer(dsn) as server:
        first = server.add_task("tasks.send")
        rows.execute(f"INSERT INTO jobs_queue (id, task) VALUES ({first + 1}, 'tasks.send')")
        with pytest.raises(Refused, match=r"ids of their own.*doctor tells how to mend it"):
            server.add_task("tasks.send")
        assert server.add_task("tasks.send") == first + 2


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1"])
def test_no_tables_are_made_where_one_text_in_another_encoding_would_stop_the_queue(
    postgresql_server: PostgreSQLServer, encoding: str
) -> None:
    name = "t_encoding"
    postgresql_server.execute(f"CREATE DATABASE {name} ENCODING '{encoding}' LOCALE 'C' TEMPLATE template0")
    try:
        with TaskServer(postgresql_server.dsn(name)) as server, pytest.raises(DatabaseError, match=encoding):
            server.create_tables()
        found = postgresql_server.execute("SELECT 1 FROM pg_tables WHERE tablename LIKE 'jobs_queue%'", database=name)
        assert found == []
    finally:
        postgresql_server.drop_database(name)


def test_indexes_are_known_by_name_also_where_that_has_capital_letters(dsn: str) -> None:
    with TaskServer(dsn, table="Jobs") as server:
        server.create_tables()
        database = server.store.database
        assert "claim_by_group" in database.dialect.claiming.indexes(database, (1, 2))


def test_an_error_that_comes_before_all_is_sent_is_the_only_word_of_it(
    dsn: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with TaskServer(dsn) as server:
        server.store.tables.check()
        session = server.store.database.session()
        execute = session.connection.execute
        sent: list[str] = []

        def slowly(sql: str, *values: Any, **how: Any) -> Any:
            time.sleep(0.05)
            sent.append(sql)
            return execute(sql, *values, **how)

        monkeypatch.setattr(session.connection, "execute", slowly)
        with pytest.raises(psycopg.errors.DivisionByZero):
            session.send_joined([(f"SELECT 1 / {number}", ()) for number in (0, 1, 2, 3, 4)], False, ())
        assert len(sent) < 5  # it came before
        assert session.send_joined([("SELECT 1", ()), ("SELECT 2", ())], False, ()) == [1, 1]
    assert caplog.records == []
