"""What waits for what, and the stages of a pipeline, as `client.py show` and `list` tell them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from taskserver import TaskServer
from tests.support.queues import Queue

TASKS = "def fail():\n    raise ValueError('as it was asked to')\n"


@pytest.fixture
def server(queue: Queue) -> Iterator[TaskServer]:
    with TaskServer(queue.dsn, folder=queue.folder, mode="mark") as server:
        yield server


# ---- commands


def test_show_writes_the_ids_of_parents_and_children(queue: Queue, server: TaskServer) -> None:
    first = server.add_task("tasks.note")
    second = server.add_task("tasks.note", depends_on=[first])
    third = server.add_task("tasks.note", depends_on=[second])
    lines = queue.client("show", second).stdout.splitlines()
    assert f"  waits_for    {first}" in lines
    assert f"  awaited_by   {third}" in lines


def test_show_and_list_have_the_ids_in_json(queue: Queue, server: TaskServer) -> None:
    parents = [server.add_task("tasks.note") for _ in range(7)]
    assert "wait" not in queue.client("list").stdout
    child = server.add_task("tasks.note", depends_on=parents)
    shown: dict[str, Any] = json.loads(queue.client("show", child, "--json").stdout)
    assert (shown["waits_for"], shown["awaited_by"]) == (parents, [])
    listed = {row["id"]: row for row in json.loads(queue.client("list", "--json").stdout)}
    assert listed[child]["waits_for"] == parents
    assert [listed[parent]["awaited_by"] for parent in parents] == [[child]] * 7


def test_show_tells_the_stage_and_what_became_of_each(queue: Queue, server: TaskServer) -> None:
    stages: list[Any] = [
        "tasks.note",
        {"task": "tasks.fail", "group_id": 5, "priority": 2, "max_attempts": 1},
        "tasks.note",
    ]
    task_id = server.add_pipeline(stages)
    for status, states in (("new", ("new", "to come")), ("fatal", ("done", "fatal"))):
        lines = [line.strip() for line in queue.client("show", task_id).stdout.splitlines()]
        assert lines[0].startswith(f"task {task_id}: {status}, ")
        assert f"stage        {1 if status == 'new' else 2} of 3" in lines
        priority = "" if status == "new" else ", priority 0"  # where it is not the row's
        assert f"stages       1 tasks.note, group 0{priority}: {states[0]}" in lines
        priority = ", priority 2" if status == "new" else ""
        assert f"2 tasks.fail, group 5{priority}, max_attempts 1: {states[1]}" in lines
        assert any(line.startswith("3 tasks.note, group 0") and line.endswith(": to come") for line in lines)
        queue.worker()
    assert json.loads(queue.client("show", task_id, "--json").stdout)["stage"] == 1
    assert "tasks.fail (stage 2 of 3)" in queue.client("list").stdout
