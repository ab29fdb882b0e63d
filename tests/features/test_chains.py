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


def test_show_tells_what_stands_next_to_a_task_each_with_its_status(queue: Queue, server: TaskServer) -> None:
    first, gone = (server.add_task("tasks.note") for _ in range(2))
    second = server.add_task("tasks.note", depends_on=[first, gone])
    third, *more = server.add_tasks([{"task": "tasks.fail", "depends_on": [second]}] * 22)
    queue.sql("DELETE FROM jobs_queue WHERE id = ?", gone)
    lines = [line.strip() for line in queue.client("show", second).stdout.splitlines()]
    assert lines[-23:-20] == [
        f"waits_for    {first} tasks.note: new",
        f"{gone} (gone: client.py reclaim lets go of what waits for it)",
        f"awaited_by   {third} tasks.fail: waiting",
    ]
    assert lines[-2:] == [f"{more[18]} tasks.fail: waiting", "and 2 more"]


def test_show_and_list_have_the_ids_in_json_and_list_has_columns_for_them(queue: Queue, server: TaskServer) -> None:
    parents = [server.add_task("tasks.note") for _ in range(7)]
    child = server.add_task("tasks.note", depends_on=parents)
    shown: dict[str, Any] = json.loads(queue.client("show", child, "--json").stdout)
    assert (shown["waits_for"], shown["awaited_by"]) == (parents, [])
    listed = {row["id"]: row for row in json.loads(queue.client("list", "--json").stdout)}
    assert listed[child]["waits_for"] == parents
    assert [listed[parent]["awaited_by"] for parent in parents] == [[child]] * 7
    head, first, *_ = queue.client("list").stdout.splitlines()
    assert " ".join(head.split()) == "id status group priority attempts created (UTC) task waits for awaited by error"
    assert first.split("tasks.note")[1].strip() == f"{', '.join(map(str, parents[:5]))} and 2 more"


def test_list_is_as_narrow_as_ever_where_nothing_waits(queue: Queue, server: TaskServer) -> None:
    server.add_task("tasks.note")
    assert "wait" not in queue.client("list").stdout


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
