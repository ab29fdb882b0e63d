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
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from taskserver import DatabaseError, TaskServer
from tests.support.processes import WAIT_SECONDS
from tests.support.threads import together


@pytest.fixture
def server(dsn: str) -> Iterator[TaskServer]:
    with TaskServer(dsn) as server:
        server.create_tables()
        yield server


Stored = dict[int, str | None]


def stored(dsn: str) -> Stored:
    """The args of all tasks by id, read on a connection that nothing else uses."""
    with TaskServer(dsn) as reader:
        return {task.id: task.args for task in reader.store.views.list([], [], 100_000)}


def add_named(server: TaskServer, who: str, count: int = 1) -> Stored:
    return {server.add_task("tasks.a", [who, number]): f'["{who}",{number}]' for number in range(count)}


def told(server: TaskServer) -> str:
    """What the error says with which an add failed, or that it did not."""
    try:
        server.add_task("tasks.a")
    except DatabaseError as error:
        return str(error)
    return "nothing"


def in_a_thread(work: Callable[[], Any]) -> Any:
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(work).result()


class Child:
    """A forked child that does `work` once `go` is called; its outcome, JSON, is what `work` returned."""

    def __init__(self, work: Callable[[], Any]) -> None:
        go_read, self._go = os.pipe()
        self._outcome, outcome_write = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            signal.alarm(35)  # a child that hangs ends, and its outcome is missing
            try:
                os.read(go_read, 1)
                outcome = {"returned": work()}
            except BaseException as error:
                outcome = {"raised": f"{type(error).__name__}: {error}"}
            os.write(outcome_write, json.dumps(outcome).encode())
            os._exit(0)
        os.close(go_read)
        os.close(outcome_write)

    def go(self) -> None:
        os.write(self._go, b"!")

    def outcome(self) -> Any:
        with open(self._outcome, "rb") as pipe:
            text = pipe.read()
        os.close(self._go)
        os.waitpid(self.pid, 0)
        assert text, "the child hung or died"
        outcome = json.loads(text)
        assert "returned" in outcome, outcome["raised"]
        return outcome["returned"]

    def added(self) -> Stored:
        """What it added, whose ids JSON made texts."""
        return {int(task_id): args for task_id, args in self.outcome().items()}


def test_a_forked_child_and_its_parent_add_at_the_same_time(server: TaskServer, dsn: str) -> None:
    added = add_named(server, "first")
    child = Child(lambda: add_named(server, "child", 60))
    child.go()
    added |= add_named(server, "parent", 60)
    added |= child.added()
    added |= add_named(server, "last", 3)
    assert stored(dsn) == added


def test_what_a_child_adds_after_its_parent_closed_is_not_lost(server: TaskServer, dsn: str) -> None:
    """As of a program that adds a task, puts itself into the background, and whose first process then ends."""
    added = add_named(server, "parent")
    ready_read, ready = os.pipe()

    def work() -> Stored:
        early = add_named(server, "early")
        os.write(ready, b"!")
        os.read(closed_read, 1)
        return early | add_named(server, "child", 5)

    closed_read, closed = os.pipe()
    child = Child(work)
    child.go()
    os.read(ready_read, 1)
    server.close()
    os.write(closed, b"!")
    added |= child.added()
    for descriptor in (ready_read, ready, closed_read, closed):
        os.close(descriptor)
    assert stored(dsn) == added


def test_what_a_parent_adds_after_its_child_closed_is_not_lost(server: TaskServer, dsn: str) -> None:
    added = add_named(server, "parent")

    def add_and_close() -> Stored:
        added = add_named(server, "child", 5)
        server.close()
        return added

    child = Child(add_and_close)
    child.go()
    added |= child.added()
    added |= add_named(server, "parent again", 5)
    assert stored(dsn) == added


@pytest.mark.parametrize("dsn", ["sqlite"], indirect=True)
def test_a_child_that_inherits_a_connection_of_the_programs_own_is_told_so(server: TaskServer, dsn: str) -> None:
    """SQLite takes the locks for the child's own, and another process removes the log into which the child writes."""
    server.add_task("tasks.a")
    with closing(sqlite3.connect(dsn.removeprefix("sqlite:///"))) as own:
        assert own.execute("SELECT COUNT(*) FROM jobs_queue").fetchall() == [(1,)]
        beside = Child(lambda: told(server))
        beside.go()
        assert "was forked while the program had this file open" in beside.outcome()
        assert server.add_task("tasks.a") == 2

        def close_and_add() -> list[str]:
            own.close()
            return [told(server), in_a_thread(lambda: told(server))]

        late = Child(close_and_add)
        late.go()
        assert late.outcome() == ["nothing", "nothing"]
    assert len(stored(dsn)) == 4


@contextmanager
def amid_adding(server: TaskServer, tasks: int) -> Iterator[None]:
    """While another thread stands between two statements of one transaction."""
    inside, go_on = threading.Event(), threading.Event()

    def slow() -> Iterator[dict[str, Any]]:
        for number in range(tasks):  # a statement is sent before the 1,001st task is asked for
            if number == tasks - 1:
                inside.set()
                go_on.wait(WAIT_SECONDS)
            yield {"task": "tasks.slow", "args": [number]}

    with together(lambda: server.add_tasks(slow())):
        assert inside.wait(WAIT_SECONDS)
        yield
        go_on.set()


def test_a_child_that_was_forked_amid_another_thread_s_adding_adds_or_is_told_why_not(
    server: TaskServer, dsn: str
) -> None:
    # SQLite: the copied connection holds a lock for ever, and giving it up would roll back what the parent does.
    server.add_task("tasks.a")
    with amid_adding(server, 1001):
        child = Child(lambda: told(server))
    child.go()
    outcome = child.outcome()
    assert outcome == "nothing" or ("sqlite" in dsn and "was forked" in outcome)
    assert len(stored(dsn)) == 1 + 1001 + (outcome == "nothing")
    assert server.add_task("tasks.a")


def test_a_forked_child_runs_tasks_too(server: TaskServer) -> None:
    server.add_task("os.getcwd")  # in no listed module: fatal, which is an outcome as good as any
    child = Child(lambda: server.run().fatal)
    child.go()
    assert child.outcome() == 1


# ---- in memory


def test_a_database_in_memory_is_shared_by_the_threads_of_its_process() -> None:
    with TaskServer("sqlite:///:memory:") as server:
        with together(*[lambda: add_named(server, "thread", 50)] * 6):
            pass
        assert [count.rows for count in server.store.views.counts()] == [300]
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
rows = sum(count.rows for count in server.store.views.counts())
print(rows, server.store.database.fetch("PRAGMA database_list")[0][2])
"""


def test_a_database_in_memory_outlives_a_forked_child_and_goes_with_its_maker() -> None:
    rows, path = subprocess.run(
        [sys.executable, "-c", FORKING], capture_output=True, text=True, check=True
    ).stdout.split()
    assert rows == "2"
    assert "taskserver-" in path
    assert not Path(path).parent.exists()
