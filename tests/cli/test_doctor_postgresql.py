"""What the doctor finds on a real PostgreSQL: transactions that stand open, and settings in the queue's way.

Its checks of tables are in test_doctor.py, of rights in tests/docs/test_postgresql_rights.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager

import psycopg
import pytest

from taskserver import TaskServer
from taskserver.errors import DatabaseError
from taskserver.messages.finding import Finding, Level
from taskserver.stores import facts
from taskserver.stores.table_faults import table_faults
from tests.conftest import without
from tests.support.doctor import examined
from tests.support.documents import blocks
from tests.support.pgbouncer import pooled
from tests.support.postgresql import CHOSEN_PROGRAMS, PostgreSQL, PostgreSQLServer, programs_folder
from tests.support.processes import wait_until

OK, WARNING, CRITICAL, _ = Level
WELL = {"durability": WARNING}
"""The tests' own server is quick rather than safe."""


def found_at(dsn: str) -> dict[str, Finding]:
    with TaskServer(dsn) as server:
        return examined(server)


def make(dsn: str) -> str:
    """Make a queue there in which all is well; its DSN."""
    with TaskServer(dsn) as server:
        server.create_tables()
    return dsn


def worse(found: dict[str, Finding]) -> dict[str, Level]:
    """What is not well, but for the durability."""
    return {name: one.level for name, one in found.items() if one.level != OK and name not in WELL}


@pytest.fixture
def made_dsn(postgresql_dsn: str) -> str:
    return make(postgresql_dsn)


@contextmanager
def opened(dsn: str, *statements: str) -> Iterator[psycopg.Connection[tuple[object, ...]]]:
    """A connection in the midst of a transaction of these statements."""
    with closing(psycopg.connect(dsn)) as connection:
        for statement in statements:
            connection.execute(statement.encode())
        yield connection


SNAPSHOT = ("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ", "SELECT 1")


def run_statement(dsn: str, statement: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(statement.encode())


# ---- transactions that stand open


def test_the_oldest_open_transaction_is_named_with_the_statement_that_ends_it(
    made_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(made_dsn, *SNAPSHOT) as other:
        assert worse(found_at(made_dsn)) == {}
        monkeypatch.setattr(facts, "MAX_TRANSACTION_SECONDS", 0.0)
        found = found_at(made_dsn)
        assert worse(found) == {"transactions": WARNING}
        number = other.info.backend_pid
        assert f"in the session {number} (idle in transaction)" in found["transactions"].words
        assert f"pg_terminate_backend({number})" in found["transactions"].fix
        run_statement(made_dsn, f"SELECT pg_terminate_backend({number})")
        wait_until(lambda: worse(found_at(made_dsn)) == {})


# ---- settings of an account and a database


def test_an_account_that_may_have_few_connections_is_a_warning(
    made_dsn: str, postgresql_server: PostgreSQLServer
) -> None:
    name = made_dsn.rpartition("/")[2]
    postgresql_server.execute(f"ALTER DATABASE {name} CONNECTION LIMIT 5", database=name)
    found = found_at(made_dsn)
    assert "at most 5" in found["connections"].words
    assert worse(found) == {"connections": WARNING}


def assert_whole_after_init(dsn: str, table: str) -> None:
    with TaskServer(dsn, table=table) as server:
        server.create_tables()
        assert table_faults(server.store.database) == []
        assert server.add_task("tasks.a") == 1


def test_tables_that_were_renamed_as_upgrading_says_are_whole_after_init(
    made_dsn: str, postgresql_server: PostgreSQLServer
) -> None:
    (rename,) = [block.text for block in blocks("docs/upgrading.md") if "RENAME TO" in block.text]
    postgresql_server.execute(rename, database=made_dsn.rpartition("/")[2])
    assert_whole_after_init(made_dsn, "letters")


def test_in_an_encoding_that_lacks_letters_no_queue_is_made(postgresql_server: PostgreSQLServer) -> None:
    name = postgresql_server.create_database()
    postgresql_server.drop_database(name)
    postgresql_server.execute(f"CREATE DATABASE {name} ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
    try:
        with pytest.raises(DatabaseError, match="encoding is LATIN1"):
            make(postgresql_server.dsn(name))
    finally:
        postgresql_server.drop_database(name)


def test_through_a_pooler_of_transactions_all_is_seen(made_dsn: str) -> None:
    with pooled(made_dsn) as dsn:
        assert worse(found_at(dsn)) == {}


# ---- a server of its own


@pytest.fixture(scope="module")
def own_server() -> Iterator[PostgreSQL]:
    """Durable, and able to prepare transactions and to have a standby."""
    if programs_folder() is None:
        without("PostgreSQL is not installed (postgres not found)")
    with PostgreSQL(True, "max_prepared_transactions=5", "wal_level=replica") as server:
        yield server


@pytest.fixture
def own_dsn(own_server: PostgreSQL) -> Iterator[str]:
    with own_server.database() as name:
        yield make(own_server.dsn(name))


@pytest.mark.long
def test_a_safe_server_is_well_and_a_prepared_transaction_is_named_with_the_statement_that_ends_it(
    own_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = found_at(own_dsn)
    assert (worse(found), found["durability"].level) == ({}, OK)
    with psycopg.connect(own_dsn) as connection:
        connection.execute("SELECT * FROM jobs_queue FOR UPDATE")
        connection.execute("PREPARE TRANSACTION 'lost'")
    monkeypatch.setattr(facts, "MAX_TRANSACTION_SECONDS", 0.0)
    found = found_at(own_dsn)
    assert "in the session 'lost' (prepared)" in found["transactions"].words
    assert "ROLLBACK PREPARED 'lost'" in found["transactions"].fix
    run_statement(own_dsn, "ROLLBACK PREPARED 'lost'")
    assert found_at(own_dsn)["transactions"].level == OK


@pytest.mark.long
def test_a_standby_takes_no_writes(own_server: PostgreSQL, own_dsn: str) -> None:
    if CHOSEN_PROGRAMS:
        pytest.skip("a server that was only unpacked lacks programs and libraries of a standby")
    programs = programs_folder()
    assert programs is not None
    with PostgreSQL(True) as standby:
        standby.stop()
        base = f"host={own_server.socket_folder} port={own_server.port} user=postgres password={own_server.password}"
        standby._run_to_end("rm", "-rf", f"{standby.folder}/data")
        backup = ["-d", base, "-D", f"{standby.folder}/data", "-R", "-X", "stream", "-c", "fast"]
        standby._run_to_end(str(programs / "pg_basebackup"), *backup)
        standby._settings = [*standby._settings, "max_prepared_transactions=5"]
        standby.password = own_server.password
        standby.start()
        assert worse(found_at(standby.dsn(own_dsn.rpartition("/")[2]))) == {"standby": CRITICAL}
        standby.stop()
