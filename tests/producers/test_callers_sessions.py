"""A caller's session and its forms: what goes over it, how it stays, and how texts and instants come through it."""

from __future__ import annotations

from contextlib import closing, suppress
from typing import Any

import pymysql
import pytest
from psycopg import IsolationLevel

from taskserver.errors import Conflict
from tests.support.databases import EACH_SERVER
from tests.support.shops import ODD_TEXT, Shop

KEY = "schlüssel 日本 🎉 ' \\ \" %"

# ---- what goes over the connection


def test_nothing_is_sent_but_inserts_a_look_and_the_drivers_own_begin(sqlite_shop: Shop) -> None:
    connection = sqlite_shop.open()
    sent: list[str] = []
    connection.set_trace_callback(sent.append)
    ids = sqlite_shop.add_some(connection)
    assert [sql for sql in sent if not sql.startswith(("INSERT INTO ", "SELECT "))] == ["BEGIN "]
    assert len(sent) > len(ids) / 2
    connection.commit()
    sqlite_shop.assert_added(ids)


CHANGE_BY_THEMSELVES = {"timestamp", "identity", "last_gtid", "last_insert_id", "statement_id", "in_transaction"}
CHANGE_BY_THEMSELVES |= {"warning_count", "error_count"}
SETTINGS = {
    "mysql": (
        "SET time_zone = '+05:00'",
        "SET SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE",
        "SET sql_mode = 'ANSI_QUOTES,NO_BACKSLASH_ESCAPES,PIPES_AS_CONCAT,IGNORE_SPACE,NO_ZERO_DATE'",
        "SET innodb_lock_wait_timeout = 17",
        "SET NAMES latin1",
    ),
    "postgresql": (
        "SET timezone = 'Asia/Kathmandu'",
        "SET datestyle = 'German, DMY'",
        "SET intervalstyle = 'sql_standard'",
        "SET default_transaction_isolation = 'serializable'",
        "SET lock_timeout = '17s'",
        "SET bytea_output = 'escape'",
        "SET enable_indexscan = off",
        "SET client_encoding = 'LATIN1'",
    ),
}
SETTINGS_OF = {
    "mysql": "SHOW SESSION VARIABLES",
    # Without those of a language, which is loaded when a trigger in it first runs.
    "postgresql": "SELECT name, setting FROM pg_settings WHERE strpos(name, '.') = 0",
}


@EACH_SERVER
@pytest.mark.parametrize(("autocommit", "begun"), [(False, True), (True, False)], ids=["begun", "autocommit"])
def test_a_session_is_after_it_as_it_was_before(shop: Shop, autocommit: bool, begun: bool) -> None:
    connection = shop.open(autocommit=autocommit)
    cursor = connection.cursor()

    def session() -> dict[str, str]:
        cursor.execute(SETTINGS_OF[shop.kind])
        return {name: value for name, value in cursor.fetchall() if name not in CHANGE_BY_THEMSELVES}

    for statement in SETTINGS[shop.kind]:
        cursor.execute(statement)
    connection.commit()
    if begun:
        shop.order(connection)
        cursor.execute("SAVEPOINT theirs")
    before = session()
    ids = shop.add_some(connection)
    assert session() == before
    assert len(shop.rows()) == (0 if begun else len(ids) - 1)
    if begun:
        cursor.execute("ROLLBACK TO SAVEPOINT theirs")
        connection.commit()
        assert (shop.customers(), shop.rows()) == (["Ada"], [])
    else:
        shop.assert_added(ids)
        assert shop.instants("due_at")[-1] == "2031-03-04 05:06:07.089000"
        assert shop.due_in()[1] == pytest.approx(60, abs=30)


# ---- texts


FORMS: dict[str, list[dict[str, Any]]] = {
    "mysql": [
        {"charset": "latin1"},
        {"charset": "gbk"},
        {"charset": "utf8mb4", "sql_mode": "NO_BACKSLASH_ESCAPES,ANSI_QUOTES"},
    ],
    "postgresql": [{"client_encoding": "LATIN1"}, {"client_encoding": "SQL_ASCII"}],
}


@EACH_SERVER
def test_texts_come_through_a_session_of_any_character_set_and_mode(shop: Shop) -> None:
    add = shop.server.add_task
    for form in FORMS[shop.kind]:
        with closing(shop.open(**form)) as connection:
            ids = [
                add("tasks.note", [ODD_TEXT], connection=connection),
                add("tasks.note", {"größe": ODD_TEXT}, unique_key=KEY, connection=connection),
                shop.server.add_pipeline(["tasks.first", "tasks.größe"], [ODD_TEXT], connection=connection),
            ]
            assert add("tasks.note", unique_key=KEY, connection=connection) == ids[1], form
            connection.commit()
        assert shop.added() == [[ODD_TEXT], {"größe": ODD_TEXT}, [ODD_TEXT]], form
        assert shop.rows("id") == [(task_id,) for task_id in ids]
        assert shop.server.get(ids[2]).task == "tasks.first"  # type: ignore[union-attr]
        assert r"tasks.gr\u00f6\u00dfe" in shop.rows("stages")[2][0]
        assert add("tasks.note", unique_key=KEY) == ids[1], form
        shop.sql("DELETE FROM jobs_queue")


# ---- keys that others have committed


def test_a_key_that_another_committed_since_an_old_snapshot_is_found(mysql_shop: Shop) -> None:
    connection = mysql_shop.open()
    cursor = connection.cursor()
    cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    with suppress(pymysql.MySQLError):
        cursor.execute("SET innodb_snapshot_isolation = OFF")  # newer ones would call it a conflict
    cursor.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT")
    first = mysql_shop.server.add_task("tasks.note", unique_key="k")
    cursor.execute("SELECT COUNT(*) FROM jobs_queue")
    assert cursor.fetchall() == ((0,),)
    assert mysql_shop.server.add_task("tasks.note", unique_key="k", connection=connection) == first
    described = [{"task": "tasks.note", "unique_key": key} for key in ("j", "k", "j")]
    new, *again = mysql_shop.server.add_tasks(described, connection=connection)
    assert again == [first, new]
    connection.commit()
    assert mysql_shop.rows("id") == [(first,), (new,)]


def test_a_key_that_another_committed_since_an_old_snapshot_is_a_conflict_on_postgresql(postgresql_shop: Shop) -> None:
    shop, connection = postgresql_shop, postgresql_shop.open()
    connection.isolation_level = IsolationLevel.REPEATABLE_READ
    shop.order(connection)
    first = shop.server.add_task("tasks.note", unique_key="k")
    with pytest.raises(Conflict, match=r"40001\): roll your transaction back, and do all of it again"):
        shop.server.add_task("tasks.note", unique_key="k", connection=connection)
    connection.rollback()
    shop.order(connection)
    assert shop.server.add_task("tasks.note", unique_key="k", connection=connection) == first


def test_a_task_that_stands_is_not_taken_before_the_caller_commits(postgresql_shop: Shop) -> None:
    shop, connection = postgresql_shop, postgresql_shop.open()
    claims = shop.server.store.claims
    first = shop.server.add_task("tasks.note", unique_key="k")
    assert shop.server.add_task("tasks.note", unique_key="k", connection=connection) == first
    assert claims.claim(1, ()).tasks == []
    connection.commit()
    assert [task.id for task in claims.claim(1, ()).tasks] == [first]
