"""Spread while real servers are killed: no task is lost, none is added twice, and a key waits for its own server."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import cast

import pytest

from taskserver import DatabaseError, Spread, TaskServer
from taskserver import spread as module
from tests.faults.failing import FailingQueue
from tests.support.postgresql import PostgreSQL
from tests.support.proxy import Proxy, contains
from tests.support.servers import MariaDB

TASK = "tasks.note"


@pytest.fixture
def steady(shared_queue: FailingQueue) -> Iterator[TaskServer]:
    """A queue on the server that keeps running."""
    with TaskServer(shared_queue.dsn, folder=shared_queue.folder) as server:
        yield server


@pytest.fixture
def mortal(fragile: MariaDB | PostgreSQL) -> Iterator[TaskServer]:
    """A queue on the server that is killed."""
    with fragile.database() as name, TaskServer(fragile.dsn(name)) as server:
        server.create_tables()
        yield server
        fragile.start()


def numbers_in(*servers: TaskServer) -> list[int]:
    """The arguments of all tasks."""
    rows = [row for server in servers for row in server.list(limit=1_000_000)]
    return [number for row in rows for number in cast(list[int], row.args)]


def test_tasks_go_to_another_server_while_one_is_away_and_back_later(
    steady: TaskServer,
    mortal: TaskServer,
    fragile: MariaDB | PostgreSQL,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(module, "AWAY_SECONDS", 0.5)
    spread = Spread([steady, mortal], weights=[1, 1000])
    assert spread.add_task(TASK).server is mortal
    fragile.kill()
    mortal.close()  # a connection that breaks during an add leaves it in doubt
    began = time.monotonic()
    added = [spread.add_task(TASK) for _ in range(5)]
    tries = len(caplog.records)
    assert [one.server for one in added] == [steady] * 5
    assert tries == 1 or time.monotonic() - began > 0.5
    assert "the task goes to another server" in caplog.text
    fragile.start()
    time.sleep(0.5)
    assert mortal in [spread.add_task(TASK).server for _ in range(3)]


def test_a_key_waits_for_its_own_server(steady: TaskServer, mortal: TaskServer, fragile: MariaDB | PostgreSQL) -> None:
    spread = Spread({"steady": steady, "mortal": mortal})
    key = next(key for key in map(str, range(100)) if spread.server_of(key) is mortal)
    added = spread.add_task(TASK, unique_key=key)
    fragile.kill()
    for _ in range(2):
        with pytest.raises(DatabaseError, match=mortal.settings.dsn.place) as raised:
            spread.add_task(TASK, unique_key=key)
        assert "no server" not in str(raised.value)
    assert steady.list() == []
    fragile.start()
    assert spread.add_task(TASK, unique_key=key) == added


def test_with_no_server_the_error_names_each(mortal: TaskServer, fragile: MariaDB | PostgreSQL) -> None:
    other = TaskServer(mortal.settings.dsn.kind + "://u:p@127.0.0.1:1/x")
    fragile.kill()
    mortal.close()
    with pytest.raises(DatabaseError, match="no server can take the task") as raised:
        Spread([mortal, other]).add_task(TASK)
    assert mortal.settings.dsn.place in str(raised.value)
    assert "127.0.0.1:1/x" in str(raised.value)


def test_a_wrong_password_is_no_reason_to_lose_a_task(steady: TaskServer) -> None:
    dsn = steady.settings.dsn
    wrong = TaskServer(f"{dsn.kind}://{dsn.user}:wrong@{dsn.host}:{dsn.port}/{dsn.database}")
    spread = Spread({"steady": steady, "wrong": wrong}, weights=[1, 1000])
    assert spread.add_task(TASK).server is steady


def test_a_task_whose_outcome_is_in_doubt_goes_to_no_other_server(
    steady: TaskServer, mortal: TaskServer, proxy: Proxy, shared_queue: FailingQueue
) -> None:
    through = TaskServer(shared_queue.dsn.replace(f":{steady.settings.dsn.port}/", f":{proxy.port}/"))
    spread = Spread([through, mortal], weights=[1000, 1])
    spread.add_task(TASK, [0])  # connects
    proxy.cut_after(contains(b"INSERT"))
    with pytest.raises(DatabaseError) as raised:
        spread.add_task(TASK, [1])
    assert raised.value.in_doubt
    assert numbers_in(steady, mortal) == [1, 0]


@pytest.mark.long
def test_producers_lose_and_double_nothing_while_a_server_is_killed_again_and_again(
    steady: TaskServer, mortal: TaskServer, fragile: MariaDB | PostgreSQL, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "AWAY_SECONDS", 0.2)
    spread, is_over = Spread([steady, mortal]), threading.Event()
    acknowledged: list[int] = []
    doubtful: list[int] = []
    refused: list[Exception] = []

    def produce(number: int) -> None:
        while not is_over.is_set():
            number += 10
            try:
                spread.add_task(TASK, [number])
                acknowledged.append(number)
            except DatabaseError as error:
                doubtful.append(number) if error.in_doubt else refused.append(error)
            time.sleep(0.01)

    threads = [threading.Thread(target=produce, args=[number]) for number in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(8):
        time.sleep(0.3)
        fragile.kill()
        time.sleep(0.3)
        fragile.start()
    is_over.set()
    for thread in threads:
        thread.join()
    found = numbers_in(steady, mortal)
    assert len(set(found)) == len(found)
    assert set(acknowledged) <= set(found) <= {*acknowledged, *doubtful}
    assert (refused, len(doubtful) <= 8 * len(threads), len(acknowledged) > 200) == ([], True, True)
    assert all(server.list(limit=1) for server in (steady, mortal))
