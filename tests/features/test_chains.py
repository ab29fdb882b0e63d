"""What waits for what, and the stages of a pipeline, as `client.py show` and `list` tell them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from taskserver import TaskServer
from taskserver.cli.terminal.dependency_trees import tree
from taskserver.stores.queue.dependency_trees import MAX_BRANCHES, MAX_NODES, DependencyTrees
from tests.support.processes import run_on_terminal
from tests.support.queues import Queue
from tests.support.turns import ONE_STORE

TASKS = "def fail():\n    raise ValueError('as it was asked to')\n"


@pytest.fixture
def server(queue: Queue) -> Iterator[TaskServer]:
    with TaskServer(queue.dsn, folder=queue.folder, mode="mark") as server:
        yield server


def behind(server: TaskServer, task_id: int) -> list[str]:
    return list(tree(DependencyTrees(server.store).behind(task_id)))


def before(server: TaskServer, task_id: int) -> list[str]:
    return list(tree(DependencyTrees(server.store).before(task_id)))


def link(queue: Queue, parent_id: int, child_id: int) -> None:
    queue.sql("INSERT INTO jobs_queue_dependencies (parent_id, child_id) VALUES (?, ?)", parent_id, child_id)


# ---- trees


def test_a_tree_has_what_waits_and_what_waits_for_that_each_with_its_status(server: TaskServer) -> None:
    first = server.add_task("tasks.note")
    second = server.add_task("tasks.note", depends_on=[first])
    third = server.add_task("tasks.fail", depends_on=[second])
    fourth = server.add_task("tasks.note", depends_on=[first])
    assert behind(server, first) == [
        f"|-- {second} tasks.note: waiting",
        f"|   `-- {third} tasks.fail: waiting",
        f"`-- {fourth} tasks.note: waiting",
    ]
    assert before(server, third) == [f"`-- {second} tasks.note: waiting", f"    `-- {first} tasks.note: new"]
    assert behind(server, third) == []


def test_one_to_which_two_ways_lead_has_its_branch_once_and_the_other_way_points_there(
    server: TaskServer,
) -> None:
    """Also where the second place is nearer to the root."""
    first = server.add_task("tasks.note")
    second = server.add_task("tasks.note", depends_on=[first])
    third = server.add_task("tasks.note", depends_on=[first, second])
    last = server.add_task("tasks.note", depends_on=[third])
    assert behind(server, first) == [
        f"|-- {second} tasks.note: waiting",
        f"|   `-- {third} tasks.note: waiting",
        f"|       `-- {last} tasks.note: waiting",
        f"`-- {third} tasks.note: waiting (see above)",
    ]


def test_a_tree_stays_one_to_be_looked_at_and_counts_the_rest(server: TaskServer) -> None:
    root = server.add_task("tasks.note")
    wide = server.add_tasks({"task": "tasks.note", "depends_on": [root]} for _ in range(1000))
    lines = behind(server, root)
    assert lines[0] == f"|-- {wide[0]} tasks.note: waiting"
    assert lines[-1] == f"`-- and {1000 - MAX_BRANCHES} more"
    assert len(lines) == MAX_BRANCHES + 1
    last = wide[0]
    for _ in range(2 * MAX_NODES):
        last = server.add_task("tasks.note", depends_on=[last])
    lines = behind(server, wide[0])
    assert len(lines) == MAX_NODES
    assert lines[-1].strip() == "`-- 1 more"


def test_circles_that_were_forged_are_shown_once(queue: Queue, server: TaskServer) -> None:
    first, second = (server.add_task("tasks.note") for _ in range(2))
    for pair in ((first, second), (second, first), (first, first)):
        link(queue, *pair)
    assert behind(server, first) == [
        f"|-- {first} tasks.note: new (see above)",
        f"`-- {second} tasks.note: new",
        f"    `-- {first} tasks.note: new (see above)",
    ]


def test_one_that_was_deleted_by_hand_is_told(queue: Queue, server: TaskServer) -> None:
    parent = server.add_task("tasks.note")
    child = server.add_task("tasks.note", depends_on=[parent])
    queue.sql("DELETE FROM jobs_queue WHERE id = ?", parent)
    [line] = before(server, child)
    assert line == f"`-- {parent} (gone: client.py reclaim lets go of what waits for it)"


# ---- commands


@ONE_STORE
def test_show_draws_trees_on_a_terminal_and_writes_ids_elsewhere(queue: Queue, server: TaskServer) -> None:
    first = server.add_task("tasks.note")
    second = server.add_task("tasks.note", depends_on=[first])
    third = server.add_task("tasks.note", depends_on=[second])
    code, screen = run_on_terminal(queue.deployment, "client.py", "show", second)
    assert code == 0
    lines = screen.replace("\r\n", "\n").splitlines()
    assert f"  waits_for    `-- {first} tasks.note: new" in lines
    assert f"  awaited_by   `-- {third} tasks.note: waiting" in lines
    lines = queue.client("show", second).stdout.splitlines()
    assert f"  waits_for    {first}" in lines
    assert f"  awaited_by   {third}" in lines


@ONE_STORE
def test_show_and_list_have_the_ids_in_json_and_list_has_columns_for_them(queue: Queue, server: TaskServer) -> None:
    parents = [server.add_task("tasks.note") for _ in range(7)]
    assert "wait" not in queue.client("list").stdout
    child = server.add_task("tasks.note", depends_on=parents)
    shown: dict[str, Any] = json.loads(queue.client("show", child, "--json").stdout)
    assert (shown["waits_for"], shown["awaited_by"]) == (parents, [])
    listed = {row["id"]: row for row in json.loads(queue.client("list", "--json").stdout)}
    assert listed[child]["waits_for"] == parents
    assert [listed[parent]["awaited_by"] for parent in parents] == [[child]] * 7
    head, first, *_ = queue.client("list").stdout.splitlines()
    assert (
        " ".join(head.split())
        == "id status group priority attempts created (UTC) ran task arguments waits for awaited by error"
    )
    assert first.split("tasks.note")[1].strip() == f"{', '.join(map(str, parents[:5]))} and 2 more"


@ONE_STORE
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
