"""What the doctor finds on a real PostgreSQL: who keeps dead rows or holds new tasks, and settings in the queue's way.

Its checks of tables are in test_doctor.py, of rights in tests/docs/test_postgresql_rights.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing, contextmanager

import psycopg
import pytest

from taskserver import TaskServer
from taskserver.doctor import postgresql, vacuum
from taskserver.doctor.findings import CheckResult, Level
from taskserver.errors import DatabaseError
from taskserver.settings.dsn import parse_dsn
from taskserver.settings.load import Settings
from taskserver.stores.facts import PostgreSQLFacts
from tests.conftest import without
from tests.support.documents import blocks
from tests.support.pgbouncer import pooled
from tests.support.postgresql import CHOSEN_PROGRAMS, PostgreSQL, PostgreSQLServer, programs_folder
from tests.support.processes import wait_until
from tests.support.servers import find_program

WELL = {"durability": Level.WARNING}
"""The tests' own server is quick rather than safe."""


def examined(dsn: str) -> dict[str, CheckResult]:
    """What the doctor finds of the database and its tables, by check."""
    with TaskServer(dsn) as server:
        facts = server.store.diagnosis.facts()
    assert isinstance(facts, PostgreSQLFacts)
    settings = Settings(folder=None, dsn=parse_dsn(dsn))  # type: ignore[arg-type]
    return {one.check: one for one in postgresql.findings(facts, settings)}


def make(dsn: str) -> str:
    """Make a queue there in which all is well; its DSN."""
    with TaskServer(dsn) as server:
        server.create_tables()
        server.store.database.change("REVOKE CREATE ON SCHEMA public FROM PUBLIC")  # before version 15 all have it
    return dsn


def worse(found: dict[str, CheckResult]) -> dict[str, Level]:
    """What is not well, but for the durability."""
    return {name: one.level for name, one in found.items() if one.level is not Level.OK and name not in WELL}


@pytest.fixture
def made_dsn(postgresql_dsn: str) -> str:
    return make(postgresql_dsn)


@contextmanager
def opened(dsn: str, *statements: str) -> Iterator[psycopg.Connection[tuple[object, ...]]]:
    """A connection named `backup` in the midst of a transaction of these statements."""
    with closing(psycopg.connect(dsn, application_name="backup")) as connection:
        for statement in statements:
            connection.execute(statement.encode())
        yield connection


SNAPSHOT = ("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ", "SELECT 1")


def run_mend(dsn: str, pattern: str, mend: str) -> None:
    (statement, *_) = re.findall(pattern, mend)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(statement.encode())


# ---- who keeps dead rows, or holds tasks


def test_a_session_with_an_old_snapshot_is_named_with_the_statement_that_ends_it(
    made_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(made_dsn, *SNAPSHOT) as other:
        assert worse(examined(made_dsn)) == {}
        monkeypatch.setattr(vacuum, "MAX_TRANSACTION_SECONDS", 0.0)
        found = examined(made_dsn)
        assert worse(found) == {"transactions": Level.WARNING}
        words = found["transactions"].found
        assert f"the session {other.info.backend_pid} by postgres with backup from 127.0.0.1" in words
        assert re.search(r"idle in transaction, open since \d+ s$", words)
        run_mend(made_dsn, r"SELECT pg_terminate_backend\(\d+\)", found["transactions"].mend)
        wait_until(lambda: worse(examined(made_dsn)) == {})


def test_a_snapshot_in_another_database_keeps_none_of_our_rows(
    made_dsn: str, postgresql_server: PostgreSQLServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vacuum, "MAX_TRANSACTION_SECONDS", 0.0)
    with postgresql_server.database() as name, opened(postgresql_server.dsn(name), *SNAPSHOT):
        assert worse(examined(made_dsn)) == {}


def test_a_session_that_holds_new_tasks_is_named(made_dsn: str) -> None:
    with TaskServer(made_dsn) as server:
        server.add_tasks([{"task": "tasks.note"}] * 3)
    with opened(made_dsn, "SELECT * FROM jobs_queue WHERE id < 3 FOR UPDATE") as other:
        found = examined(made_dsn)["transactions"]
        assert found.level is Level.WARNING
        assert f"2 new tasks are held by the session {other.info.backend_pid} by postgres" in found.found
        assert f"pg_terminate_backend({other.info.backend_pid})" in found.mend
    assert worse(examined(made_dsn)) == {}


# ---- settings of an account, a database, a table


@pytest.mark.parametrize(
    ("change", "check", "level", "words"),
    [
        ("ALTER DATABASE {} SET default_transaction_read_only = on", "session_defaults", Level.WARNING, "read_only on"),
        ("ALTER DATABASE {} SET statement_timeout = '5s'", "session_defaults", Level.OK, "statement_timeout 5000"),
        ("ALTER DATABASE {} SET idle_session_timeout = '10s'", "wait_timeout", Level.WARNING, "idle for 10 s"),
        ("ALTER DATABASE {} CONNECTION LIMIT 5", "connections", Level.WARNING, "at most 5"),
        ("ALTER TABLE jobs_queue SET (autovacuum_enabled = off)", "autovacuum", Level.WARNING, "for jobs_queue"),
        ("GRANT CREATE ON SCHEMA public TO PUBLIC", "schema", Level.WARNING, "make functions in public"),
        (
            "CREATE SCHEMA other; CREATE TABLE other.jobs_queue_done (id int); "
            "ALTER DATABASE {} SET search_path = public, other",
            "schema",
            Level.WARNING,
            "jobs_queue_done in public, other",
        ),
        ("ALTER TABLE jobs_queue DISABLE TRIGGER notify_added", "triggers", Level.WARNING, "notify_added on jobs_q"),
        ("DROP TRIGGER notify_added ON jobs_queue", "triggers", Level.WARNING, "on jobs_queue"),
        (
            "INSERT INTO jobs_queue (id, task) VALUES (3, 'a'), (9, 'a')",
            "ids",
            Level.WARNING,
            "next id is 1, and 2 rows",
        ),
    ],
)
def test_what_is_set_in_the_queue_s_way_is_told(
    made_dsn: str, postgresql_server: PostgreSQLServer, change: str, check: str, level: Level, words: str
) -> None:
    name = made_dsn.rpartition("/")[2]
    ((known,),) = postgresql_server.execute("SELECT current_setting('idle_session_timeout', true) IS NOT NULL")
    if not known and check == "wait_timeout":
        pytest.skip("this server ends no session for being idle")
    postgresql_server.execute(*change.format(name).split("; "), database=name)
    found = examined(made_dsn)
    assert found[check].level is level
    assert words in found[check].found
    expected = {} if level is Level.OK else {check: level}
    assert worse(found) == expected


OUR_INDEXES = "SELECT COUNT(*) FROM pg_index WHERE indrelid >= 16384"


def assert_whole_after_init(dsn: str, table: str) -> None:
    """`create_tables` makes no index twice."""
    with TaskServer(dsn, table=table) as server, psycopg.connect(dsn, autocommit=True) as connection:
        indexes = connection.execute(OUR_INDEXES).fetchone()
        server.create_tables()
        facts = server.store.diagnosis.facts()
        assert isinstance(facts, PostgreSQLFacts)
        assert (facts.lost_triggers, facts.faults) == ((), ())
        assert server.add_task("tasks.a") == 1
        assert connection.execute(OUR_INDEXES).fetchone() == indexes


def test_tables_that_were_renamed_as_upgrading_says_are_whole_after_init(
    made_dsn: str, postgresql_server: PostgreSQLServer
) -> None:
    (rename,) = [block.text for block in blocks("docs/upgrading.md") if "RENAME TO" in block.text]
    postgresql_server.execute(rename, database=made_dsn.rpartition("/")[2])
    assert_whole_after_init(made_dsn, "letters")


def test_tables_that_were_moved_to_another_schema_are_whole_after_init(
    made_dsn: str, postgresql_server: PostgreSQLServer
) -> None:
    name = made_dsn.rpartition("/")[2]
    made = "FROM pg_class WHERE relkind = 'r' AND relname ~ '^jobs'"
    each = f"SELECT format('ALTER TABLE public.%I SET SCHEMA mine', relname) {made}"
    postgresql_server.execute("CREATE SCHEMA mine", f"ALTER DATABASE {name} SET search_path = mine", database=name)
    statements = [sql for (sql,) in postgresql_server.execute(each, database=name)]
    postgresql_server.execute(*statements, database=name)
    assert_whole_after_init(made_dsn, "jobs_queue")


def test_the_statement_that_mends_ids_ahead_lets_the_next_insert_in(made_dsn: str) -> None:
    with psycopg.connect(made_dsn, autocommit=True) as connection:
        connection.execute("INSERT INTO jobs_queue (id, task) VALUES (1, 'a'), (7, 'a'), (9223372036854775807, 'a')")
    run_mend(made_dsn, r"SELECT setval[^;]*", examined(made_dsn)["ids"].mend)
    assert worse(examined(made_dsn)) == {}
    with TaskServer(made_dsn) as server:
        assert server.add_task("tasks.a") == 8


def test_a_table_whose_name_is_a_word_of_sql_is_examined_like_any_other(postgresql_dsn: str) -> None:
    with TaskServer(postgresql_dsn, table="Order") as server:
        server.create_tables()
        facts = server.store.diagnosis.facts()
        assert isinstance(facts, PostgreSQLFacts)
        assert (facts.faults, facts.denied, facts.lost_triggers, facts.forged_ids) == ((), (), (), ())
        assert {"claim_by_group", "claim_any_group"} <= set(facts.claim_indexes)
        server.store.database.change("INSERT INTO \"Order\" (id, task) VALUES (5, 'a')")
        facts = server.store.diagnosis.facts()
        assert isinstance(facts, PostgreSQLFacts)
        (ahead,) = facts.ids_ahead
        server.store.database.fetch(ahead.mend)
        assert server.add_task("tasks.a") == 6


def test_the_doctor_leaves_nothing_behind(made_dsn: str) -> None:
    everything = "SELECT relname FROM pg_class WHERE relname LIKE 'jobs_queue%' ORDER BY relname"
    with TaskServer(made_dsn) as server:
        before = server.store.database.fetch(everything)
        server.store.diagnosis.facts()
        assert server.store.database.fetch(everything) == before


def test_an_account_that_may_make_no_temporary_tables_says_so(
    made_dsn: str, postgresql_server: PostgreSQLServer
) -> None:
    name = made_dsn.rpartition("/")[2]
    postgresql_server.execute(
        f"CREATE ROLE {name} LOGIN PASSWORD 'x'",
        f"REVOKE TEMPORARY ON DATABASE {name} FROM PUBLIC",
        f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {name}",
        database=name,
    )
    try:
        found = examined(re.sub("//[^@]*@", f"//{name}:x@", made_dsn))
        assert found["tables"].level is Level.UNKNOWN
        assert "TEMPORARY" in found["tables"].mend
        assert found["ids"].level is Level.UNKNOWN or found["ids"].level is Level.OK
        assert found["claim_index"].level is Level.OK
    finally:
        postgresql_server.execute(f"DROP OWNED BY {name}", f"DROP ROLE {name}", database=name)


def test_in_an_encoding_that_lacks_letters_no_queue_is_made(postgresql_server: PostgreSQLServer) -> None:
    name = postgresql_server.create_database()
    postgresql_server.drop_database(name)
    postgresql_server.execute(f"CREATE DATABASE {name} ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
    try:
        with pytest.raises(DatabaseError, match="encoding is LATIN1"):
            make(postgresql_server.dsn(name))
    finally:
        postgresql_server.drop_database(name)


def test_a_pooler_of_transactions_is_noticed_and_all_else_is_seen_through_it(made_dsn: str) -> None:
    if find_program("pgbouncer") is None:
        without("pgbouncer is not installed")
    with pooled(made_dsn) as dsn:
        found = examined(dsn)
    assert worse(found) == {"pooler": Level.WARNING}


# ---- a server of its own


@pytest.fixture(scope="module")
def own_server() -> Iterator[PostgreSQL]:
    """Durable, and able to prepare transactions and to have a standby."""
    if programs_folder() is None:
        without("PostgreSQL is not installed (postgres not found)")
    with PostgreSQL(True, "max_prepared_transactions=5", "autovacuum=off", "wal_level=replica") as server:
        yield server


@pytest.fixture
def own_dsn(own_server: PostgreSQL) -> Iterator[str]:
    with own_server.database() as name:
        yield make(own_server.dsn(name))


@pytest.mark.long
def test_a_server_with_autovacuum_off_is_a_warning_and_a_safe_one_is_well(own_dsn: str) -> None:
    found = examined(own_dsn)
    assert worse(found) == {"autovacuum": Level.WARNING}
    assert found["durability"].level is Level.OK
    with psycopg.connect(own_dsn, autocommit=True) as connection:
        connection.execute("ALTER ROLE postgres SET synchronous_commit = off")
        try:
            assert examined(own_dsn)["durability"].level is Level.WARNING
        finally:
            connection.execute("ALTER ROLE postgres RESET synchronous_commit")


@pytest.mark.long
def test_a_prepared_transaction_is_named_with_the_statement_that_ends_it(
    own_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with TaskServer(own_dsn) as server:
        server.add_task("tasks.a")
    with psycopg.connect(own_dsn) as connection:
        connection.execute("SELECT * FROM jobs_queue FOR UPDATE")
        connection.execute("PREPARE TRANSACTION 'it''s lost'")
    found = examined(own_dsn)["transactions"]
    assert "1 new task is held by the prepared transaction 'it's lost' of postgres" in found.found
    with psycopg.connect(own_dsn, autocommit=True) as connection:
        connection.execute("DELETE FROM jobs_queue WHERE FALSE")
    monkeypatch.setattr(vacuum, "MAX_TRANSACTION_SECONDS", 0.0)
    run_mend(own_dsn, r"ROLLBACK PREPARED '(?:[^']|'')*'", found.mend)
    assert examined(own_dsn)["transactions"].level is Level.OK


@pytest.mark.long
def test_a_standby_takes_no_writes_and_its_long_query_keeps_dead_rows(
    own_server: PostgreSQL, own_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if CHOSEN_PROGRAMS:
        pytest.skip("a server that was only unpacked lacks programs and libraries of a standby")
    programs = programs_folder()
    assert programs is not None
    with PostgreSQL(True, "hot_standby_feedback=on", "wal_receiver_status_interval=1s") as standby:
        standby.stop()
        base = f"host={own_server.socket_folder} port={own_server.port} user=postgres password={own_server.password}"
        standby._run_to_end("rm", "-rf", f"{standby.folder}/data")
        backup = ["-d", base, "-D", f"{standby.folder}/data", "-R", "-X", "stream", "-c", "fast", "-C", "-S", "copy"]
        standby._run_to_end(str(programs / "pg_basebackup"), *backup)
        standby._settings = [*standby._settings, "max_prepared_transactions=5"]
        standby.password = own_server.password
        standby.start()
        dsn = standby.dsn(own_dsn.rpartition("/")[2])
        found = examined(dsn)
        assert (found["standby"].level, found["tables"].level) == (Level.BROKEN, Level.UNKNOWN)
        with opened(dsn, *SNAPSHOT):
            monkeypatch.setattr(vacuum, "MAX_TRANSACTIONS", -1)
            monkeypatch.setattr(vacuum, "MAX_NAMED", 10)
            wait_until(lambda: "the replication slot 'copy'" in examined(own_dsn)["transactions"].found)
            assert "pg_drop_replication_slot('copy')" in examined(own_dsn)["transactions"].mend
        standby.stop()
        own_server.execute("SELECT pg_drop_replication_slot('copy')")
