"""Periodic tasks: each time adds one task, however workers race or break off. The clock is moved by SQL.

tests/unit/test_new_task.py checks timings.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any

import pytest

from taskserver import InvalidTask, Schedule, TaskServer
from taskserver.model.task import Status
from taskserver.stores.queue.schedules import RETRY_INVALID_SECONDS, Schedules
from tests.support.queues import LONG_AGO, Queue
from tests.support.rows import Rows


def next_at(rows: Rows) -> datetime:
    ((found,),) = rows.execute("SELECT next_at FROM jobs_queue_schedules WHERE name = 'nightly'")
    return datetime.fromisoformat(str(found))


def seconds_to_next(rows: Rows) -> float:
    return rows.seconds_from_now(next_at(rows))


def make_due(rows: Rows | Queue) -> None:
    sql = rows.sql if isinstance(rows, Queue) else rows.execute
    sql(f"UPDATE jobs_queue_schedules SET next_at = '{LONG_AGO}'")


def fire(server: TaskServer, name: str = "nightly") -> bool:
    return Schedules(server.store).fire(name)


# ---- put

EVERY, AT_SEVEN = {"every": 600}, {"cron": "7 3 * * *", "timezone": "Asia/Tokyo"}


@pytest.mark.parametrize(
    ("first", "then"),
    [(EVERY, EVERY), (EVERY, {"every": 900}), (AT_SEVEN, {**AT_SEVEN, "timezone": "Asia/Dhaka"}), (AT_SEVEN, EVERY)],
)
def test_only_another_timing_changes_the_next_time(
    server: TaskServer, rows: Rows, first: dict[str, Any], then: dict[str, Any]
) -> None:
    server.schedule("nightly", "tasks.note", **first)
    make_due(rows)
    planned = next_at(rows)
    server.schedule("nightly", "tasks.other", ["x"], group_id=3, priority=-5, **then)
    (stored,) = Schedules(server.store).all()
    timing = (then.get("every"), then.get("cron"), then.get("timezone", "UTC"))
    assert stored.schedule == ("nightly", "tasks.other", '["x"]', 3, -5, *timing)
    assert (next_at(rows) == planned) if first == then else (seconds_to_next(rows) > 0)


# ---- fire


def test_times_that_were_missed_add_one_task(server: TaskServer, rows: Rows) -> None:
    server.schedule("nightly", "tasks.note", every=1)
    server.schedule("hourly", "tasks.note", cron="0 * * * *")
    make_due(rows)
    assert [fire(server), fire(server, "hourly"), fire(server, "hourly")] == [True, True, False]
    assert len(rows.all()) == 2
    assert seconds_to_next(rows) > -5


@pytest.mark.parametrize(
    ("row", "held", "is_silenced"),
    [
        ("3, {soon}", "error", False),
        ("3, {later}", "error", True),
        ("4, NULL", None, False),
    ],
)
def test_the_task_that_holds_a_schedule_s_key_is_named(
    server: TaskServer, rows: Rows, row: str, held: str | None, is_silenced: bool
) -> None:
    """The schedule counts as silenced if that task is not due for more than a day."""
    server.schedule("nightly", "tasks.note", every=86_400)
    values = row.format(later=rows.after(30 * 86_400), soon=rows.after(3600))
    columns = "task, unique_key, status, due_at"
    rows.execute(f"INSERT INTO jobs_queue ({columns}) VALUES ('tasks.note', 'schedule:nightly', {values})")
    (stored,) = Schedules(server.store).all()
    words = f"task 1 has its key and is {held}: its times add nothing until that task has ended"
    assert (stored.held, stored.is_silenced) == (held and words, is_silenced)


# ---- sync

GOOD = Schedule(name="new", task="tasks.note", every=60)


@pytest.mark.parametrize(
    ("wrong", "fault"),
    [
        ([GOOD, {**GOOD, "name": "n", "evry": 9}], "schedule 2 'n': it has 'evry'; allowed: name, task, args, every"),
        ([GOOD, GOOD], "schedule 2 'new': a schedule before it has the same name"),
        ([GOOD, "n"], "schedule 2: it is 'n'; allowed: Schedule("),
        (None, "schedules is None; allowed: a list"),
    ],
)
def test_a_sync_with_an_invalid_schedule_changes_nothing(
    server: TaskServer, rows: Rows, wrong: Any, fault: str
) -> None:
    server.sync_schedules([Schedule(name="old", task="tasks.note", every=600)])
    before = rows.execute("SELECT * FROM jobs_queue_schedules")
    with pytest.raises(InvalidTask, match=rf"^{re.escape(fault)}"):
        server.sync_schedules(wrong)
    assert rows.execute("SELECT * FROM jobs_queue_schedules") == before


# ---- run now


def test_a_schedule_run_now_adds_its_task_and_keeps_its_next_time(server: TaskServer, rows: Rows) -> None:
    server.schedule("nightly", "tasks.note", ["x"], every=600, group_id=3, priority=-5)
    planned = next_at(rows)
    task_id = server.run_schedule_now("nightly")
    columns = ("id", "task", "args", "group_id", "priority", "status")
    assert rows.one(*columns) == (task_id, "tasks.note", '["x"]', 3, -5, Status.NEW)
    for status, then in ((1, 1), (5, 5), (4, 0)):
        rows.set(f"status = {status}")
        assert (server.run_schedule_now("nightly"), rows.statuses()) == (task_id, [then])
    assert next_at(rows) == planned
    with pytest.raises(InvalidTask, match="there is no schedule 'daily'"):
        server.run_schedule_now("daily")


# ---- runs, and how the last task ended


@pytest.mark.parametrize("mode", ["move", "mark"])
def test_each_time_runs_once_in_every_mode(queue: Queue, mode: str) -> None:
    queue.server.schedule("nightly", "tasks.note", ["ran"], every=86_400)
    for count in (1, 2, 3):
        make_due(queue)
        for _ in range(2):
            queue.run_quietly(mode=mode)
        assert queue.notes() == ["ran"] * count
    assert queue.statuses() == ([Status.DONE] if mode == "mark" else [])
    assert len(queue.rows("id", "jobs_queue_done")) == (3 if mode == "move" else 0)
    (stored,) = Schedules(queue.server.store).all()
    assert stored.last
    assert re.fullmatch(r"today \d\d:\d\d, done in \d s", stored.last.words)


def test_how_the_last_task_of_a_schedule_ended_is_known_until_the_schedule_is_removed(queue: Queue) -> None:
    queue.server.schedule("nightly", "tasks.missing", every=86_400)
    queue.sql("INSERT INTO jobs_queue (task, unique_key) VALUES ('tasks.note', 'schedule:other')")
    make_due(queue)
    queue.run_here()
    last = Schedules(queue.server.store).all()[0].last
    assert last
    assert (last.status, last.words.partition(", ")[2]) == (Status.FATAL, "failed for good after 0 s")
    assert queue.sql("SELECT COUNT(*) FROM jobs_queue_notes") == [(1,)]
    queue.server.unschedule("nightly")
    assert queue.sql("SELECT COUNT(*) FROM jobs_queue_notes") == [(0,)]


# ---- schedules that are invalid


def test_an_invalid_schedule_is_logged_once_a_run_and_put_off(
    server: TaskServer, rows: Rows, caplog: pytest.LogCaptureFixture
) -> None:
    values = f"('nightly', 'tasks.note', '{LONG_AGO}', 60, '* * * * *')"
    rows.execute(f"INSERT INTO jobs_queue_schedules (name, task, next_at, every_seconds, cron) VALUES {values}")
    worker = Schedules(server.store)
    for _ in range(2):
        make_due(rows)
        assert worker.fire("nightly")
        assert seconds_to_next(rows) == pytest.approx(RETRY_INVALID_SECONDS, abs=30)
    (logged,) = caplog.messages
    assert logged.startswith("schedule nightly: ")
    assert "it has every and cron" in logged
    (stored,) = worker.all()
    assert (rows.all(), "it has every and cron" in str(stored.fault)) == ([], True)
