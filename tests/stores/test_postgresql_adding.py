"""What is added to a PostgreSQL table that its site has changed, or by an account with few rights."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from taskserver import TaskServer
from taskserver.errors import DatabaseError, Refused
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


def test_a_trigger_of_the_site_decides_on_ids_and_rows(dsn: str, rows: Rows) -> None:
    count = 2
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


def test_an_id_that_a_row_has_already_is_told_with_the_way_out(dsn: str, rows: Rows) -> None:
    with TaskServer(dsn) as server:
        first = server.add_task("tasks.send")
        rows.execute(f"INSERT INTO jobs_queue (id, task) VALUES ({first + 1}, 'tasks.send')")
        rows.execute(f"INSERT INTO jobs_queue (id, task) VALUES ({first + 7}, 'tasks.send')")
        with pytest.raises(Refused, match="ids of their own") as raised:
            server.add_task("tasks.send")
        (statement,) = re.findall("SELECT setval.*", str(raised.value))
        rows.execute(statement)
        assert server.add_task("tasks.send") == first + 8


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
