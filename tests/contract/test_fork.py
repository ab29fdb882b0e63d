"""A server that is used on both sides of a fork: nothing that either side adds is lost."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from taskserver import TaskServer
from tests.support.databases import on
from tests.support.rows import Rows


@pytest.fixture
def server(queue_dsn: str) -> Iterator[TaskServer]:
    with TaskServer(queue_dsn) as server:
        yield server


def stored(dsn: str) -> list[str]:
    """The args of all tasks; no connection that they are read on is open at a fork."""
    with closing(Rows(dsn)) as rows:
        return sorted(str(row["args"]) for row in rows.all())


def add(server: TaskServer, who: str, count: int = 1) -> list[str]:
    for number in range(count):
        server.add_task("tasks.a", [who, number])
    return [f'["{who}",{number}]' for number in range(count)]


def in_child(work: Callable[[], Any]) -> Callable[[], Any]:
    """Forks a child that does this work, whose outcome can be JSON; what waits for that."""
    outcome_read, outcome_write = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.alarm(35)  # a child that hangs ends, and its outcome is missing
        try:
            outcome = work()
        except BaseException as error:
            outcome = f"{type(error).__name__}: {error}"
        os.write(outcome_write, json.dumps(outcome).encode())
        os._exit(0)
    os.close(outcome_write)

    def outcome_of() -> Any:
        with open(outcome_read, "rb") as pipe:
            text = pipe.read()
        os.waitpid(pid, 0)
        assert text, "the child hung or died"
        return json.loads(text)

    return outcome_of


def test_what_a_child_adds_after_its_parent_closed_is_not_lost(server: TaskServer, queue_dsn: str) -> None:
    """As of a program that adds a task, puts itself into the background, and whose first process then ends."""
    added, (closed_read, closed) = add(server, "parent"), os.pipe()

    def work() -> list[str]:
        os.read(closed_read, 1)
        return add(server, "child", 5)

    child = in_child(work)
    server.close()
    os.write(closed, b"!")
    assert sorted([*added, *child()]) == stored(queue_dsn)


def test_what_a_parent_adds_after_its_child_closed_is_not_lost(server: TaskServer, queue_dsn: str) -> None:
    first = add(server, "first")

    def add_and_close() -> list[str]:
        added = add(server, "child", 5)
        server.close()
        return added

    child = in_child(add_and_close)()
    assert sorted([*first, *child, *add(server, "parent", 5)]) == stored(queue_dsn)


@on("sqlite")
def test_a_child_that_inherits_a_connection_of_the_programs_own_gets_an_error(
    server: TaskServer, queue_dsn: str
) -> None:
    """SQLite takes the locks for the child's own, and another process removes the log into which the child writes."""
    server.add_task("tasks.a")
    with closing(sqlite3.connect(queue_dsn.removeprefix("sqlite:///"))) as own:
        assert own.execute("SELECT COUNT(*) FROM jobs_queue").fetchall() == [(1,)]  # its connection is open now

        def close_and_add() -> list[str]:
            own.close()
            return add(server, "child")

        assert "was forked while the program had this file open" in in_child(lambda: add(server, "child"))()
        assert in_child(close_and_add)() == ['["child",0]']
        add(server, "parent")
    assert len(stored(queue_dsn)) == 3
