"""`TaskServer.wait` and `get_many`: what becomes of a task, and of many, for a program that does not run them."""

from __future__ import annotations

import time
from typing import Any

import pytest

from taskserver import NotEnded, SettingError, Status, TaskServer, TaskServerError
from tests.support.rows import Rows


@pytest.mark.parametrize("ended", [Status.DONE, Status.FATAL, Status.CANCELLED])
def test_wait_looks_with_growing_pauses(
    server: TaskServer, rows: Rows, monkeypatch: pytest.MonkeyPatch, ended: Status
) -> None:
    task_id = server.add_task("tasks.x")
    paused: list[float] = []
    then = [Status.IN_PROGRESS, Status.ERROR, Status.WAITING, Status.NEW, Status.IN_PROGRESS, Status.IN_PROGRESS, ended]

    def change_meanwhile(seconds: float) -> None:
        rows.execute(f"UPDATE jobs_queue SET status = {then[len(paused)]:d}")  # nothing of ours holds the row
        paused.append(seconds)

    monkeypatch.setattr(time, "sleep", change_meanwhile)
    state = server.wait(task_id, "5m")
    assert state == server.get(task_id)
    assert (state and state.status, str(state and state.status)) == (ended, ended.name.lower())
    assert paused == pytest.approx([0.05, 0.1, 0.2, 0.4, 0.8, 1, 1])


def test_wait_follows_a_task_to_the_archive(server: TaskServer, rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    task_id = server.add_task("tasks.x")
    rows.execute("INSERT INTO jobs_queue_done (id, task, status, result) VALUES (?, 'tasks.x', 2, '[1]')", [task_id])
    monkeypatch.setattr(time, "sleep", lambda seconds: rows.execute("DELETE FROM jobs_queue"))
    state = server.wait(task_id, 60)
    assert state is not None
    assert (state.status, state.result) == (Status.DONE, [1])
    rows.execute("DELETE FROM jobs_queue_done")
    assert server.wait(task_id, 60) is None


def test_wait_ends_with_its_time(server: TaskServer) -> None:
    task_id = server.add_task("tasks.x")
    for timeout, least in ((0, 0), ("0s", 0), (0.1, 0.1)):
        began = time.monotonic()
        words = f"^task {task_id} has not ended within {least} s: its status is new$"
        with pytest.raises(NotEnded, match=words) as caught:
            server.wait(task_id, timeout)
        assert isinstance(caught.value, (TaskServerError, TimeoutError))
        assert time.monotonic() - began >= least


@pytest.mark.parametrize(
    ("task_id", "timeout", "fault"),
    [*((1, wrong, "timeout is .*; allowed: seconds") for wrong in (-1, None, "soon", True)), ("1", 1, "task_id is")],
)
def test_wait_refuses_an_invalid_time_or_id(server: TaskServer, task_id: Any, timeout: Any, fault: str) -> None:
    with pytest.raises(SettingError, match=f"^{fault}"):
        server.wait(task_id, timeout)


def test_many_are_read_in_the_order_of_their_ids_without_those_that_are_gone(server: TaskServer, rows: Rows) -> None:
    ids = server.add_tasks({"task": "tasks.x", "priority": n} for n in range(1100))
    archived, gone = ids[3], ids[5]
    rows.execute("DELETE FROM jobs_queue WHERE id IN (?, ?)", [archived, gone])
    for result in ("1", "2"):
        rows.execute(
            "INSERT INTO jobs_queue_done (id, task, status, result) VALUES (?, 'tasks.x', 2, ?)", [archived, result]
        )
    asked = [*reversed(ids), ids[0], 2**63 - 1]
    found = server.get_many(iter(asked))
    assert list(found) == [one for one in reversed(ids) if one != gone]
    assert found == {one: server.get(one) for one in found}
    assert found[archived].result == 2
    assert server.get_many([]) == {}
