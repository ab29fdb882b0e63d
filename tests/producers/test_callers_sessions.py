"""A caller's session and its forms: what goes over it, how it stays, and how texts and instants come through it."""

from __future__ import annotations

import json
import re
import sqlite3
from collections import UserDict
from contextlib import closing, suppress
from datetime import datetime, timezone
from typing import Any

import pymysql
import pytest
from pymysql.cursors import DictCursor, SSCursor, SSDictCursor

from tests.support.servers import MySQLServer
from tests.support.shops import AT, FALL, LEAP, ODD_TEXT, Shop, zone_with_summer_time

# ---- what goes over the connection

OURS = re.compile(r"(INSERT INTO|SELECT) ")


class Recording(pymysql.connections.Connection):
    """Keeps what is sent."""

    sent: list[str]

    def _execute_command(self, command: int, sql: Any) -> None:
        text = sql.decode("utf-8", "replace") if isinstance(sql, bytes) else str(sql)
        self.__dict__.setdefault("sent", []).append(text)
        super()._execute_command(command, sql)  # type: ignore[misc]


def test_nothing_is_sent_to_mysql_but_inserts_and_a_look(mysql_shop: Shop) -> None:
    with closing(Recording(**mysql_shop.place)) as connection:
        connection.sent.clear()
        ids = mysql_shop.add_some(connection)
        assert connection.sent
        assert not [sql for sql in connection.sent if not OURS.match(sql)]
        connection.commit()
    mysql_shop.assert_added(ids)


def test_nothing_is_sent_to_sqlite_but_inserts_and_a_look_and_the_drivers_own_begin(sqlite_shop: Shop) -> None:
    connection = sqlite_shop.open()
    sent: list[str] = []
    connection.set_trace_callback(sent.append)
    ids = sqlite_shop.add_some(connection)
    begins, *others = sent
    assert begins.strip() == "BEGIN"
    assert not [sql for sql in others if not OURS.match(sql)]
    assert connection.in_transaction
    connection.commit()
    sqlite_shop.assert_added(ids)


CHANGE_BY_THEMSELVES = {"timestamp", "identity", "last_gtid", "last_insert_id", "statement_id"}
CHANGE_BY_THEMSELVES |= {"warning_count", "error_count"}
FOREIGN_SESSION = (
    "SET time_zone = '+05:00'",
    "SET SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE",
    "SET sql_mode = 'ANSI_QUOTES,NO_BACKSLASH_ESCAPES,PIPES_AS_CONCAT,IGNORE_SPACE,NO_ZERO_DATE'",
    "SET innodb_lock_wait_timeout = 17",
)


def session_of(connection: Any) -> dict[str, str]:
    with connection.cursor(pymysql.cursors.Cursor) as cursor:
        cursor.execute("SHOW SESSION VARIABLES")
        return {name: value for name, value in cursor.fetchall() if name not in CHANGE_BY_THEMSELVES}


@pytest.mark.parametrize("autocommit", [False, True], ids=["", "autocommit"])
@pytest.mark.parametrize("begun", [False, True], ids=["", "begun"])
def test_a_session_is_after_it_as_it_was_before(mysql_shop: Shop, autocommit: bool, begun: bool) -> None:
    connection = mysql_shop.open(autocommit=autocommit, charset="latin1")
    cursor = connection.cursor()
    for statement in FOREIGN_SESSION:
        cursor.execute(statement)
    if begun:
        connection.begin()
        mysql_shop.order(connection)
        cursor.execute("SAVEPOINT theirs")
    before = session_of(connection)
    ids = mysql_shop.add_some(connection)
    if not autocommit and not begun and "in_transaction" in before:  # MySQL does not tell
        before["in_transaction"] = "1"  # as the first row of the shop's own would have it
    assert session_of(connection) == before
    assert before["time_zone"] == "+05:00"
    assert len(mysql_shop.rows()) == (len(ids) - 1 if autocommit and not begun else 0)
    if begun:
        cursor.execute("ROLLBACK TO SAVEPOINT theirs")
        connection.commit()
        assert (mysql_shop.customers(), mysql_shop.rows()) == (["Ada"], [])
    else:
        connection.commit()
        mysql_shop.assert_added(ids)


# ---- forms of rows


@pytest.mark.parametrize(
    "form",
    [
        *({"cursorclass": form} for form in (DictCursor, SSCursor, SSDictCursor)),
        {"conv": dict(pymysql.converters.encoders)},  # numbers come as text
    ],
)
def test_a_connection_to_mysql_may_give_rows_in_other_forms_and_unbuffered(
    mysql_shop: Shop, form: dict[str, Any]
) -> None:
    connection = mysql_shop.open(**form)
    mysql_shop.order(connection)
    ids = mysql_shop.add_some(connection)
    with connection.cursor() as cursor:  # would tell of a result that was left unread
        cursor.execute("SELECT 1 AS one")
        assert len(cursor.fetchall()) == 1
    connection.commit()
    mysql_shop.assert_added(ids)


def of_no_use(cursor: Any, row: Any) -> object:
    return object()


def as_dict(cursor: Any, row: Any) -> Any:
    return UserDict({column[0]: value for column, value in zip(cursor.description, row, strict=True)})


@pytest.mark.parametrize("factory", [sqlite3.Row, as_dict, of_no_use])
@pytest.mark.parametrize("text", [str, bytes, len])
def test_a_connection_to_sqlite_may_give_rows_in_other_forms(sqlite_shop: Shop, factory: Any, text: Any) -> None:
    connection = sqlite_shop.open(isolation_level="IMMEDIATE")
    connection.row_factory = factory
    connection.text_factory = text
    ids = sqlite_shop.add_some(connection)
    connection.commit()
    sqlite_shop.assert_added(ids)
    assert (connection.row_factory, connection.text_factory) == (factory, text)


# ---- instants


def due(shop: Shop) -> list[float]:
    """When the tasks are due, by the clock of the world."""
    return [float(instant) for (instant,) in shop.rows("UNIX_TIMESTAMP(due_at)")]


def test_an_instant_is_right_in_a_session_of_any_time_zone(mysql_shop: Shop) -> None:
    for offset in ("+05:00", "-09:30", "SYSTEM"):
        connection = mysql_shop.open()
        connection.cursor().execute(f"SET time_zone = '{offset}', timestamp = 1900000000.25")
        mysql_shop.server.add_task("tasks.note", at=AT, connection=connection)
        mysql_shop.server.add_task("tasks.note", delay=3600.5, connection=connection)
        connection.commit()
    assert due(mysql_shop) == [AT.timestamp(), 1900003600.75] * 3


@pytest.mark.parametrize(
    ("now", "delay"),
    [
        (LEAP - 1799.75, 3600),  # 02:30 is not there on that day
        (LEAP - 1799.75, 86400),
        (FALL - 5399.75, 86400),
        (FALL - 1799.75, 86400),  # 02:30, for the first time
        (FALL + 1800.25, 86400),  # 02:30, for the second time
    ],
)
def test_an_instant_is_right_across_a_change_of_summer_time(
    mysql_shop: Shop, mysql_server: MySQLServer, now: float, delay: int
) -> None:
    zone = zone_with_summer_time(mysql_server, mysql_shop.database)
    connection = mysql_shop.open()
    connection.cursor().execute(f"SET time_zone = '{zone}', timestamp = {now}")
    add = mysql_shop.server.add_task
    add("tasks.note", delay=delay, connection=connection)
    add("tasks.note", at=datetime.fromtimestamp(now + delay, timezone.utc), connection=connection)
    add("tasks.note", unique_key="k", connection=connection)
    add("tasks.note", unique_key="k", rerun=True, delay=delay, connection=connection)
    connection.commit()
    assert due(mysql_shop) == [now + delay] * 3


# ---- texts


@pytest.mark.parametrize(
    ("charset", "mode"),
    [
        ("latin1", ""),
        ("latin1", "NO_BACKSLASH_ESCAPES"),
        ("utf8mb3", "ANSI_QUOTES,STRICT_ALL_TABLES"),
        ("utf8mb4", "NO_BACKSLASH_ESCAPES"),
        ("gbk", ""),
        ("gbk", "NO_BACKSLASH_ESCAPES"),
    ],
)
def test_texts_come_through_a_session_of_any_character_set_and_mode(mysql_shop: Shop, charset: str, mode: str) -> None:
    connection = mysql_shop.open(charset="utf8mb4" if charset == "utf8mb3" else charset, sql_mode=mode)
    if charset == "utf8mb3":
        connection.cursor().execute("SET NAMES utf8")
    key = "schlüssel 日本 🎉 ' \\ \" %"
    add = mysql_shop.server.add_task
    ids = [
        add("tasks.note", [ODD_TEXT], connection=connection),
        add("tasks.note", {"größe": ODD_TEXT}, unique_key=key, connection=connection),
        mysql_shop.server.add_pipeline(["tasks.first", "tasks.größe"], [ODD_TEXT], connection=connection),
    ]
    connection.commit()
    assert mysql_shop.added() == [[ODD_TEXT], {"größe": ODD_TEXT}, [ODD_TEXT]]
    assert mysql_shop.rows("unique_key") == [(None,), (key.encode(),), (None,)]
    assert json.loads(mysql_shop.rows("stages")[2][0])[1]["task"] == "tasks.größe"
    assert add("tasks.note", unique_key=key) == ids[1]


# ---- old snapshots


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
