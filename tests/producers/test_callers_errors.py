"""What goes wrong on a caller's own connection: each failure is an error of ours that says what the caller does now."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import psycopg
import pymysql
import pytest

from taskserver import DatabaseError, InvalidTask, TablesMissing, TaskServer
from taskserver.errors import Conflict, ConnectionLost
from tests.support.databases import EACH_SERVER
from tests.support.processes import wait_until
from tests.support.servers import MySQLServer
from tests.support.shops import ODD_TEXT, Shop
from tests.support.websites import WEB_PASSWORD, web_user

# ---- what is no connection to this queue

OF_TYPE = "connection is of the type {}; allowed: an open connection .*PyMySQL"


def test_what_is_no_connection_is_refused(sqlite_shop: Shop) -> None:
    for wrong, words in (
        (sqlite_shop.dsn, OF_TYPE.format("str")),
        (sqlite_shop.open().cursor(), OF_TYPE.format(r"\w*Cursor")),
        (sqlite3.Connection, OF_TYPE.format("type")),
        (type("AsyncSession", (), {})(), "connection is for asyncio; allowed"),
    ):
        with pytest.raises(InvalidTask, match=words) as caught:
            sqlite_shop.server.add_task("tasks.note", connection=wrong)
        assert "sqlite:///" not in str(caught.value)
    assert sqlite_shop.rows() == []


def test_a_connection_to_another_kind_of_database_is_refused(mysql_shop: Shop, tmp_path: Path) -> None:
    with pytest.raises(InvalidTask, match="leads to SQLite, and the queue of TASKSERVER_DSN is in MySQL; allowed"):
        mysql_shop.server.add_task("tasks.note", connection=sqlite3.connect(":memory:"))
    with TaskServer(f"sqlite:///{tmp_path}/x.db") as server, pytest.raises(InvalidTask, match="leads to MySQL, and"):
        server.add_task("tasks.note", connection=mysql_shop.open())


def test_a_connection_that_reaches_no_tables_is_an_error_that_says_so(shop: Shop) -> None:
    shop.sql("ALTER TABLE jobs_queue RENAME TO elsewhere")
    with pytest.raises(TablesMissing, match="reaches no tables of jobs_queue: is it to the database of TASKSERVER_DSN"):
        shop.server.add_task("tasks.note", connection=shop.open())


def test_a_connection_to_another_database_of_the_server_adds_to_the_queue(
    mysql_shop: Shop, mysql_server: MySQLServer
) -> None:
    with mysql_server.database() as name:
        with TaskServer(mysql_server.dsn(name)) as other:
            other.store.tables.create()
        for database in (name, None):
            connection = mysql_shop.open(database=database)
            add = partial(mysql_shop.server.add_task, "tasks.note", connection=connection)
            first = add([1], unique_key="k")
            assert add([1], unique_key="k") == first
            add([2], depends_on=[first])
            connection.commit()
            assert mysql_shop.added() == [[1], [2]], database
            mysql_shop.sql("DELETE FROM jobs_queue")


# ---- connections that fail


def test_a_closed_connection_is_an_error_that_says_so(shop: Shop) -> None:
    connection = shop.open()
    connection.close()
    with pytest.raises(DatabaseError, match=r"on the connection that was given: .*closed") as caught:
        shop.server.add_task("tasks.note", connection=connection)
    assert isinstance(caught.value.__cause__, (sqlite3.Error, pymysql.Error, psycopg.Error))


def test_a_connection_of_psycopg2_serves_and_its_errors_are_ours(postgresql_shop: Shop) -> None:
    shop = postgresql_shop
    psycopg2: Any = import_module("psycopg2")  # which has no types
    with closing(psycopg2.connect(**shop.place, client_encoding="LATIN1")) as connection:
        ids = shop.add_some(connection)
        connection.commit()
        shop.assert_added(ids)
        assert shop.added()[0] == [ODD_TEXT]
        with TaskServer(shop.dsn, table="elsewhere") as other, pytest.raises(TablesMissing, match="in its search_path"):
            other.add_task("tasks.note", connection=connection)
        with pytest.raises(DatabaseError, match="current transaction is aborted"):
            shop.server.add_task("tasks.note", connection=connection)
    with pytest.raises(DatabaseError, match=r"that was given: .*closed.*: open another, and do all"):
        shop.server.add_task("tasks.note", connection=connection)


@EACH_SERVER
def test_a_connection_that_breaks_is_an_error_that_says_so(shop: Shop) -> None:
    connection = shop.open()
    shop.order(connection)
    if shop.is_postgresql:
        pid = connection.info.backend_pid
        shop.sql("SELECT pg_terminate_backend(?)", pid)
        wait_until(lambda: not shop.sql("SELECT 1 FROM pg_stat_activity WHERE pid = ?", pid))
    else:
        shop.sql(f"KILL {connection.thread_id()}")
    for _ in range(2):
        with pytest.raises(ConnectionLost, match="open another, and do all of your transaction again"):
            shop.server.add_task("tasks.note", connection=connection)
    assert (shop.customers(), shop.rows()) == ([], [])


WAIT_BRIEFLY = {"postgresql": "SET lock_timeout = '200ms'", "mysql": "SET innodb_lock_wait_timeout = 1"}


def test_what_others_hold_is_a_conflict_that_only_the_caller_can_repeat(shop: Shop) -> None:
    holder, connection = shop.open(), shop.open(**({"timeout": 0.2} if shop.is_sqlite else {}))
    if shop.is_sqlite:
        holder.execute("BEGIN IMMEDIATE")
    else:
        connection.cursor().execute(WAIT_BRIEFLY[shop.kind])
        connection.commit()
        shop.order(connection)
        shop.server.add_task("tasks.note", ["theirs"], unique_key="k", connection=holder)
    with pytest.raises(Conflict, match="roll your transaction back, and do all of it again"):
        shop.server.add_task("tasks.note", unique_key="k", connection=connection)
    holder.rollback()
    connection.rollback()
    shop.order(connection)
    shop.server.add_task("tasks.note", ["again"], unique_key="k", connection=connection)
    connection.commit()
    assert (shop.customers(), shop.added()) == (["Ada"], [["again"]])


def test_a_missing_right_names_the_document_and_no_password(mysql_shop: Shop, mysql_server: MySQLServer) -> None:
    with web_user(mysql_server, mysql_shop.database, "orders") as user:
        connection = mysql_shop.open(user=user, password=WEB_PASSWORD)
        with pytest.raises(DatabaseError, match=r"that was given: .*denied.*docs/security\.md") as caught:
            mysql_shop.server.add_task("tasks.note", connection=connection)
        assert WEB_PASSWORD not in repr(caught.value) + repr(caught.value.__cause__)
        connection.close()
