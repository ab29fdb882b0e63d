"""A run in hard places: due rows by the thousand, rows that others hold, errors in the middle. For both stores."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from taskserver import DatabaseError, Reason, Stop, TaskServer
from taskserver.interrupts.alarm import call_task
from taskserver.model.task import Claim, Status
from taskserver.stores.queue.due import MAX_DUE_PER_LOOK
from taskserver.worker import run_context
from tests.support.queues import row_counts
from tests.support.servers import MariaDB

TASKS = """
def note(n=0): pass
def keywords(*, n): pass
"""
_numbers = itertools.count()


@pytest.fixture
def module(tmp_path: Path) -> str:
    name = f"runner_tasks_{next(_numbers)}"
    (tmp_path / f"{name}.py").write_text(TASKS)
    return name


@pytest.fixture
def open_server(module: str, tmp_path: Path) -> Iterator[Callable[[str], TaskServer]]:
    opened: list[TaskServer] = []

    def opens(dsn: str) -> TaskServer:
        server = TaskServer(dsn, modules=module, folder=tmp_path)
        server.create_tables()
        opened.append(server)
        return server

    yield opens
    for server in opened:
        server.close()


@pytest.fixture
def server(dsn: str, open_server: Callable[[str], TaskServer]) -> TaskServer:
    return open_server(dsn)


def add(server: TaskServer, module: str, count: int) -> list[int]:
    return server.add_tasks({"task": f"{module}.note", "args": [n]} for n in range(count))


def rows_of(server: TaskServer, status: Status) -> int:
    return sum(count.rows for count in row_counts(server.store) if count.status == status)


def sql(server: TaskServer, statement: str) -> None:
    server.store.database.change(statement)


def test_a_run_wakes_all_that_is_due_however_much_it_is(server: TaskServer, module: str) -> None:
    add(server, module, 1000)
    sql(server, "UPDATE {table} SET status = 5, due_at = '2020-01-01 00:00:00.000000'")
    result = server.run()
    assert (result.done, result.reason) == (1000, Reason.EMPTY)


def test_what_is_due_in_other_groups_hides_nothing_that_is_due_in_one_s_own(server: TaskServer, module: str) -> None:
    add(server, module, MAX_DUE_PER_LOOK * 2)
    server.add_task(f"{module}.note", group_id=3)
    sql(server, "UPDATE {table} SET status = 5, due_at = '2020-01-01 00:00:00.000000'")
    result = server.run(groups=[3])
    assert (result.done, result.reason) == (1, Reason.EMPTY)


def test_a_claim_that_took_half_a_lease_still_comes_to_something(
    server: TaskServer, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(server, module, 3)
    claim = server.store.claims.claim

    def claim_slowly(limit: int, groups: Sequence[int], number: int | None = None) -> Claim:
        claimed = claim(limit, groups, number)
        if claimed.tasks:
            time.sleep(0.6)
        return claimed

    server.settings = server.settings._replace(lease_seconds=1)
    monkeypatch.setattr(server.store.claims, "claim", claim_slowly)
    assert server.run(1).done == 1


def test_what_was_claimed_is_given_back_where_a_run_cannot_be_equipped(
    server: TaskServer, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(server, module, 3)

    def fails(*values: object) -> None:
        raise ImportError("no _ctypes")

    monkeypatch.setattr(run_context, "Alarm", fails)
    with pytest.raises(ImportError, match="_ctypes"):
        server.run()
    assert rows_of(server, Status.NEW) == 3


def test_a_run_inside_a_task_leaves_its_patience_to_the_outer_one(server: TaskServer) -> None:
    store = server.store
    with store.database.patiently():
        with store.database.patiently():
            pass
        assert store.database._pace.patience is not None
    assert store.database._pace.patience is None


def test_a_claim_full_of_bad_rows_makes_no_statement_that_the_server_refuses(
    mariadb: MariaDB, open_server: Callable[[str], TaskServer], module: str
) -> None:
    [[packet]] = mariadb.execute("SELECT @@GLOBAL.max_allowed_packet")
    with mariadb.database() as name:
        mariadb.execute("SET GLOBAL max_allowed_packet = 1048576")
        try:
            server = open_server(mariadb.dsn(name))
            server.add_task(f"{module}.keywords", {"n": 1})
            server.add_tasks({"task": f"{module}.keywords", "args": {"😀" * 1200: n}} for n in range(600))
            add(server, module, 5)
            result = server.run(batch=1000)
        finally:
            mariadb.execute(f"SET GLOBAL max_allowed_packet = {packet}")
    assert (result.done, result.fatal) == (6, 600)


@pytest.mark.parametrize(("part", "verb"), [("finishes", "advance"), ("claims", "fetch_texts")])
def test_what_was_not_started_is_given_back_when_an_error_ends_the_run(
    server: TaskServer, module: str, part: str, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.add_tasks({"task": f"{module}.note", "args": ["x" * 20_000]} for _ in range(10))

    def fails(*values: Any) -> None:
        raise DatabaseError("the disk is full")

    monkeypatch.setattr(getattr(server.store, part), verb, fails)
    with pytest.raises(DatabaseError, match="disk is full"):
        server.run()
    monkeypatch.undo()
    assert rows_of(server, Status.NEW) == 10
    [run] = server.store.views.runs()
    assert (run.reason, run.ended_at is None) == (Reason.ERROR.value, False)
    assert server.run().done == 10


def test_a_wish_from_another_thread_interrupts_neither_the_task_nor_the_wisher(server: TaskServer, module: str) -> None:
    add(server, module, 2)
    stop = Stop()
    asked: list[BaseException | None] = []

    def ask_twice() -> None:
        try:
            stop.ask()
            stop.ask()
            asked.append(None)
        except BaseException as error:
            asked.append(error)

    def wait_for_the_wisher() -> None:
        wisher = threading.Thread(target=ask_twice)
        wisher.start()
        wisher.join()

    call_task(wait_for_the_wisher, ())
    assert asked == [None]
    assert server.run(stop=stop).reason is Reason.STOPPED
    assert rows_of(server, Status.NEW) == 2
