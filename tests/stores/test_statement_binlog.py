"""A server with binlog_format = STATEMENT, which refuses writes in READ COMMITTED: the store falls back."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from taskserver import TaskServer
from taskserver.model.new_task import NewTask
from taskserver.stores.mysql.dialect import MySQLDialect
from taskserver.stores.mysql.session import REPEATABLE_READ
from tests.stores.verbs import PLAIN, add_many, keyed
from tests.support.processes import WAIT_SECONDS
from tests.support.rows import MODES
from tests.support.servers import MariaDB
from tests.support.threads import together

TASKS = "ran = []\n\ndef note(number: int) -> None:\n    ran.append(number)\n"


@pytest.fixture(scope="module")
def statement_server(mariadb: MariaDB) -> Iterator[MariaDB]:
    # mariadb is asked for as it says what to do where MariaDB is not installed.
    with MariaDB(False, "--log-bin", "--binlog-format=STATEMENT", "--server-id=1") as server:
        assert server.execute("SELECT @@log_bin, @@binlog_format") == ((1, "STATEMENT"),)
        yield server


@pytest.fixture
def statement_dsn(statement_server: MariaDB) -> Iterator[str]:
    with statement_server.database() as name:
        with TaskServer(statement_server.dsn(name)) as server:
            server.create_tables()
        yield statement_server.dsn(name)


@pytest.mark.parametrize("mode", MODES)
def test_a_worker_drains_a_queue(statement_dsn: str, mode: str, tmp_path: Path) -> None:
    (tmp_path / "noted_tasks.py").write_text(TASKS)
    with TaskServer(statement_dsn, mode=mode, modules="noted_tasks", folder=tmp_path) as server:
        for number in range(5):
            server.add_task("noted_tasks.note", [number], group_id=3)
        assert isinstance(server.store.database.dialect, MySQLDialect)
        assert server.store.database.dialect.abilities.isolation == REPEATABLE_READ
    with TaskServer(statement_dsn, mode=mode, modules="noted_tasks", folder=tmp_path) as server:
        assert server.run(groups=[3, 5], batch=2).done == 5


def test_many_tasks_can_be_added_first_of_all(statement_dsn: str) -> None:
    with TaskServer(statement_dsn) as server:
        assert len(server.add_tasks([{"task": "tasks.send"}] * 1500)) == 1500


def test_a_key_that_another_added_meanwhile_is_found(statement_dsn: str) -> None:
    """There a transaction sees by a plain look only what stood at its first one."""
    with TaskServer(statement_dsn) as one, TaskServer(statement_dsn) as two:
        two.add_task("tasks.send", unique_key="m")  # keys before it and behind it are none of each other's concern
        others: list[int] = []

        def tasks() -> Iterator[NewTask]:
            yield keyed("x")
            yield from [PLAIN] * 3000  # more than are kept before the first is added
            others.append(two.add_task("tasks.send", unique_key="late"))
            yield keyed("late")

        assert add_many(one.store, tasks())[-1:] == others


def test_each_thread_falls_back(statement_dsn: str) -> None:
    with TaskServer(statement_dsn) as server:
        connected, go = threading.Event(), threading.Event()

        def add_later() -> None:
            server.store.tables.check()  # connects, before the other thread finds out
            connected.set()
            go.wait(WAIT_SECONDS)
            server.add_task("tasks.send")

        with together(add_later):
            assert connected.wait(WAIT_SECONDS)
            server.add_task("tasks.send")
            go.set()
        assert [count.rows for count in server.store.views.counts()] == [2]
