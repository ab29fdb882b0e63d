"""Schedule: when its time has come → new, one task, and the next time, in one commit."""

from __future__ import annotations

from taskserver.model.schedule import ScheduleRow
from taskserver.stores import Store
from taskserver.stores.queue.schedules import Schedules
from tests.support.rows import Rows

HOURLY = ScheduleRow("n", "tasks.send", "[1]", 3, -1, 3600, None, "UTC")


def test_a_schedule_adds_one_task_when_its_time_has_come_and_none_before(store: Store, rows: Rows) -> None:
    """→ new. Another worker was here, or its task has not ended: nothing is added."""
    schedules = Schedules(store)
    schedules.put(HOURLY)
    make_due = f"UPDATE jobs_queue_schedules SET next_at = {rows.after(-10)}"
    rows.execute(f"UPDATE jobs_queue_schedules SET next_at = {rows.after(600)}")
    assert (schedules.fire("n"), schedules.fire("of nobody"), rows.all()) == (False, False, [])
    rows.execute(make_due)
    assert store.due.look().schedules == ["n"]
    assert [schedules.fire("n") for _ in range(2)] == [True, False]
    assert rows.one("task", "args", "group_id", "priority", "status") == ("tasks.send", "[1]", 3, -1, 0)
    rows.execute(make_due)
    before = rows.all()
    assert schedules.fire_all(["n"]) == 1
    assert rows.all() == before
    rows.set("status = 4")
    rows.execute(make_due)
    assert schedules.fire_all(["n"]) == 1
    assert rows.statuses() == [0]
    ids = [schedules.run_now("n")]
    rows.execute("DELETE FROM jobs_queue")
    ids.append(schedules.run_now("n"))
    assert (rows.statuses(), rows.one("id")) == ([0], ids[1])


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
