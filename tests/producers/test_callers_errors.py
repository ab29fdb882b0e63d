"""What goes wrong on a caller's own connection: each failure is an error of ours that says what the caller does now."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pymysql
import pytest

from taskserver import DatabaseError, InvalidTask, TablesMissing, TaskServer
from taskserver.errors import Conflict, ConnectionLost, TooLong
from taskserver.stores.mysql import callers as mysql_callers
from tests.support.processes import wait_until
from tests.support.servers import MySQLServer
from tests.support.shops import Shop
from tests.support.turns import EACH_SERVER
from tests.support.websites import WEB_PASSWORD, web_user

# ---- what is no connection


class Cursorless:
    cursor = None


@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        (lambda shop: shop.dsn, "a str"),
        (lambda shop: shop.open().cursor(), r"a \w*Cursor"),
        (lambda shop: Cursorless(), "a Cursorless"),
        (lambda shop: sqlite3.Connection, "the class Connection"),
    ],
)
def test_what_is_no_connection_is_refused(shop: Shop, wrong: Callable[[Shop], object], what: str) -> None:
    given = wrong(shop)
    for add in (
        partial(shop.server.add_task, "tasks.note"),
        partial(shop.server.add_pipeline, ["tasks.note"]),
        partial(shop.server.add_tasks, [{"task": "tasks.note"}]),
    ):
        told = rf"connection is {what}; allowed: an open connection .*PyMySQL"
        with pytest.raises(InvalidTask, match=told) as caught:
            add(connection=given)
        assert "mysql://" not in str(caught.value)
    assert shop.rows() == []


class Unknown:
    """A connection whose driver does not say how it writes values."""

    closed = 0

    def cursor(self) -> Unknown:
        return self

    def close(self) -> None:
        self.closed += 1


def test_a_driver_that_does_not_say_how_it_marks_values_is_refused(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    connection = Unknown()
    with pytest.raises(InvalidTask, match="connection is an Unknown without a paramstyle; allowed"):
        shop.server.add_task("tasks.note", connection=connection)
    monkeypatch.setitem(globals(), "paramstyle", "numeric")
    with pytest.raises(InvalidTask, match="connection is one with the paramstyle numeric; allowed"):
        shop.server.add_task("tasks.note", connection=connection)
    assert connection.closed == 2


# ---- connections to other databases


def test_a_connection_to_another_kind_of_database_is_refused_before_anything_is_sent(
    mysql_shop: Shop, tmp_path: Path
) -> None:
    other = sqlite3.connect(":memory:")
    sent: list[str] = []
    other.set_trace_callback(sent.append)
    with pytest.raises(InvalidTask, match="is one to SQLite, and the queue of TASKSERVER_DSN lies in MySQL; allowed"):
        mysql_shop.server.add_task("tasks.note", connection=other)
    assert sent == []
    with TaskServer(f"sqlite:///{tmp_path}/x.db") as server, pytest.raises(InvalidTask, match="is one to MySQL, and"):
        server.add_task("tasks.note", connection=mysql_shop.open())


@pytest.mark.parametrize("place", ["other.db", ":memory:", ""])
def test_a_connection_to_another_file_is_refused_though_it_has_the_tables_of_a_queue(
    sqlite_shop: Shop, tmp_path: Path, place: str
) -> None:
    path = tmp_path / place if place.endswith(".db") else place
    with TaskServer(f"sqlite:///{tmp_path / 'other.db'}") as other:
        other.store.tables.create()
    with closing(sqlite3.connect(path)) as connection:
        with pytest.raises(InvalidTask, match=r"connection is one to .*, and the queue of TASKSERVER_DSN lies in .*db"):
            sqlite_shop.server.add_task("tasks.note", connection=connection)
        assert not connection.in_transaction
    assert sqlite_shop.rows() == []


def test_a_connection_to_a_file_of_its_own_that_attached_the_queues_serves(sqlite_shop: Shop, tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection:
        connection.execute("ATTACH DATABASE ? AS queue", (str(sqlite_shop.path),))
        sqlite_shop.server.add_task("tasks.note", [1], connection=connection)
        connection.commit()
    assert sqlite_shop.added() == [[1]]


@pytest.mark.parametrize("before", ["", "ATTACH DATABASE '{other}' AS first", "CREATE TEMP TABLE jobs_queue (id)"])
def test_a_connection_that_finds_other_tables_before_the_queues_is_refused(
    sqlite_shop: Shop, tmp_path: Path, before: str
) -> None:
    """As of a program that moves tasks from one queue to another."""
    with TaskServer(f"sqlite:///{tmp_path / 'other.db'}") as other:
        other.store.tables.create()
    main = "shop.db" if before else "other.db"
    with closing(sqlite3.connect(tmp_path / main)) as connection:
        connection.execute(before.format(other=tmp_path / "other.db"))
        connection.execute('ATTACH DATABASE ? AS "the ""queue"', (str(sqlite_shop.path),))
        with pytest.raises(InvalidTask, match=r"connection is one to .* \(as (main|first|temp)\), and the queue"):
            sqlite_shop.server.add_task("tasks.note", connection=connection)
    assert sqlite_shop.rows() == []


@pytest.mark.parametrize("has_tables", [False, True])
def test_a_connection_to_another_database_of_the_server_adds_to_the_queue(
    mysql_shop: Shop, mysql_server: MySQLServer, has_tables: bool
) -> None:
    with mysql_server.database() as name:
        if has_tables:
            with TaskServer(mysql_server.dsn(name)) as other:
                other.store.tables.create()
        for database in (name, None):
            connection = mysql_shop.open(database=database)
            add = partial(mysql_shop.server.add_task, "tasks.note", connection=connection)
            first = add([1], unique_key="k")
            assert add([1], unique_key="k") == first
            add([2], depends_on=[first])
            connection.commit()
            assert mysql_shop.added() == [[1], [2]]
            mysql_shop.sql("DELETE FROM jobs_queue")


def test_a_queue_that_is_not_where_the_connection_leads_is_told_as_such(mysql_shop: Shop) -> None:
    mysql_shop.sql("DROP TABLE jobs_queue")
    with pytest.raises(TablesMissing, match="reaches no tables of jobs_queue: is it to the database of TASKSERVER_DSN"):
        mysql_shop.server.add_task("tasks.note", connection=mysql_shop.open())


# ---- connections that fail


def test_a_closed_connection_is_an_error_that_says_so(shop: Shop) -> None:
    connection = shop.open()
    connection.close()
    with pytest.raises(DatabaseError, match=r"on the connection that was given: .*closed") as caught:
        shop.server.add_task("tasks.note", connection=connection)
    assert isinstance(caught.value.__cause__, (sqlite3.Error, pymysql.Error, psycopg.Error))


@EACH_SERVER
def test_a_connection_that_breaks_is_an_error_that_says_so(shop: Shop) -> None:
    connection = shop.open()
    shop.order(connection)
    if shop.is_postgresql:
        shop.sql(f"SELECT pg_terminate_backend({connection.info.backend_pid}, 1000)")
    else:
        shop.sql(f"KILL {connection.thread_id()}")
    for _ in range(2):
        with pytest.raises(ConnectionLost, match="open another, and do all of your transaction again"):
            shop.server.add_task("tasks.note", connection=connection)
    assert (shop.customers(), shop.rows()) == ([], [])


# A view of the processes, as that of transactions is kept for as long as one goes on asking.
WAITING = "SELECT COUNT(*) FROM information_schema.processlist WHERE id = ? AND info LIKE 'INSERT INTO%'"


def test_a_deadlock_is_told_and_nothing_is_done_again(mysql_shop: Shop) -> None:
    connection, other = mysql_shop.open(), mysql_shop.open()
    add = mysql_shop.server.add_task
    add("tasks.note", unique_key="a", connection=other)
    for number in range(20):  # who changed more stays
        add("tasks.note", [number], connection=other)
    mysql_shop.order(connection)
    add("tasks.note", unique_key="b", connection=connection)
    waits = threading.Thread(target=partial(add, "tasks.note", unique_key="b", connection=other))
    waits.start()
    wait_until(lambda: mysql_shop.sql(WAITING, other.thread_id()) == [(1,)])
    with pytest.raises(Conflict, match="do all of it again"):
        add("tasks.note", unique_key="a", connection=connection)
    waits.join()
    connection.commit()  # of what the server has undone
    assert (mysql_shop.customers(), mysql_shop.rows()) == ([], [])
    other.commit()
    assert len(mysql_shop.rows()) == 22


def test_what_others_hold_is_a_conflict_that_only_the_caller_can_repeat(shop: Shop) -> None:
    holder, connection = shop.open(), shop.open(**({"timeout": 0.2} if shop.is_sqlite else {}))
    shop.order(connection)
    if not shop.is_sqlite:
        brief = "SET lock_timeout = '200ms'" if shop.is_postgresql else "SET innodb_lock_wait_timeout = 1"
        connection.cursor().execute(brief)
        if shop.is_postgresql:
            connection.commit()  # else the setting would be undone, too
            shop.order(connection)
        shop.server.add_task("tasks.note", ["theirs"], unique_key="k", connection=holder)
    else:
        connection.commit()
        holder.execute("BEGIN IMMEDIATE")
    with pytest.raises(Conflict, match="roll your transaction back, and do all of it again"):
        shop.server.add_task("tasks.note", unique_key="k", connection=connection)
    holder.rollback()
    if shop.is_postgresql:
        with pytest.raises(DatabaseError, match="an error went before in this transaction: roll it back, and"):
            shop.server.add_task("tasks.note", connection=connection)
        connection.rollback()
    shop.server.add_task("tasks.note", ["again"], unique_key="k", connection=connection)
    connection.commit()
    assert (shop.customers(), shop.added()) == (["Ada"], [["again"]])


def test_a_statement_that_is_too_long_is_told_as_such(mysql_shop: Shop) -> None:
    ((size,),) = mysql_shop.sql("SELECT @@GLOBAL.max_allowed_packet")
    mysql_shop.sql("SET GLOBAL max_allowed_packet = 65536")
    try:
        connection = mysql_shop.open()
        # Over TLS, old servers hang up before they can say why.
        told = r"raise the server's max_allowed_packet|MySQL server has gone away"
        with pytest.raises((TooLong, ConnectionLost), match=told):
            mysql_shop.server.add_task("tasks.note", ["x" * 100_000], connection=connection)
    finally:
        mysql_shop.sql("SET GLOBAL max_allowed_packet = ?", size)


def test_a_delay_beyond_what_the_column_holds_is_refused(mysql_shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mysql_callers, "LAST_SECOND", time.time() + 100)
    connection = mysql_shop.open()
    mysql_shop.server.add_task("tasks.note", delay=50, connection=connection)
    with pytest.raises(InvalidTask, match="delay is 200 seconds, which ends after 2038-01-18"):
        mysql_shop.server.add_task("tasks.note", delay=200, connection=connection)


def test_a_missing_right_names_the_document_and_no_password(mysql_shop: Shop, mysql_server: MySQLServer) -> None:
    with web_user(mysql_server, mysql_shop.database, "orders") as user:
        connection = mysql_shop.open(user=user, password=WEB_PASSWORD)
        with pytest.raises(DatabaseError, match=r"denied.*the account of that connection.*docs/security\.md") as caught:
            mysql_shop.server.add_task("tasks.note", connection=connection)
        assert WEB_PASSWORD not in repr(caught.value) + repr(caught.value.__cause__)
        connection.close()


# ---- what is left behind


@pytest.mark.parametrize("key", [None, "k"], ids=["", "key"])
@pytest.mark.parametrize("kind", [list, iter])
def test_a_wrong_task_of_several_is_found_before_anything_is_sent(shop: Shop, kind: Any, key: str | None) -> None:
    described = [{"task": "tasks.note", "unique_key": key}, {"task": "tasks.note", "unique_key": ""}]
    connection = shop.open()
    with pytest.raises(InvalidTask, match="task 2: unique_key"):
        shop.server.add_tasks(kind(described), connection=connection)
    connection.commit()
    assert shop.rows() == []


def test_every_cursor_is_closed_after_errors_too(shop: Shop) -> None:
    """Of a connection that a pool has wrapped: a cursor tells what it is of."""
    connection = shop.open()
    cursors: list[Any] = []

    class Wrapped:
        def cursor(self) -> Any:
            cursors.append(connection.cursor())
            return cursors[-1]

    ids = shop.add_some(Wrapped())
    connection.commit()
    shop.assert_added(ids)
    with pytest.raises(InvalidTask):
        shop.server.add_tasks(iter([{"task": "tasks.note"}, {}]), connection=Wrapped())
    with TaskServer(shop.dsn, table="elsewhere") as server, pytest.raises(TablesMissing):
        server.add_task("tasks.note", connection=Wrapped())
    assert len(cursors) == 5 + 2
    for cursor in cursors:
        with pytest.raises((sqlite3.ProgrammingError, pymysql.ProgrammingError, psycopg.InterfaceError)):
            cursor.execute("SELECT 1")
