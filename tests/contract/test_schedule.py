"""Schedule: when its time has come → new, one task, and the next time, in one commit."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import datetime
from typing import Any, NoReturn

import pytest

from taskserver.model.schedule import ScheduleRow, next_time
from taskserver.stores import Store
from taskserver.stores.queue import schedules as module
from taskserver.stores.queue.schedules import Schedules
from tests.contract.verbs import STATES, put_into
from tests.support.processes import WAIT_SECONDS, together
from tests.support.rows import Rows

HOURLY = ScheduleRow("n", "tasks.send", "[1]", 3, -1, 3600, None, "UTC")


def make_due(rows: Rows) -> None:
    rows.execute(f"UPDATE jobs_queue_schedules SET next_at = {rows.after(-10)}")


def a_due_schedule(store: Store, rows: Rows) -> Schedules:
    schedules = Schedules(store)
    schedules.put(HOURLY)
    make_due(rows)
    return schedules


def test_a_schedule_adds_one_task_when_its_time_has_come_and_none_before(store: Store, rows: Rows) -> None:
    schedules = Schedules(store)
    schedules.put(HOURLY)
    rows.execute(f"UPDATE jobs_queue_schedules SET next_at = {rows.after(600)}")
    assert (schedules.fire("n"), schedules.fire("of nobody"), rows.all()) == (False, False, [])
    make_due(rows)
    assert store.due.look().schedules == ["n"]
    assert [schedules.fire_all(["n", "n"]), schedules.fire("n")] == [1, False]
    assert rows.one("task", "args", "group_id", "priority", "status") == ("tasks.send", "[1]", 3, -1, 0)
    assert schedules.run_now("n") == rows.one("id")


def test_a_sync_makes_changes_and_removes_what_only_an_earlier_one_had(store: Store, rows: Rows) -> None:
    schedules = Schedules(store)
    daily, weekly = (HOURLY._replace(name=name, every_seconds=every) for name, every in (("d", 86_400), ("w", 604_800)))
    schedules.put(HOURLY)
    assert schedules.sync([daily, weekly]) == (["d", "w"], [], [])
    planned = rows.execute("SELECT name, next_at FROM jobs_queue_schedules WHERE name <> 'w' ORDER BY name")
    assert schedules.sync([weekly._replace(priority=3), daily]) == ([], ["w"], [])
    assert schedules.sync([daily]) == ([], [], ["w"])
    assert rows.execute("SELECT name, next_at FROM jobs_queue_schedules ORDER BY name") == planned
    assert [schedules.sync(given) for given in ([HOURLY], [])] == [([], [], ["d"]), ([], [], ["n"])]
    assert schedules.all() == []


# ---- whatever became of the task of an earlier time


@pytest.mark.parametrize("state", STATES)
def test_an_ended_task_becomes_new_and_any_other_stays(store: Store, rows: Rows, state: str) -> None:
    schedules = a_due_schedule(store, rows)
    assert schedules.fire("n")
    before = put_into(rows, state)
    schedules.put(HOURLY._replace(task="tasks.other", args="[2]", group_id=5))
    make_due(rows)
    assert schedules.fire("n")
    (row,) = rows.all()
    if state not in ("done", "fatal", "lost", "cancelled"):
        assert row == before
        return
    said = {"task": "tasks.other", "args": "[2]", "group_id": 5, "priority": -1, "status": 0, "attempts": 0}
    said |= dict.fromkeys(("max_attempts", "due_at", "claim", "error_text", "finished_at"))
    assert row == before | said | {name: row[name] for name in ("created_at", "updated_at")}
    assert rows.seconds_from_now(row["updated_at"]) == pytest.approx(0, abs=30)


# ---- several workers at once


def test_of_workers_that_read_the_same_time_one_adds_the_task(
    open_store: Callable[..., Store], rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores = [open_store() for _ in range(6)]
    a_due_schedule(stores[0], rows)
    barrier, fired = threading.Barrier(len(stores)), list[bool]()

    def wait_and_compute(*given: Any) -> datetime:
        barrier.wait(WAIT_SECONDS)  # all have read before the first of them writes
        return next_time(*given)

    monkeypatch.setattr(module, "next_time", wait_and_compute)
    for count in (1, 2, 3):
        make_due(rows)
        with together(*[lambda store=store: fired.append(Schedules(store).fire("n")) for store in stores]):
            pass
        assert sorted(fired) == [False] * 5 * count + [True] * count
        assert rows.statuses() == [0]
        rows.set("status = 2")


def test_a_worker_that_breaks_off_leaves_the_time_to_the_next(
    store: Store, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    schedules = a_due_schedule(store, rows)
    before = rows.execute("SELECT next_at FROM jobs_queue_schedules")

    def break_off(*given: Any) -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setattr(schedules, "_add", break_off)
    with pytest.raises(KeyboardInterrupt):
        schedules.fire("n")
    store.close()
    assert (rows.all(), rows.execute("SELECT next_at FROM jobs_queue_schedules")) == ([], before)
    assert (Schedules(store).fire("n"), rows.statuses()) == (True, [0])
