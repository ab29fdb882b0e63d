"""A server that is used on both sides of a fork: nothing that either side adds is lost."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest

from taskserver import DatabaseError, TaskServer
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


def complaint(server: TaskServer) -> str:
    """What the error says with which an add failed, or that it did not."""
    try:
        server.add_task("tasks.a")
    except DatabaseError as error:
        return str(error)
    return "nothing"


class Child:
    """A forked child that does `work`, whose outcome can be JSON, after `after` has something to read."""

    def __init__(self, work: Callable[[], Any], after: int | None = None) -> None:
        self._outcome, outcome_write = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            signal.alarm(35)  # a child that hangs ends, and its outcome is missing
            try:
                if after is not None:
                    os.read(after, 1)
                outcome = work()
            except BaseException as error:
                outcome = f"{type(error).__name__}: {error}"
            os.write(outcome_write, json.dumps(outcome).encode())
            os._exit(0)
        os.close(outcome_write)

    def outcome(self) -> Any:
        with open(self._outcome, "rb") as pipe:
            text = pipe.read()
        os.waitpid(self.pid, 0)
        assert text, "the child hung or died"
        return json.loads(text)


@pytest.mark.parametrize("child_was_first", [False, True])
def test_what_a_child_adds_after_its_parent_closed_is_not_lost(
    server: TaskServer, queue_dsn: str, child_was_first: bool
) -> None:
    """As of a program that adds a task, puts itself into the background, and whose first process then ends."""
    added = add(server, "parent")
    (early_read, early), (closed_read, closed) = os.pipe(), os.pipe()

    def work() -> list[str]:
        names = add(server, "early") if child_was_first else []
        os.write(early, b"!")
        os.read(closed_read, 1)
        return names + add(server, "child", 5)

    child = Child(work)
    os.read(early_read, 1)
    server.close()
    os.write(closed, b"!")
    assert sorted([*added, *child.outcome()]) == stored(queue_dsn)


def test_what_a_parent_adds_after_its_child_closed_is_not_lost(server: TaskServer, queue_dsn: str) -> None:
    first = add(server, "first")

    def add_and_close() -> list[str]:
        added = add(server, "child", 5)
        server.close()
        return added

    child = Child(add_and_close).outcome()
    assert sorted([*first, *child, *add(server, "parent", 5)]) == stored(queue_dsn)


@on("sqlite")
def test_a_child_that_inherits_a_connection_of_the_programs_own_is_told_so(server: TaskServer, queue_dsn: str) -> None:
    """SQLite takes the locks for the child's own, and another process removes the log into which the child writes."""
    server.add_task("tasks.a")
    with closing(sqlite3.connect(queue_dsn.removeprefix("sqlite:///"))) as own:
        assert own.execute("SELECT COUNT(*) FROM jobs_queue").fetchall() == [(1,)]  # its connection is open now
        assert "was forked while the program had this file open" in Child(lambda: complaint(server)).outcome()

        def close_and_add() -> list[str]:
            own.close()
            with ThreadPoolExecutor(1) as threads:
                return [complaint(server), threads.submit(complaint, server).result()]

        assert Child(close_and_add).outcome() == ["nothing", "nothing"]
        assert complaint(server) == "nothing"
    assert len(stored(queue_dsn)) == 4
