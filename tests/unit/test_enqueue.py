"""`TaskServer.enqueue`: a call of a function becomes a task, and mypy sees its arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from mypy import api

from taskserver import InvalidTask, TaskServer, task
from tests.support.deployment import ROOT


def plain(to: str, copies: int = 1, *, urgent: bool = False) -> None: ...


def any_names(first: int, **names: int) -> None: ...


def odd_names(self: int, function: int) -> None: ...


def positions(first: int, /, *rest: int, last: int = 0) -> None: ...


@task(group_id=3, priority=-5, unique_key=lambda to: f"letter {to}")
async def placed(to: str) -> None: ...


@task(batch=10)
def together(tasks: list[Any]) -> None: ...


class Shop:
    @classmethod
    def close(cls, at: int) -> None: ...


@pytest.fixture
def server() -> Iterator[TaskServer]:
    with TaskServer("sqlite:///:memory:") as server:
        server.create_tables()
        yield server


@pytest.mark.parametrize(
    ("call", "args"),
    [
        (lambda server: server.enqueue(plain, "a"), ["a"]),
        (lambda server: server.enqueue(plain, to="a", urgent=True), {"to": "a", "urgent": True}),
        (lambda server: server.enqueue(plain, "a", 2, urgent=True), {"to": "a", "copies": 2, "urgent": True}),
        (lambda server: server.enqueue(any_names, 1, x=2), {"first": 1, "x": 2}),
        (lambda server: server.enqueue(odd_names, self=1, function=2), {"self": 1, "function": 2}),
        (lambda server: server.enqueue(positions, 1, 2, 3), [1, 2, 3]),
        (lambda server: server.enqueue(Shop.close, 9), [9]),
    ],
)
def test_a_call_becomes_the_arguments_of_a_task(
    server: TaskServer, call: Callable[[TaskServer], int], args: object
) -> None:
    found = server.store.views.show(call(server))
    assert found is not None
    assert found.args == args


def test_a_task_is_placed_as_its_function_says(server: TaskServer) -> None:
    first = server.enqueue(placed, "ada")
    assert server.enqueue(placed, to="ada") == first
    (found,) = server.list()
    assert (found.task, found.group_id, found.priority) == (f"{__name__}.placed", 3, -5)


@pytest.mark.parametrize(
    ("function", "args", "kwargs", "fault"),
    [
        (plain, (), {}, "does not take these arguments: missing a required argument: 'to'"),
        (plain, ("a",), {"copy": 2}, "got an unexpected keyword argument 'copy'"),
        (plain, ("a",), {"connection": object()}, "; for delay, connection and other options use add_task$"),
        (positions, (1,), {"last": 2}, "only by position"),
        (together, ([1],), {}, "takes a list of tasks"),
        ("tasks.x", (), {}, "task is 'tasks.x', a name; allowed here: the function itself"),
        (None, (), {}, "task is None"),
        (plain, (object(),), {}, "args"),
    ],
)
def test_a_call_that_no_worker_could_make_is_refused(
    server: TaskServer, function: Any, args: Any, kwargs: Any, fault: str
) -> None:
    with pytest.raises(InvalidTask, match=fault):
        server.enqueue(function, *args, **kwargs)
    assert server.list() == []


SNIPPET = """
from taskserver import Schedule, TaskServer, TaskState, task

@task(group_id=3)
def send(to: str, copies: int = 1) -> None: ...

async def fetch(url: str) -> bytes:
    return b""

server = TaskServer.from_env()
task_id: int = server.enqueue(send, "a@example.org", copies=2)
server.enqueue(fetch, url="https://example.org")
server.enqueue(send, 3)  # wrong
server.enqueue(send, to="a", copy=2)  # wrong
server.enqueue(fetch)  # wrong
state: TaskState | None = server.wait(task_id, "5m")
states: dict[int, TaskState] = server.get_many([task_id])
server.add_task(send, delay="5m")
server.sync_schedules([Schedule(name="nightly", task=send, every="1d"), {"name": "n", "task": "tasks.x", "every": 9}])
server.sync_schedules([Schedule(name="nightly", task=send, evry="1d")])  # wrong
"""


def test_mypy_sees_the_arguments_of_a_call(tmp_path: Path) -> None:
    (tmp_path / "snippet.py").write_text(SNIPPET)
    said, _, _ = api.run(
        ["--strict", "--no-error-summary", "--config-file", str(ROOT / "pyproject.toml"), str(tmp_path / "snippet.py")]
    )
    wrong = [number for number, line in enumerate(SNIPPET.splitlines(), start=1) if line.endswith("# wrong")]
    assert sorted({int(line.split(":")[1]) for line in said.splitlines() if ": error:" in line}) == wrong
