"""What waits for what, and the stages of a pipeline, as `show`, `list` and `run` of client.py say it."""

from __future__ import annotations

import json
from typing import Any

from tests.support.queues import Queue

TASKS = "def fail():\n    raise ValueError('as it was asked to')\n"
SETTINGS = {"TASKSERVER_MODE": "mark"}


def test_show_and_list_name_parents_and_children(queue: Queue) -> None:
    parents = [queue.server.add_task("tasks.note") for _ in range(7)]
    assert "wait" not in queue.here("list").stdout
    child = queue.server.add_task("tasks.note", depends_on=parents)
    grandchild = queue.server.add_task("tasks.note", depends_on=[child])
    lines = queue.here("show", child).stdout.splitlines()
    assert f"  awaited_by   {grandchild}" in lines
    assert f"  waits_for    {', '.join(map(str, parents))}" in lines
    shown: dict[str, Any] = json.loads(queue.here("show", child, "--json").stdout)
    assert (shown["waits_for"], shown["awaited_by"]) == (parents, [grandchild])
    listed = {row["id"]: row for row in json.loads(queue.here("list", "--json").stdout)}
    assert listed[child]["waits_for"] == parents
    assert [listed[parent]["awaited_by"] for parent in parents] == [[child]] * 7


def test_show_says_the_stage_and_what_became_of_each(queue: Queue) -> None:
    failing = {"task": "tasks.fail", "group_id": 5, "priority": 2, "max_attempts": 1}
    task_id = queue.server.add_pipeline(["tasks.note", failing, "tasks.note"])
    for status, states in (("new", ("new", "to come")), ("fatal", ("done", "fatal"))):
        lines = [line.strip() for line in queue.here("show", task_id).stdout.splitlines()]
        assert lines[0].startswith(f"task {task_id}: {status}, ")
        assert f"stage        {1 if status == 'new' else 2} of 3" in lines
        priority = "" if status == "new" else ", priority 0"  # where it is not the row's
        assert f"stages       1 tasks.note, group 0{priority}: {states[0]}" in lines
        priority = ", priority 2" if status == "new" else ""
        assert f"2 tasks.fail, group 5{priority}, max_attempts 1: {states[1]}" in lines
        assert any(line.startswith("3 tasks.note, group 0") and line.endswith(": to come") for line in lines)
        queue.run_here()
    assert json.loads(queue.here("show", task_id, "--json").stdout)["stage"] == 1
    assert "tasks.fail (stage 2 of 3)" in queue.here("list").stdout


def test_one_stage_is_run_in_the_foreground_and_the_row_is_new_for_the_next_one(queue: Queue) -> None:
    task_id = queue.server.add_pipeline(["tasks.note"] * 3)
    ended = queue.here("run", task_id)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert f"task {task_id} has done stage 1 after" in ended.stdout
    assert ", and is new for the next one" in ended.stdout
    assert queue.rows("status, stage, attempts") == [(0, 1, 0)]
    assert queue.server.run_task(task_id).done == queue.server.run_task(task_id).done == 1
    assert queue.rows("status, stage") == [(2, 2)]
