"""A server that is used on both sides of a fork, and a database in memory, which is a file of its process."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from taskserver import DatabaseError, TaskServer
from tests.support.processes import WAIT_SECONDS
from tests.support.queues import row_counts
from tests.support.threads import together


@pytest.fixture
def server(dsn: str) -> Iterator[TaskServer]:
    with TaskServer(dsn) as server:
        server.create_tables()
        yield server


def stored(dsn: str) -> list[str]:
    """The args of all tasks, read on a connection that nothing else uses."""
    with TaskServer(dsn) as reader:
        return sorted(str(task.columns["args"]) for task in reader.store.views.list(limit=100_000))


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
    server: TaskServer, dsn: str, child_was_first: bool
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
    assert sorted([*added, *child.outcome()]) == stored(dsn)


def test_what_a_parent_adds_after_its_child_closed_is_not_lost(server: TaskServer, dsn: str) -> None:
    first = add(server, "first")

    def add_and_close() -> list[str]:
        added = add(server, "child", 5)
        server.close()
        return added

    child = Child(add_and_close).outcome()
    assert sorted([*first, *child, *add(server, "parent", 5)]) == stored(dsn)


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_a_child_that_inherits_a_connection_of_the_programs_own_is_told_so(server: TaskServer, dsn: str) -> None:
    """SQLite takes the locks for the child's own, and another process removes the log into which the child writes."""
    server.add_task("tasks.a")
    with closing(sqlite3.connect(dsn.removeprefix("sqlite:///"))) as own:
        assert own.execute("SELECT COUNT(*) FROM jobs_queue").fetchall() == [(1,)]
        assert "was forked while the program had this file open" in Child(lambda: complaint(server)).outcome()

        def close_and_add() -> list[str]:
            own.close()
            with ThreadPoolExecutor(1) as threads:
                return [complaint(server), threads.submit(complaint, server).result()]

        assert Child(close_and_add).outcome() == ["nothing", "nothing"]
        assert complaint(server) == "nothing"
    assert len(stored(dsn)) == 4


def test_a_child_that_was_forked_amid_another_thread_s_adding_adds_or_is_told_why_not(
    server: TaskServer, dsn: str
) -> None:
    # SQLite: the copied connection holds a lock for ever, and closing it would roll back what the parent does.
    server.add_task("tasks.a")
    inside, go_on, (go_read, go) = threading.Event(), threading.Event(), os.pipe()

    def slow() -> Iterator[dict[str, Any]]:
        for number in range(1001):  # a statement is sent before the 1,001st task is asked for
            if number == 1000:
                inside.set()
                go_on.wait(WAIT_SECONDS)
            yield {"task": "tasks.slow", "args": [number]}

    with together(lambda: server.add_tasks(slow())):
        assert inside.wait(WAIT_SECONDS)
        child = Child(lambda: complaint(server), after=go_read)
        go_on.set()
    os.write(go, b"!")
    outcome = child.outcome()
    assert outcome == "nothing" or ("sqlite" in dsn and "was forked" in outcome)
    assert len(stored(dsn)) == 1 + 1001 + (outcome == "nothing")
    assert server.add_task("tasks.a")


# ---- in memory


def test_a_database_in_memory_is_shared_by_the_threads_of_its_process() -> None:
    with TaskServer("sqlite:///:memory:") as server:
        with together(*[lambda: add(server, "thread", 50)] * 6):
            pass
        assert [count.rows for count in row_counts(server.store)] == [300]
        assert server.run().taken == 300


FORKING = """
import os
import sys

from taskserver import TaskServer

server = TaskServer("sqlite:///:memory:")
server.add_task("tasks.parent")
if os.fork() == 0:
    server.add_task("tasks.child")
    sys.exit()
os.wait()
rows = server.store.database.fetch_value("SELECT COUNT(*) FROM {table}")
print(rows, server.store.database.fetch("PRAGMA database_list")[0][2])
"""


def test_a_database_in_memory_outlives_a_forked_child_and_goes_with_its_maker() -> None:
    rows, path = subprocess.run(
        [sys.executable, "-c", FORKING], capture_output=True, text=True, check=True
    ).stdout.split()
    assert rows == "2"
    assert "taskserver-" in path
    assert not Path(path).parent.exists()
