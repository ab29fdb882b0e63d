"""What programs read: `TaskServer.list`, `status` as its command prints it, `wait` and `get_many`."""

from __future__ import annotations

import json
import time
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from taskserver import InvalidTask, NotEnded, SettingError, Status, TaskServer, TaskServerError
from tests.support.queues import Queue
from tests.support.rows import Rows
from tests.support.sites import Site

CODE = """
def well(n):
    return [n]
"""


def is_now(instant: datetime | None) -> bool:
    """Whether an instant is aware and at most five minutes away."""
    assert instant is not None
    assert instant.utcoffset() == timedelta(0)
    return abs(datetime.now(timezone.utc) - instant) < timedelta(minutes=5)


def test_a_listed_task_has_its_columns_with_their_types(make_site: Any, queue_dsn: str) -> None:
    site: Site = make_site(queue_dsn, mode="mark")
    done = site.add_args(
        "well", {"n": 1}, unique_key="k", rerun=True, version=7, priority=-2, group_id=3, max_attempts=4
    )
    site.run()
    waiting = site.add_args("well", [2], delay=600)
    later, row = site.server.list()
    assert (later.id, row.id) == (waiting, done)
    assert row._replace(created_at=None, started_at=None, finished_at=None, updated_at=None) == (
        *(done, f"{site.name}.well", {"n": 1}, 3, -2, Status.DONE, 1, 4, None, "k", None, None, None, None, None),
        *(7, [1], None),
    )
    assert isinstance(row.status, Status)
    assert all(map(is_now, (row.created_at, row.started_at, row.finished_at, row.updated_at)))
    assert (later.args, later.status, later.started_at, later.result) == ([2], Status.WAITING, None, None)
    assert later.due_at is not None
    assert is_now(later.due_at - timedelta(seconds=600))


@pytest.mark.parametrize(
    ("chosen", "kind", "words"),
    [
        ({"groups": ["a"]}, SettingError, "a group is 'a'; allowed"),
        ({"status": 9}, InvalidTask, "status is 9; allowed: one of taskserver.Status, or several"),
        ({"limit": 0}, SettingError, "limit is 0; allowed: a whole number from 1"),
    ],
)
def test_a_wrong_choice_is_named_with_what_is_allowed(
    server: TaskServer, chosen: dict[str, Any], kind: type[Exception], words: str
) -> None:
    with pytest.raises(kind, match=words):
        server.list(**chosen)


def test_the_status_is_what_the_command_prints(sqlite_queue: Queue) -> None:
    queue = sqlite_queue
    queue.define("def fails(): raise ValueError('no luck')\n")
    for task, group in (("tasks.note", 0), ("tasks.fails", 0), ("tasks.missing", 0), ("tasks.note", 3)):
        queue.add(task, group_id=group)
    queue.run_here(groups=[0])
    with queue.server as server:
        server.pause(5)
        status = server.status()
    printed = json.loads(queue.here("status", "--json").stdout)
    assert (status.table, str(status.level), status.words) == (printed["table"], printed["level"], printed["words"])
    assert [finding.as_dict() for finding in status.findings] == printed["findings"]
    assert (status.paused_groups, status.are_all_paused) == ([5], False)
    (run,) = status.runs
    assert f"{run.ended_at:%Y-%m-%dT%H:%M:%S.%f}Z" == printed["runs"][0]["ended_at"]
    assert [error.line for error in status.errors] == [error["line"] for error in printed["errors"]]


# ---- waiting, and many at once


def test_wait_looks_with_growing_pauses(server: TaskServer, rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    task_id = server.add_task("tasks.x")
    paused: list[float] = []
    then = [Status.IN_PROGRESS, Status.ERROR, Status.WAITING, Status.NEW, *[Status.IN_PROGRESS] * 2, Status.FATAL]

    def change_meanwhile(seconds: float) -> None:
        rows.execute(f"UPDATE jobs_queue SET status = {then[len(paused)]:d}")  # nothing of ours holds the row
        paused.append(seconds)

    monkeypatch.setattr(time, "sleep", change_meanwhile)
    state = server.wait(task_id, "5m")
    assert state == server.get(task_id)
    assert state is not None
    assert (state.status, str(state.status)) == (Status.FATAL, "fatal")
    assert paused == pytest.approx([0.05, 0.1, 0.2, 0.4, 0.8, 1, 1])


def test_wait_ends_with_its_time(server: TaskServer) -> None:
    task_id = server.add_task("tasks.x")
    for timeout, least in ((0, 0), (0.1, 0.1)):
        began = time.monotonic()
        words = f"^task {task_id} has not ended within {least} s: its status is new$"
        with pytest.raises(NotEnded, match=words) as caught:
            server.wait(task_id, timeout)
        assert isinstance(caught.value, (TaskServerError, TimeoutError))
        assert time.monotonic() - began >= least


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
