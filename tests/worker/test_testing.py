"""taskserver.testing: a test's queue, which replaces the site's, and fake running tasks.

tests/docs/test_testing_page.py runs the examples of docs/testing.md.
"""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import pytest

import taskserver
from taskserver import DatabaseError, InvalidTask, TaskServer, TaskServerError, testing
from taskserver.errors import TablesMissing
from taskserver.testing import TaskQueue, running_task
from tests.support.deployment import ROOT

TASKS = """
from shutil import copy

NOTES = []

def note(text):
    NOTES.append(text)

def pay():
    pass
"""


@pytest.fixture
def tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module of the tasks, in the folder of the test."""
    (tmp_path / "tasks.py").write_text(TASKS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    import tasks  # type: ignore[import-not-found,unused-ignore]

    try:
        yield tasks
    finally:
        sys.modules.pop("tasks", None)


@pytest.fixture
def queue(tasks: ModuleType) -> Iterator[TaskQueue]:
    with testing.task_queue() as opened:
        yield opened


# ---- a queue that replaces the site's


def test_every_server_of_the_process_uses_the_queue_and_its_own_one_after_the_test(tasks: Any, tmp_path: Path) -> None:
    with TaskServer(f"sqlite:///{tmp_path}/site.db") as of_the_site:
        of_the_site.create_tables()
        with testing.task_queue() as queue:
            of_the_site.add_task("tasks.note", ["by the site's"])
            TaskServer.from_env().add_task("tasks.note", ["by the environment's"])
            assert [task.args for task in queue.added] == [["by the site's"], ["by the environment's"]]
            assert queue.run_all().done == 2
        assert of_the_site.get(1) is None
        of_the_site.add_task("tasks.note")
        assert of_the_site.get(1) is not None


def test_the_environment_names_the_queue_to_programs_and_is_put_back(tasks: Any, tmp_path: Path) -> None:
    client = [sys.executable, str(ROOT / "client.py"), "add", "tasks.note", '["by a program"]']
    with testing.task_queue() as queue:
        subprocess.run(client, env=dict(os.environ), check=True, capture_output=True)
        assert queue.run_all().done == 1
    assert "TASKSERVER_DSN" not in os.environ
    assert tasks.NOTES == ["by a program"]


# ---- runs


@pytest.mark.parametrize(
    ("name", "words"), [("elsewhere.note", "elsewhere"), ("tasks.copy", "tasks.copy"), ("tasks.note", "missing a req")]
)
def test_a_row_that_can_never_run_raises(queue: TaskQueue, name: str, words: str) -> None:
    """A worker refuses them, too."""
    queue.server.add_task(name)
    with pytest.raises(TaskServerError, match=words):
        queue.run_all()


# ---- functions that replace a task's


@pytest.mark.parametrize("stand_in", [mock.Mock(), lambda text: None, mock.create_autospec(lambda text: None)])
def test_a_replacement_is_called_and_can_be_added_itself(
    queue: TaskQueue, tasks: Any, monkeypatch: pytest.MonkeyPatch, stand_in: Any
) -> None:
    original = tasks.note
    monkeypatch.setattr(tasks, "note", stand_in)
    for task in (stand_in, original, "tasks.note"):
        queue.server.add_task(task, ["x"])
    assert [task.task for task in queue.added] == ["tasks.note"] * 3
    assert queue.run_all().done == 3
    assert tasks.NOTES == []
    with pytest.raises(InvalidTask):
        queue.server.add_task(mock.Mock())


# ---- connections


def test_a_task_on_a_sites_connection_is_there_at_once(queue: TaskQueue, tasks: Any) -> None:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute("CREATE TABLE orders (id)")
        queue.server.add_task("tasks.note", ["one"], connection=connection)
        queue.server.add_tasks([{"task": "tasks.note", "args": ["two"]}], connection=connection)
        assert not connection.in_transaction
    assert len(queue.added) == queue.run_all().done == 2
    for none in (connection, "connection"):
        with pytest.raises((DatabaseError, InvalidTask)):
            queue.server.add_task("tasks.note", connection=none)


@pytest.mark.parametrize("is_elsewhere", [True, False])
def test_a_task_completes_itself_and_adds_on_a_connection(
    queue: TaskQueue, monkeypatch: pytest.MonkeyPatch, is_elsewhere: bool
) -> None:
    with closing(sqlite3.connect(":memory:" if is_elsewhere else str(queue.path))) as connection:
        connection.execute("CREATE TABLE paid (orders)")

        def pay() -> None:
            connection.execute("INSERT INTO paid VALUES (1)")
            taskserver.complete(connection)
            connection.commit()

        monkeypatch.setattr("tasks.pay", pay)
        queue.server.add_task("tasks.pay", connection=connection)
        connection.commit()
        assert queue.run_all().done == 1
        assert connection.execute("SELECT * FROM paid").fetchall() == [(1,)]


def test_a_queue_in_a_database_keeps_to_its_connections(tasks: Any, dsn: str) -> None:
    with testing.task_queue(dsn=dsn) as queue:
        with closing(sqlite3.connect(":memory:")) as connection, pytest.raises((InvalidTask, TablesMissing)):
            queue.server.add_task("tasks.note", connection=connection)
        queue.server.add_task("tasks.note", ["left"])
    with testing.task_queue(dsn=dsn) as queue:
        assert queue.run_all().done == 1


# ---- a function by itself


def test_a_function_completes_its_fake_task_or_has_its_connection() -> None:
    connection = object()
    with running_task() as task:
        taskserver.complete(connection, {"rows": 3})
        with pytest.raises(TaskServerError, match="transactional"):
            taskserver.connection()
    assert (task.completed_on, task.result, task.is_asked_for) == (connection, {"rows": 3}, True)
    with running_task(connection=connection):
        assert taskserver.connection() is connection
        with pytest.raises(TaskServerError, match="not for a transactional task"):
            taskserver.complete(connection)
