"""Compact: the disk space of deleted rows is given back, and nobody is kept waiting for long."""

from __future__ import annotations

import re
import sqlite3
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from types import SimpleNamespace

import pytest

from taskserver import DatabaseError, TaskServer
from taskserver.cli.commands import history
from taskserver.stores import Store
from taskserver.stores.mysql import facts as of_mysql
from taskserver.stores.postgresql import facts as of_postgresql
from taskserver.stores.sqlite import facts as of_sqlite
from taskserver.stores.sqlite import session
from taskserver.stores.table_faults import table_faults
from tests.contract.accounts import account
from tests.support.kinds_of_rows import put, put_all_kinds
from tests.support.postgresql import pooled
from tests.support.queues import Queue
from tests.support.rows import connection_of
from tests.support.servers import MySQLServer

MEGABYTE = 1_000_000


def compact(store: Store, stages: slice = slice(None)) -> None:
    for rebuild in store.database.dialect.facts().rebuilds(store.database)[stages]:
        for table in rebuild.sizes(store.database):
            rebuild.run(store.database, table.name)


@contextmanager
def holding(dsn: str, *statements: str) -> Iterator[None]:
    """In the `with`, another connection has done these."""
    with closing(connection_of(dsn)) as connection:
        cursor = connection.cursor()
        for statement in statements:
            cursor.execute(statement)
            if cursor.description:
                cursor.fetchall()
        yield


def adds_beside(dsn: str, work: Callable[[], object]) -> float:
    """Do work in another thread, and add tasks all the time. Returns the seconds of the slowest addition."""
    slowest = 0.0
    with ThreadPoolExecutor(1) as pool, TaskServer(dsn) as producer:
        working = pool.submit(work)
        while not working.done():
            began_at = time.monotonic()
            producer.add_task("tasks.note")
            slowest = max(slowest, time.monotonic() - began_at)
        working.result()
    return slowest


def test_compact_gives_the_disk_back_and_keeps_the_rows(queue: Queue) -> None:
    put_all_kinds(queue)
    put(queue, 2, args=f'["{"x" * 600}"]')
    for _ in range(14):
        queue.sql("INSERT INTO jobs_queue (task, args, status) SELECT task, args, 2 FROM jobs_queue WHERE status = 2")
    queue.sql("DELETE FROM jobs_queue WHERE status = 2 AND id % 1000 <> 7")  # the file's last pages are not empty
    if queue.kind == "mysql":
        queue.sql("ANALYZE TABLE jobs_queue")  # the server does so some seconds after many changes
    before = queue.rows()
    assert len(before) > 15
    ended = queue.here("compact", "--yes")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "; about " in ended.stdout
    (sizes,) = re.findall(r"^(?:jobs_queue|taskserver.db) +([\d.]+) MB +([\d.]+) MB$", ended.stdout, re.MULTILINE)
    assert float(sizes[0]) > 8, ended.stdout
    assert float(sizes[1]) < 2, ended.stdout
    assert queue.rows() == before
    assert table_faults(queue.server.store.database) == []


# ---- MySQL and MariaDB


HOLDERS = {
    "a transaction that has read the table": ["START TRANSACTION", "SELECT * FROM jobs_queue LIMIT 1"],
    "a backup's lock": ["FLUSH TABLES WITH READ LOCK"],
    "a stage of a backup": ["BACKUP STAGE START", "BACKUP STAGE FLUSH", "BACKUP STAGE BLOCK_DDL"],
}


@pytest.mark.parametrize("holder", HOLDERS)
def test_on_mysql_it_ends_with_one_line_while_others_hold_the_table(
    mysql_queue_dsn: str, monkeypatch: pytest.MonkeyPatch, holder: str
) -> None:
    with TaskServer(mysql_queue_dsn) as server:
        version = server.store.database.fetch_value("SELECT VERSION()").lower()
        if holder == "a stage of a backup" and "maria" not in version:
            pytest.skip("MySQL has no such statement")

        def fail() -> None:
            began_at = time.monotonic()
            with pytest.raises(DatabaseError, match=r"another transaction holds it") as raised:
                compact(server.store)
            assert "\n" not in str(raised.value)
            assert time.monotonic() - began_at < 6

        with holding(mysql_queue_dsn, *HOLDERS[holder]), monkeypatch.context() as patch:
            patch.setattr(of_mysql, "MIN_CONFLICT_SECONDS", 0)
            if holder == "a backup's lock":
                fail()  # nobody could add a task anyway
            else:
                assert adds_beside(mysql_queue_dsn, fail) < 2.5
        compact(server.store)


def test_on_mysql_it_names_the_rights_that_it_needs(mysql_server: MySQLServer, mysql_queue_dsn: str) -> None:
    database = mysql_queue_dsn.rpartition("/")[2]
    rights, words = f"SELECT, INSERT, UPDATE, DELETE ON `{database}`.*", "init and compact need CREATE and ALTER"
    with account(mysql_server, database, rights) as dsn, TaskServer(dsn) as server:
        server.add_task("tasks.note")
        with pytest.raises(DatabaseError, match=words):
            compact(server.store)


def test_in_a_galera_cluster_it_says_that_writers_wait() -> None:
    for value, locks in (("ON", True), ("OFF", False)):
        found = SimpleNamespace(fetch=lambda sql, value=value: [("wsrep_on", value)])
        (rebuild,) = of_mysql.FACTS.rebuilds(found)
        assert (rebuild.locks_writers, "cluster" in rebuild.words) == (locks, locks)


# ---- PostgreSQL

READ = ["BEGIN", "SELECT * FROM jobs_queue LIMIT 1"]
INVALID = "SELECT relname FROM pg_index JOIN pg_class ON oid = indexrelid WHERE NOT indisvalid"


@pytest.mark.parametrize(("stage", "longest"), [(0, 0.9), (1, 2.5)])
def test_on_postgresql_it_ends_with_one_line_while_others_hold_the_table(
    postgresql_queue_dsn: str, monkeypatch: pytest.MonkeyPatch, stage: int, longest: float
) -> None:
    monkeypatch.setattr(of_postgresql, "PATIENT", "SET lock_timeout = '300ms'")
    with TaskServer(postgresql_queue_dsn) as server:
        database = server.store.database

        def fail() -> None:
            database.change("SET lock_timeout = '10s'")  # as the first stage leaves it
            with pytest.raises(DatabaseError, match=r"lock timeout .*another transaction holds it") as raised:
                of_postgresql.REBUILDS[stage].run(database, "jobs_queue")
            assert "\n" not in str(raised.value)

        with holding(postgresql_queue_dsn, *READ):
            assert adds_beside(postgresql_queue_dsn, fail) < longest
        compact(server.store)
        assert database.fetch(INVALID) == []


def test_on_postgresql_it_drops_what_a_killed_one_left(postgresql_queue_dsn: str) -> None:
    with TaskServer(postgresql_queue_dsn) as server:
        database = server.store.database
        for name in ("jobs_queue_x_ccnew", "jobs_queue_x_ccold1"):
            database.change(f"CREATE INDEX {name} ON {{table}} (id)")
            database.change(f"UPDATE pg_index SET indisvalid = FALSE WHERE indexrelid = CAST('{name}' AS regclass)")
        compact(server.store)
        assert database.fetch(INVALID) == []


def test_behind_a_transaction_pooler_it_does_nothing(postgresql_queue_dsn: str) -> None:
    with pooled(postgresql_queue_dsn) as dsn, TaskServer(dsn) as server:
        add = server.add_task("tasks.note")
        with pytest.raises(DatabaseError, match="not a transaction pooler"):
            compact(server.store)
        assert server.get(add) is not None


# ---- SQLite


def test_on_sqlite_it_says_what_keeps_the_file_large(sqlite_queue_dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = sqlite_queue_dsn.removeprefix("sqlite:///")

    def sizes() -> tuple[int, ...]:
        ((_, size, used),) = of_sqlite.REBUILD.sizes(server.store.database)
        return size, used

    def fail(words: str, *statements: str) -> None:
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            for statement in statements:
                other.execute(statement).fetchall()
            with pytest.raises(DatabaseError, match=words):
                compact(server.store)

    monkeypatch.setattr(session, "LOCK_WAIT_SECONDS", 0.2)
    with TaskServer(sqlite_queue_dsn) as server:
        server.add_tasks([{"task": "tasks.note", "args": ["x" * 1000]}] * 2000)
        server.store.database.conflict_seconds = 0
        fail("locked", "BEGIN IMMEDIATE")
        server.store.database.change("DELETE FROM {table}")
        fail("another process reads", "BEGIN", "SELECT COUNT(*) FROM jobs_queue")
        assert sizes()[0] > 2 * MEGABYTE
        compact(server.store)
        assert sizes()[0] < MEGABYTE / 4
        with monkeypatch.context() as patch:
            patch.setattr(of_sqlite, "disk_usage", lambda folder: SimpleNamespace(free=sizes()[1] - 1))
            fail(r"no space for the copy: 0\.\d MB must be free on its disk")


@pytest.mark.parametrize(("answer", "code"), [("y\n", 0), ("n\n", 2), ("\n", 2), ("", 2), (None, 2)])
def test_it_asks_before_tasks_have_to_wait(
    sqlite_queue: Queue, monkeypatch: pytest.MonkeyPatch, answer: str | None, code: int
) -> None:
    """None: there is no terminal, as in cron."""
    stdin = SimpleNamespace(isatty=lambda: answer is not None, readline=lambda: answer)
    monkeypatch.setattr(history, "sys", SimpleNamespace(stdin=stdin))
    sqlite_queue.add_many([(0, 0)] * 500)
    sqlite_queue.sql("DELETE FROM jobs_queue")
    ended = sqlite_queue.here("compact")
    assert (ended.returncode, "Go on? [y/N] " in ended.stdout) == (code, answer is not None)
    assert "nobody can add, claim or finish a task meanwhile; about 1 s" in ended.stdout
    assert ("add --yes" in ended.stderr) == (code != 0)
    ((free_pages,),) = sqlite_queue.sql("PRAGMA freelist_count")
    assert (free_pages > 0) == (code != 0)
