"""Adding on a caller's own connection: with their rows or not at all, whatever kind of task that is."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy
from sqlalchemy.orm import Session

from taskserver import DatabaseError, TaskServer
from taskserver.errors import TablesMissing
from tests.support.processes import assert_silent
from tests.support.shops import AT, ODD_TEXT, Shop

# ---- together or not at all


def test_a_task_is_there_with_the_callers_row_once_they_commit_and_runs_then(shop: Shop) -> None:
    connection = shop.open()
    shop.order(connection)
    task_id = shop.server.add_task("tasks.note", {"text": ODD_TEXT}, connection=connection)
    assert (shop.customers(), shop.rows()) == ([], [])
    if not shop.is_sqlite:  # there the shop holds the write lock, which a worker waits for
        assert_silent(shop.worker())
    assert shop.notes() == []
    connection.commit()
    assert (shop.customers(), shop.rows("id")) == (["Ada"], [(task_id,)])
    assert_silent(shop.worker())
    assert shop.noted() == [[[], {"text": ODD_TEXT}]]


def test_a_task_is_rolled_back_with_the_callers_row(shop: Shop) -> None:
    connection = shop.open()
    shop.order(connection)
    shop.server.add_task("tasks.note", connection=connection)
    shop.server.add_pipeline(["tasks.first", "tasks.note"], connection=connection)
    shop.server.add_tasks([{"task": "tasks.note", "unique_key": "k"}, {"task": "tasks.note"}], connection=connection)
    connection.rollback()
    assert (shop.customers(), shop.rows()) == ([], [])


# ---- kinds

EVERY_COLUMN = (
    "task, args, group_id, priority, status, attempts, max_attempts, claim, unique_key, error_text, version, stages, "
    "stage, awaited, result, progress"
)
STAGES = ["tasks.first", {"task": "tasks.note", "group_id": 5}]
NEWEST: dict[str, Any] = {"unique_key": "k", "rerun": True, "version": 17}
ALL = {"args": {"a": 1}, "at": AT, "max_attempts": 2, "group_id": 9, **NEWEST}
KINDS: list[dict[str, Any]] = [
    {},
    {"args": [1, None, "a'b\\c", {"?": "%s"}], "group_id": 3, "priority": -5, "max_attempts": 3},
    {"delay": timedelta(hours=2, milliseconds=250)},
    {"at": AT},
    {"unique_key": "a'b\\c % ? é"},
    {"unique_key": "k", "rerun": True, "delay": 60},
    NEWEST,
    ALL,
    {"stages": STAGES, "delay": 60},
    {"stages": STAGES, **ALL},
]


def test_a_task_of_every_kind_is_the_same_row_as_without_the_connection(shop: Shop) -> None:
    connection = shop.open()
    keyed = [(one, True) for one in KINDS if "unique_key" in one]
    for kind, stands in [*((one, False) for one in KINDS), *keyed]:
        add: Any = shop.server.add_pipeline if "stages" in kind else shop.server.add_task
        whole = kind if "stages" in kind else {"task": "tasks.note", **kind}
        rows, due = [], []
        for given in ({}, {"connection": connection}):
            shop.sql("DELETE FROM jobs_queue")
            if stands:
                shop.server.add_task("tasks.old", ["old"], unique_key=kind["unique_key"])
            task_id = add(**whole, **given)
            connection.commit()
            assert shop.rows("id") == [(task_id,)], whole
            rows.append(shop.rows(EVERY_COLUMN))
            due += shop.due_in()
        assert rows[0] == rows[1]
        assert due[1] == (None if due[0] is None else pytest.approx(due[0], abs=5)), whole
        if "at" in kind:
            assert shop.instants("due_at") == ["2031-03-04 05:06:07.089000"], whole


def test_many_tasks_have_their_ids_in_order(shop: Shop) -> None:
    connection = shop.open()
    ids = shop.server.add_tasks(({"task": "tasks.note", "args": [n]} for n in range(2500)), connection=connection)
    assert shop.rows() == []
    connection.commit()
    found = zip(shop.rows("id"), shop.added(), strict=True)
    assert [(task_id, args) for (task_id,), args in found] == [(task_id, [n]) for n, task_id in enumerate(ids)]


# ---- connections of SQLAlchemy


DRIVERS = {"sqlite": "sqlite", "mysql": "mysql+pymysql", "postgresql": "postgresql+psycopg"}
ORDER = sqlalchemy.text("INSERT INTO orders (customer) VALUES ('Ada')")


@pytest.fixture
def engine(shop: Shop) -> Iterator[sqlalchemy.Engine]:
    url = sqlalchemy.make_url(f"sqlite:///{shop.path}" if shop.is_sqlite else shop.dsn)
    made = sqlalchemy.create_engine(url.set(drivername=DRIVERS[shop.kind]))
    yield made
    made.dispose()


@pytest.mark.parametrize("make", [sqlalchemy.Engine.connect, Session], ids=["connection", "session"])
def test_a_connection_of_sqlalchemy_is_taken_as_it_is(shop: Shop, engine: sqlalchemy.Engine, make: Any) -> None:
    session = make(engine)
    session.execute(ORDER)
    ids = shop.add_some(session)
    assert shop.rows() == []
    session.commit()
    shop.add_some(session)
    with session.begin_nested() as nested:
        shop.server.add_task("tasks.note", connection=session)
        nested.rollback()
    session.rollback()
    session.close()
    shop.assert_added(ids)
    assert (shop.customers(), shop.added()[0]) == (["Ada"], [ODD_TEXT])


def test_an_error_on_a_session_of_sqlalchemy_is_ours(shop: Shop, engine: sqlalchemy.Engine) -> None:
    with TaskServer(shop.dsn, table="elsewhere") as other, Session(engine) as session:
        session.execute(ORDER)
        with pytest.raises(TablesMissing, match="reaches no tables of elsewhere"):
            other.add_task("tasks.note", connection=session)
        session.rollback()
        shop.server.add_task("tasks.note", connection=session)
        session.commit()
    with engine.connect() as connection:
        shop.server.add_task("tasks.note", connection=connection.connection)  # the one of its pool
    with pytest.raises(DatabaseError, match="closed"):
        shop.server.add_task("tasks.note", connection=connection)
    assert (shop.customers(), len(shop.rows())) == ([], 1)


COMPLETES = """
import sqlalchemy
import taskserver
from sqlalchemy.orm import Session

def pay(url, by_session, commits):
    with Session(sqlalchemy.create_engine(url)) as session:
        session.execute(sqlalchemy.text("INSERT INTO orders (customer) VALUES ('Ada')"))
        taskserver.complete(session if by_session else session.connection(), {"größe": "Käse"})
        session.commit() if commits else session.rollback()
"""


@pytest.mark.parametrize("by_session", [True, False])
def test_a_session_or_connection_of_sqlalchemy_completes(
    shop: Shop, engine: sqlalchemy.Engine, by_session: bool
) -> None:
    shop.define(COMPLETES)
    url = engine.url.render_as_string(hide_password=False)
    for commits in (True, False):
        shop.add("tasks.pay", json.dumps([url, by_session, commits]))
    shop.run_quietly(mode="mark")
    assert (shop.customers(), shop.statuses()) == (["Ada"], [2, 3])
    assert json.loads(shop.rows("result")[0][0]) == {"größe": "Käse"}
