"""Callers' own connections to PostgreSQL: drivers, forms of cursors and rows, sessions, and what is refused."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from importlib import import_module
from typing import Any

import psycopg
import pytest
from psycopg import IsolationLevel
from psycopg.rows import args_row, dict_row, kwargs_row, namedtuple_row, scalar_row

from taskserver import DatabaseError, InvalidTask, TablesMissing, TaskServer
from taskserver.errors import Conflict
from tests.support.processes import assert_silent
from tests.support.shops import AT, ODD_TEXT, Shop

psycopg2: Any = import_module("psycopg2")  # which has no types
extras: Any = import_module("psycopg2.extras")
KEY = "schlüssel 日本 🎉 ' \\ \" %"


@pytest.fixture
def shop(postgresql_shop: Shop) -> Shop:
    return postgresql_shop


# ---- drivers, cursors, rows


@pytest.mark.parametrize(
    "form",
    [
        *({"row_factory": factory} for factory in (dict_row, namedtuple_row, scalar_row)),
        *({"row_factory": of(lambda *args, **named: 1 / 0)} for of in (args_row, kwargs_row)),
        *({"cursor_factory": factory} for factory in (psycopg.ClientCursor, psycopg.RawCursor)),
        {"cursor_factory": psycopg.ClientCursor, "row_factory": dict_row},
        {"prepare_threshold": 0},
        {"options": "-c standard_conforming_strings=off"},
    ],
)
def test_a_connection_of_psycopg_may_have_other_cursors_and_rows(shop: Shop, form: dict[str, Any]) -> None:
    connection = shop.open(**form)
    shop.order(connection)
    ids = shop.add_some(connection)
    assert connection.info.transaction_status == psycopg.pq.TransactionStatus.INTRANS
    connection.commit()
    shop.assert_added(ids)
    assert shop.customers() == ["Ada"]


@contextmanager
def of_psycopg2(shop: Shop, **how: Any) -> Iterator[Any]:
    with closing(psycopg2.connect(**shop.place, **how)) as connection:
        yield connection


@pytest.mark.parametrize(
    "factory",
    [
        None,
        extras.DictCursor,
        extras.RealDictCursor,
        extras.NamedTupleCursor,
    ],
)
def test_a_connection_of_psycopg2_serves_whatever_its_rows_are(shop: Shop, factory: Any) -> None:
    with of_psycopg2(shop, cursor_factory=factory) as connection:
        shop.order(connection)
        ids = shop.add_some(connection)
        assert shop.rows() == []
        connection.commit()
        shop.add_some(connection)
        connection.rollback()
    shop.assert_added(ids)
    assert shop.added()[0] == [ODD_TEXT]
    assert shop.instants("due_at")[-1] == "2031-03-04 05:06:07.089000"


def test_errors_of_psycopg2_are_ours(shop: Shop) -> None:
    with of_psycopg2(shop) as connection:
        with TaskServer(shop.dsn, table="elsewhere") as other, pytest.raises(TablesMissing, match="in its search_path"):
            other.add_task("tasks.note", connection=connection)
        with pytest.raises(DatabaseError, match="current transaction is aborted"):
            shop.server.add_task("tasks.note", connection=connection)
    with pytest.raises(DatabaseError, match=r"that was given: .*closed.*: open another, and do all"):
        shop.server.add_task("tasks.note", connection=connection)


# ---- what is refused


def test_a_connection_of_asyncio_is_refused(shop: Shop) -> None:
    async def add() -> None:
        connection = await psycopg.AsyncConnection.connect(**shop.place)
        async with connection:
            with pytest.raises(InvalidTask, match="connection is one of asyncio; allowed"):
                shop.server.add_task("tasks.note", connection=connection)

    asyncio.run(add())
    with of_psycopg2(shop, async_=1) as connection, pytest.raises(InvalidTask, match="connection is one of asyncio"):
        shop.server.add_task("tasks.note", connection=connection)


def test_a_connection_in_pipeline_mode_is_refused(shop: Shop) -> None:
    connection = shop.open()
    with connection.pipeline(), pytest.raises(InvalidTask, match="in pipeline mode; allowed: one outside of"):
        shop.server.add_task("tasks.note", connection=connection)


# ---- sessions

FOREIGN = (
    "SET timezone = 'Asia/Kathmandu'",
    "SET datestyle = 'German, DMY'",
    "SET intervalstyle = 'sql_standard'",
    "SET default_transaction_isolation = 'serializable'",
    "SET lock_timeout = '17s'",
    "SET bytea_output = 'escape'",
    "SET enable_indexscan = off",
)


def session_of(connection: Any) -> list[Any]:
    cursor = connection.cursor()
    # Without those of a language, which is loaded when a trigger in it first runs.
    cursor.execute("SELECT name, setting FROM pg_settings WHERE strpos(name, '.') = 0 ORDER BY name")
    return list(cursor.fetchall())


@pytest.mark.parametrize("encoding", ["UTF8", "LATIN1", "WIN1251", "SQL_ASCII"])
@pytest.mark.parametrize("connect", [psycopg.connect, psycopg2.connect])
def test_a_session_is_after_it_as_it_was_before_and_all_comes_through_it(
    shop: Shop, encoding: str, connect: Callable[..., Any]
) -> None:
    with closing(connect(**shop.place)) as connection:
        cursor = connection.cursor()
        for statement in (*FOREIGN, f"SET client_encoding = '{encoding}'"):
            cursor.execute(statement)
        connection.commit()
        before = session_of(connection)
        cursor.execute("SAVEPOINT theirs")
        shop.add_some(connection)
        cursor.execute("ROLLBACK TO SAVEPOINT theirs")
        ids = shop.add_some(connection)
        assert session_of(connection) == before
        add = shop.server.add_task
        more = [
            add("tasks.note", {"größe": ODD_TEXT}, unique_key=KEY, connection=connection),
            shop.server.add_pipeline(["tasks.first", "tasks.größe"], [ODD_TEXT], connection=connection),
        ]
        assert add("tasks.note", unique_key=KEY, connection=connection) == more[0]
        connection.commit()
    assert shop.added()[0] == [ODD_TEXT]
    assert shop.added()[-2:] == [{"größe": ODD_TEXT}, [ODD_TEXT]]
    assert shop.rows("unique_key")[-2:] == [(KEY,), (None,)]
    assert [text for text in shop.instants("due_at") if text and text[:4] == "2031"] == [f"{AT:%F %T.%f}"] * 3
    assert shop.due_in()[1] == pytest.approx(60, abs=30)
    shop.sql("DELETE FROM jobs_queue WHERE id = ANY(?)", more)
    shop.assert_added(ids)


def test_a_key_with_a_zero_is_refused(shop: Shop) -> None:
    with pytest.raises(InvalidTask, match="allowed on PostgreSQL: a text without NUL"):
        shop.server.add_task("tasks.note", unique_key="a\0b", connection=shop.open())


# ---- keys


@pytest.mark.parametrize("isolation", [IsolationLevel.READ_COMMITTED, IsolationLevel.SERIALIZABLE])
def test_a_task_that_stands_is_not_taken_before_the_caller_commits(shop: Shop, isolation: IsolationLevel) -> None:
    first = shop.server.add_task("tasks.note", [1], unique_key="k")
    connection = shop.open()
    connection.isolation_level = isolation
    assert shop.server.add_task("tasks.note", [2], unique_key="k", connection=connection) == first
    assert_silent(shop.worker("--mode", "delete", TASKSERVER_DB_PATIENCE="1"))  # for so long it looks again
    assert (shop.notes(), shop.statuses()) == ([], [0])
    connection.commit()
    assert_silent(shop.worker("--mode", "delete"))
    assert shop.noted() == [[[1], {}]]
    assert shop.server.add_task("tasks.note", [3], unique_key="k", connection=connection) != first


def test_a_key_that_another_committed_since_an_old_snapshot_is_a_conflict(shop: Shop) -> None:
    connection = shop.open()
    connection.isolation_level = IsolationLevel.REPEATABLE_READ
    shop.order(connection)
    first = shop.server.add_task("tasks.note", unique_key="k")
    with pytest.raises(Conflict, match=r"40001\): roll your transaction back, and do all of it again"):
        shop.server.add_task("tasks.note", unique_key="k", connection=connection)
    connection.rollback()
    shop.order(connection)
    assert shop.server.add_task("tasks.note", unique_key="k", connection=connection) == first
