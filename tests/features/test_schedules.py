"""Periodic tasks: what may be given, when each time comes, and that each time adds one task, whoever races or dies.

Time is moved by SQL, by putting `next_at` into the past; no test waits for it.
"""

from __future__ import annotations

import json
import logging
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from taskserver import InvalidTask, SettingError, TaskServer
from taskserver.model.schedule import Schedule, check_schedule, new_schedule, next_time
from taskserver.model.task import Status
from taskserver.stores.queue import schedules
from taskserver.stores.queue.due import MAX_DUE_PER_LOOK
from taskserver.stores.queue.schedules import MAX_FAULTS_TOLD, PUT_OFF_SECONDS, Schedules
from tests.support.deployment import ROOT
from tests.support.documents import REFERENCE, columns_in_mysql, columns_in_sqlite, table
from tests.support.processes import WAIT_SECONDS, assert_one_line, assert_silent, kill, wait_until
from tests.support.queues import LONG_AGO, Queue
from tests.support.rows import Rows

MODES = ("delete", "move", "mark")
HOLD = "SELECT name FROM jobs_queue_schedules WHERE name = %s FOR UPDATE"
SETTINGS = {"TASKSERVER_BACKOFF": "fixed:30", "TASKSERVER_MAX_ATTEMPTS": "2"}
TASKS = """
import time


def wait(text):
    note(text)
    while not (HERE / "go").exists():
        time.sleep(0.01)


def fail(text):
    note(text)
    raise RuntimeError("not today")
"""
RACERS = 6


# ---- what may be given


def schedule(**given: Any) -> Schedule:
    known: dict[str, Any] = {
        "name": "nightly",
        "task": "tasks.note",
        "args": None,
        "every": None,
        "cron": None,
        "timezone": "UTC",
        "group_id": 0,
        "priority": 0,
    }
    return new_schedule(**known | given)


def test_a_schedule_is_what_was_given() -> None:
    given = schedule(
        name="täglich", args={"n": 1}, cron=" 0  3 * * * ", timezone="Europe/Berlin", group_id=3, priority=-1
    )
    assert given == ("täglich", "tasks.note", '{"n":1}', 3, -1, None, "0 3 * * *", "Europe/Berlin")
    assert schedule(every=timedelta(minutes=5)).every_seconds == schedule(every=300.0).every_seconds == 300


@pytest.mark.parametrize(
    "name", ["", "a" * 201, "ä" * 101, "a\nb", "a\x00", " a", "a ", "a\x85", "\ud800", 5, None, b"a"]
)
def test_a_name_that_is_none_is_refused(name: Any) -> None:
    with pytest.raises(InvalidTask, match=r"name is .*; allowed: a text of 1 to 200 bytes"):
        schedule(name=name, every=60)


@pytest.mark.parametrize(
    "every", [0, -5, 0.5, 1.5, True, "60", 10**10, float("nan"), timedelta(0), timedelta(days=4000)]
)
def test_seconds_that_are_none_are_refused(every: Any) -> None:
    with pytest.raises(InvalidTask, match=r"every is .*; allowed: whole seconds"):
        schedule(every=every)


@pytest.mark.parametrize(
    "cron",
    [
        *("", "daily", "@daily", "* * * *", "0 * * * * *", "60 * * * *", "* * 0 * *", "* * * * 8", "*/0 * * * *"),
        *("0 0 31 2 *", "²L * * * *", "\udc80 * * * *", "*," * 200 + "* * * * *", "1-0 * * * *", 5),
    ],
)
def test_an_expression_that_is_none_is_refused(cron: Any) -> None:
    with pytest.raises(InvalidTask, match=r"cron is .*; allowed: minute, hour, day"):
        schedule(cron=cron)


@pytest.mark.parametrize(
    "name",
    ["", "Berlin", "Europe", "../UTC", "/etc/localtime", "utc ", "zone.tab", "a" * 5000, "\x00", "\udc80", 5, None],
)
def test_a_time_zone_that_is_none_is_refused(name: Any) -> None:
    with pytest.raises(InvalidTask, match=r"timezone is .*; allowed: UTC, or a name as Europe/Berlin"):
        schedule(cron="* * * * *", timezone=name)


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ({}, "neither every nor cron"),
        ({"every": 60, "cron": "* * * * *"}, "it has every and cron; allowed: one of them"),
        ({"every": 60, "timezone": "Europe/Berlin"}, "every and a timezone"),
        ({"every": 60, "task": "note"}, "task is 'note'"),
        ({"every": 60, "args": "x"}, "args is 'x'"),
        ({"every": 60, "group_id": -1}, "group_id is -1"),
        ({"every": 60, "priority": 2**31}, "priority is 2147483648"),
    ],
)
def test_what_does_not_go_together_or_is_no_task_is_refused(given: dict[str, Any], fault: str) -> None:
    with pytest.raises(InvalidTask, match=fault):
        schedule(**given)


def test_a_time_that_the_database_cannot_hold_is_refused() -> None:
    now = utc("2026-01-01 00:00")
    with pytest.raises(InvalidTask, match="after 2038-01-19"):
        next_time(schedule(cron="0 0 * 2 MON#5"), now, now)
    with pytest.raises(InvalidTask, match="after 2038-01-19"):
        next_time(schedule(every=86_400), utc("2038-01-18 12:00"), utc("2038-01-18 13:00"))


# ---- when the next time is


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=timezone.utc)


def times(now: str, count: int, **given: Any) -> list[str]:
    """The first times after an instant in UTC, as the clock of that place shows them in UTC."""
    instant, found = utc(now), []
    for _ in range(count):
        instant = next_time(schedule(**given), instant, instant)
        found.append(f"{instant:%d %H:%M}")
        assert instant.tzinfo is timezone.utc
    return found


def test_every_counts_from_the_planned_time_however_late_it_is_looked_at() -> None:
    every = schedule(every=300)
    planned = utc("2026-01-01 00:00:00.250000")
    for late in ("00:00:00.250000", "00:00:03", "00:05:00.249999"):
        assert next_time(every, planned, utc(f"2026-01-01 {late}")) == utc("2026-01-01 00:05:00.250000")
    assert next_time(every, planned, utc("2026-01-01 00:05:00.250000")) == utc("2026-01-01 00:10:00.250000")
    assert next_time(every, planned, utc("2026-01-09 17:03:59")) == utc("2026-01-09 17:05:00.250000")


def test_every_goes_on_from_a_planned_time_ahead() -> None:
    assert next_time(schedule(every=60), utc("2026-01-01 00:10"), utc("2026-01-01 00:00")) == utc("2026-01-01 00:11")


def test_a_fixed_hour_comes_once_where_the_clocks_go_forward_over_it() -> None:
    """On the 29th Berlin has no 02:30: it comes at 03:00, which is 01:00 in UTC."""
    found = times("2026-03-27 12:00", 4, cron="30 2 * * *", timezone="Europe/Berlin")
    assert found == ["28 01:30", "29 01:00", "30 00:30", "31 00:30"]


def test_a_fixed_hour_comes_once_where_the_clocks_go_back_over_it() -> None:
    """On the 25th Berlin has 02:30 twice: it comes at the first one."""
    found = times("2026-10-23 12:00", 4, cron="30 2 * * *", timezone="Europe/Berlin")
    assert found == ["24 00:30", "25 00:30", "26 01:30", "27 01:30"]


def test_a_star_follows_the_clock_as_it_goes() -> None:
    star = {"cron": "*/30 2 * * *", "timezone": "Europe/Berlin"}
    assert times("2026-03-28 12:00", 2, **star) == ["30 00:00", "30 00:30"]
    assert times("2026-10-24 12:00", 5, **star) == ["25 00:00", "25 00:30", "25 01:00", "25 01:30", "26 01:00"]
    assert times("2026-10-24 22:59", 4, cron="0 * * * *", timezone="Europe/Berlin") == [
        f"{day} {hour}:00" for day, hour in (("24", "23"), ("25", "00"), ("25", "01"), ("25", "02"))
    ]


def test_utc_knows_no_summer_time() -> None:
    assert times("2026-10-24 12:00", 2, cron="30 2 * * *") == ["25 02:30", "26 02:30"]


def test_within_the_second_two_o_clock_the_next_time_is_not_the_first_one_that_is_past() -> None:
    nightly = schedule(cron="30 2 * * *", timezone="Europe/Berlin")
    now = utc("2026-10-25 01:10")  # 02:10 for the second time
    assert next_time(nightly, utc("2026-10-25 00:30"), now) == utc("2026-10-26 01:30")


# ---- in the database


@pytest.fixture
def server(dsn: str, tmp_path: Path) -> Iterator[TaskServer]:
    with TaskServer(dsn, folder=tmp_path) as opened:
        opened.create_tables()
        yield opened


@pytest.fixture
def rows(server: TaskServer, dsn: str) -> Iterator[Rows]:
    seen = Rows(dsn)
    yield seen
    seen.close()


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What is warned of."""
    warnings: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            warnings.append(record.getMessage())

    handler = Keep(logging.WARNING)
    logging.getLogger("taskserver").addHandler(handler)
    yield warnings
    logging.getLogger("taskserver").removeHandler(handler)


def next_at(rows: Rows, name: str = "nightly") -> datetime:
    ((found,),) = rows.execute(f"SELECT next_at FROM jobs_queue_schedules WHERE name = '{name}'")
    return utc(str(found))


def move_to_past(rows: Rows, seconds: float = 100_000) -> None:
    rows.execute(f"UPDATE jobs_queue_schedules SET next_at = {rows.after(-seconds)}")


def fire(server: TaskServer, name: str = "nightly") -> bool:
    return Schedules(server.store).fire(name)


def task_of(rows: Rows, name: str = "nightly") -> dict[str, Any]:
    """The only task there is."""
    (row,) = rows.all()
    assert bytes(row["unique_key"], "ascii") if isinstance(row["unique_key"], str) else row["unique_key"]
    assert row["unique_key"] in (f"schedule:{name}", f"schedule:{name}".encode())
    return row


# ---- put


def test_the_first_time_comes_after_the_seconds_that_were_given(server: TaskServer, rows: Rows) -> None:
    server.schedule("nightly", "tasks.note", every=600)
    assert rows.seconds_from_now(next_at(rows).replace(tzinfo=None)) == pytest.approx(600, abs=30)


def test_the_first_time_of_an_expression_is_its_next_one(server: TaskServer, rows: Rows) -> None:
    server.schedule("nightly", "tasks.note", cron="7 3 * * *", timezone="Asia/Kathmandu")
    found = next_at(rows)
    assert (found.hour, found.minute, found.second, found.microsecond) == (21, 22, 0, 0)
    assert 0 < rows.seconds_from_now(found.replace(tzinfo=None)) <= 86_400


@pytest.mark.parametrize("timing", [{"every": 600}, {"cron": "*/5 * * * *", "timezone": "Europe/Berlin"}])
def test_the_same_again_changes_nothing(server: TaskServer, rows: Rows, timing: dict[str, Any]) -> None:
    server.schedule("nightly", "tasks.note", {"n": 1}, **timing)
    move_to_past(rows)
    before = rows.execute("SELECT * FROM jobs_queue_schedules")
    server.schedule("nightly", "tasks.note", {"n": 1}, **timing)
    assert rows.execute("SELECT * FROM jobs_queue_schedules") == before


def test_another_task_keeps_the_next_time(server: TaskServer, rows: Rows) -> None:
    server.schedule("nightly", "tasks.note", every=600)
    move_to_past(rows)
    before = next_at(rows)
    server.schedule("nightly", "tasks.wait", ["x"], every=600, group_id=3, priority=-5)
    (stored,) = Schedules(server.store).all()
    assert stored.schedule == ("nightly", "tasks.wait", '["x"]', 3, -5, 600, None, "UTC")
    assert next_at(rows) == before


@pytest.mark.parametrize(
    "first", [{"every": 600}, {"cron": "7 3 * * *"}, {"cron": "7 3 * * *", "timezone": "Asia/Tokyo"}]
)
@pytest.mark.parametrize(
    "then", [{"every": 900}, {"cron": "9 3 * * *"}, {"cron": "7 3 * * *", "timezone": "Asia/Dhaka"}]
)
def test_another_timing_is_reckoned_from_now(
    server: TaskServer, rows: Rows, first: dict[str, Any], then: dict[str, Any]
) -> None:
    server.schedule("nightly", "tasks.note", **first)
    move_to_past(rows)
    server.schedule("nightly", "tasks.note", **then)
    assert rows.seconds_from_now(next_at(rows).replace(tzinfo=None)) > 0
    (stored,) = Schedules(server.store).all()
    assert stored.schedule == schedule(**then)


def test_deploys_at_once_make_one_schedule(
    server: TaskServer, rows: Rows, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    meet_at_reckoning(monkeypatch)
    run_at_once(dsn, lambda other: Schedules(other.store).put(schedule(every=600)))
    assert rows.execute("SELECT name, every_seconds FROM jobs_queue_schedules") == [("nightly", 600)]


def test_what_a_schedule_added_stays_where_it_is_ended(server: TaskServer, rows: Rows) -> None:
    server.schedule("nightly", "tasks.note", every=600)
    move_to_past(rows)
    assert fire(server)
    assert server.unschedule("nightly")
    assert not server.unschedule("nightly")
    assert task_of(rows)["status"] == Status.NEW
    assert not fire(server)


@pytest.mark.parametrize("name", [0, None, b"nightly", "\ud800"])
def test_only_a_text_names_the_schedule_that_is_ended(server: TaskServer, name: Any) -> None:
    server.schedule("nightly", "tasks.note", every=600)
    with pytest.raises(InvalidTask, match=r"name is .*; allowed: a text"):
        server.unschedule(name)
    assert len(Schedules(server.store).all()) == 1


# ---- fire


def test_its_time_adds_the_task_as_it_was_given(server: TaskServer, rows: Rows) -> None:
    server.schedule("nightly", "tasks.note", {"text": "ä"}, every=600, group_id=3, priority=-5)
    move_to_past(rows, 10)
    assert server.store.due.look().schedules == ["nightly"]
    assert fire(server)
    row = task_of(rows)
    assert (row["task"], row["args"], row["group_id"], row["priority"]) == ("tasks.note", '{"text":"ä"}', 3, -5)
    assert (row["status"], row["attempts"], row["max_attempts"], row["due_at"]) == (0, 0, None, None)
    assert server.store.due.look().schedules == []


def test_a_schedule_whose_time_lies_ahead_adds_nothing(server: TaskServer, rows: Rows) -> None:
    server.schedule("nightly", "tasks.note", every=600)
    before = next_at(rows)
    assert not fire(server)
    assert not fire(server, "no such one")
    assert (rows.all(), next_at(rows)) == ([], before)


def test_it_never_drifts_over_many_times(server: TaskServer, rows: Rows) -> None:
    server.schedule("nightly", "tasks.note", every=7)
    origin = next_at(rows)
    for late in range(1, 60, 3):
        moved = (next_at(rows) - timedelta(seconds=7 * late)).replace(tzinfo=None)
        rows.execute(f"UPDATE jobs_queue_schedules SET next_at = '{moved:%Y-%m-%d %H:%M:%S.%f}'")
        assert fire(server)
        assert (next_at(rows) - origin) % timedelta(seconds=7) == timedelta(0)
        assert 0 < rows.seconds_from_now(next_at(rows).replace(tzinfo=None)) <= 7


def test_times_that_were_missed_come_once(server: TaskServer, rows: Rows) -> None:
    server.schedule("nightly", "tasks.note", every=1)
    server.schedule("hourly", "tasks.note", cron="0 * * * *")
    move_to_past(rows, 30 * 86_400)
    assert [fire(server), fire(server, "hourly"), fire(server, "hourly")] == [True, True, False]
    assert len(rows.all()) == 2
    assert all(rows.seconds_from_now(next_at(rows, name).replace(tzinfo=None)) > -5 for name in ("nightly", "hourly"))


ENDED = {
    "done": "status = 2, attempts = 3, finished_at = created_at",
    "fatal": "status = 4, attempts = 3, error_text = 'lost: x', claim = 7, max_attempts = 1, finished_at = created_at",
    "cancelled": "status = 4, error_text = 'cancelled'",
}
UNDER_WAY = {
    "new": "status = 0",
    "claimed": f"status = 1, claim = 7, due_at = '{LONG_AGO}'",
    "running": f"status = 1, claim = 7, attempts = 1, due_at = '{LONG_AGO}', started_at = created_at",
    "changed while it runs": f"status = 1, claim = 7, attempts = 0, due_at = '{LONG_AGO}', started_at = created_at",
    "error": f"status = 3, attempts = 1, due_at = '{LONG_AGO}', error_text = 'x', started_at = created_at",
    "waiting": f"status = 5, due_at = '{LONG_AGO}'",
    "waiting for others": "status = 5",
}


@pytest.mark.parametrize("was", ENDED)
def test_a_task_that_has_ended_becomes_new_as_the_schedule_now_has_it(server: TaskServer, rows: Rows, was: str) -> None:
    server.schedule("nightly", "tasks.note", ["old"], every=600)
    move_to_past(rows)
    assert fire(server)
    rows.execute(f"UPDATE jobs_queue SET {ENDED[was]}, created_at = '{LONG_AGO}', updated_at = '{LONG_AGO}'")
    server.schedule("nightly", "tasks.wait", ["new"], every=600, group_id=3, priority=-5)
    move_to_past(rows)
    assert fire(server)
    row = task_of(rows)
    assert (row["task"], row["args"], row["group_id"], row["priority"]) == ("tasks.wait", '["new"]', 3, -5)
    assert (row["status"], row["attempts"], row["max_attempts"]) == (0, 0, None)
    assert (row["claim"], row["due_at"], row["error_text"], row["finished_at"]) == (None, None, None, None)
    assert rows.seconds_from_now(row["created_at"]) == pytest.approx(0, abs=30)
    assert rows.seconds_from_now(row["updated_at"]) == pytest.approx(0, abs=30)


@pytest.mark.parametrize("state", UNDER_WAY)
def test_a_task_that_is_under_way_is_left_as_it_is_and_that_time_is_passed_over(
    server: TaskServer, rows: Rows, state: str
) -> None:
    server.schedule("nightly", "tasks.note", ["old"], every=600)
    move_to_past(rows)
    assert fire(server)
    rows.execute(f"UPDATE jobs_queue SET {UNDER_WAY[state]}, updated_at = '{LONG_AGO}'")
    before = rows.all()
    server.schedule("nightly", "tasks.wait", ["new"], every=600, group_id=3, priority=-5)
    move_to_past(rows)
    assert fire(server)
    assert rows.all() == before
    assert rows.seconds_from_now(next_at(rows).replace(tzinfo=None)) > 0


# ---- several at once


def meet_at_reckoning(monkeypatch: pytest.MonkeyPatch) -> None:
    """All racers have read before the first of them writes."""
    barrier = threading.Barrier(RACERS)

    def wait_and_reckon(*given: Any) -> datetime:
        barrier.wait(WAIT_SECONDS)
        return next_time(*given)

    monkeypatch.setattr(schedules, "next_time", wait_and_reckon)


def run_at_once(dsn: str, work: Callable[[TaskServer], object]) -> list[object]:
    """What each racer's work gave, each on a connection of its own."""
    outcomes: list[object] = []

    def race() -> None:
        with TaskServer(dsn) as server:
            outcomes.append(work(server))

    threads = [threading.Thread(target=race) for _ in range(RACERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_SECONDS)
    assert len(outcomes) == RACERS
    return outcomes


def test_of_workers_that_read_the_same_time_one_adds_the_task(
    server: TaskServer, rows: Rows, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.schedule("nightly", "tasks.note", every=600)
    move_to_past(rows)
    meet_at_reckoning(monkeypatch)
    outcomes = run_at_once(dsn, fire)
    assert sorted(map(str, outcomes)) == ["False"] * (RACERS - 1) + ["True"]
    assert task_of(rows)["status"] == Status.NEW


def test_a_worker_that_read_a_time_and_comes_late_does_not_add_its_task_again(
    server: TaskServer, rows: Rows, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.schedule("nightly", "tasks.note", every=600)
    move_to_past(rows)

    def let_another_go_first(*given: Any) -> datetime:
        monkeypatch.setattr(schedules, "next_time", next_time)
        with TaskServer(dsn) as other:
            assert fire(other)
        rows.execute("DELETE FROM jobs_queue")  # it ran to its end
        return next_time(*given)

    monkeypatch.setattr(schedules, "next_time", let_another_go_first)
    assert not fire(server)
    assert rows.all() == []


def test_workers_that_start_at_once_run_each_time_of_many_schedules_once(queue: Queue) -> None:
    with TaskServer(queue.dsn) as server:
        for number in range(20):
            server.schedule(f"number {number}", "tasks.note", [str(number)], every=600)
    queue.sql(f"UPDATE jobs_queue_schedules SET next_at = '{LONG_AGO}'")
    workers = [queue.start("--batch", 1) for _ in range(3)]
    for worker in workers:
        assert worker.wait(WAIT_SECONDS) == 0
    assert_silent(queue.worker())
    assert sorted(queue.notes(), key=int) == [str(number) for number in range(20)]


# ---- workers that are killed

KILLED_BETWEEN = """
import os, signal, sys
from taskserver import TaskServer
from taskserver.stores.queue.schedules import Schedules

server = TaskServer(sys.argv[1])
execute = server.store.database.execute


def die(sql, values=()):
    if sql.startswith("INSERT INTO {table}"):
        os.kill(os.getpid(), signal.SIGKILL)
    return execute(sql, values)


server.store.database.execute = die
Schedules(server.store).fire("nightly")
"""


def test_a_worker_that_is_killed_between_the_two_writes_leaves_the_time_to_the_next(
    server: TaskServer, rows: Rows, dsn: str
) -> None:
    server.schedule("nightly", "tasks.note", every=600)
    move_to_past(rows)
    before = next_at(rows)
    killed = subprocess.run([sys.executable, "-c", KILLED_BETWEEN, dsn], cwd=ROOT, capture_output=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert (rows.all(), next_at(rows)) == ([], before)
    wait_until(lambda: fire(server))  # the server may take a moment to see that the other is gone
    assert task_of(rows)["status"] == Status.NEW


def test_a_worker_that_is_killed_in_the_midst_of_the_task_keeps_no_time_from_coming(queue: Queue) -> None:
    with TaskServer(queue.dsn) as server:
        server.schedule("nightly", "tasks.wait", ["ran"], every=600)
    make_due(queue)
    kill(queue.start_task())
    make_due(queue)
    assert_silent(queue.worker())  # its lease holds: this time is passed over
    assert (queue.notes(), queue.statuses()) == (["ran"], [Status.IN_PROGRESS])
    queue.end_leases()
    assert_silent(queue.worker())
    assert queue.statuses() == [Status.ERROR]
    queue.end_backoffs()
    queue.go()
    assert_silent(queue.worker())
    assert (queue.notes(), queue.statuses()) == (["ran"] * 2, [])
    make_due(queue)
    assert_silent(queue.worker())
    assert (queue.notes(), queue.statuses()) == (["ran"] * 3, [])


def make_due(queue: Queue) -> None:
    queue.sql(f"UPDATE jobs_queue_schedules SET next_at = '{LONG_AGO}'")


# ---- runs


@pytest.mark.parametrize("mode", MODES)
def test_each_time_runs_once_in_every_mode(queue: Queue, mode: str) -> None:
    with TaskServer(queue.dsn) as server:
        server.schedule("nightly", "tasks.note", ["ran"], every=600)
    for count in (1, 2, 3):
        make_due(queue)
        assert_silent(queue.worker("--mode", mode))
        assert_silent(queue.worker("--mode", mode))
        assert queue.notes() == ["ran"] * count
    assert queue.statuses() == ([Status.DONE] if mode == "mark" else [])
    assert len(queue.rows("id", "jobs_queue_done")) == (3 if mode == "move" else 0)


@pytest.mark.parametrize("mode", ["delete", "mark"])
def test_a_task_that_fails_is_retried_then_fatal_and_then_comes_at_its_time_again(queue: Queue, mode: str) -> None:
    with TaskServer(queue.dsn) as server:
        server.schedule("nightly", "tasks.fail", ["ran"], every=600)
    make_due(queue)
    assert_silent(queue.worker("--mode", mode))
    assert (queue.notes(), queue.rows("status, attempts")) == (["ran"], [(Status.ERROR, 1)])
    make_due(queue)
    assert_silent(queue.worker("--mode", mode))  # it is to be retried: this time is passed over
    assert (queue.notes(), queue.rows("status, attempts")) == (["ran"], [(Status.ERROR, 1)])
    queue.end_backoffs()
    assert "not today" in queue.worker("--mode", mode).stderr
    assert (queue.notes(), queue.rows("status, attempts")) == (["ran"] * 2, [(Status.FATAL, 2)])
    make_due(queue)
    assert_silent(queue.worker("--mode", mode))
    assert (queue.notes(), queue.rows("status, attempts")) == (["ran"] * 3, [(Status.ERROR, 1)])


# ---- rows that anybody wrote

BROKEN: dict[str, dict[str, Any]] = {
    "neither every nor cron": {},
    "it has every and cron": {"every_seconds": 60, "cron": "* * * * *"},
    "every is 0": {"every_seconds": 0},
    "every is 4294967295": {"every_seconds": 4294967295},
    "Bad minute": {"cron": "61 * * * *"},
    "five fields": {"cron": "* * * * * *"},
    "after 2038": {"cron": "0 0 * 2 MON#5"},
    "timezone is 'Berlin'": {"cron": "* * * * *", "timezone": "Berlin"},
    "task is 'note'": {"every_seconds": 60, "task": "note"},
    "not valid JSON": {"every_seconds": 60, "args": "{'a': 1}"},
    "bare string": {"every_seconds": 60, "args": '"a"'},
    "name is ": {"every_seconds": 60, "name": "ä" * 101},
}


def forge(rows: Rows, **columns: Any) -> None:
    values = {"name": "nightly", "task": "tasks.note", "next_at": LONG_AGO} | columns
    written = ", ".join("'" + str(value).replace("'", "''") + "'" for value in values.values())
    rows.execute(f"INSERT INTO jobs_queue_schedules ({', '.join(values)}) VALUES ({written})")


@pytest.mark.parametrize("fault", BROKEN)
def test_a_row_that_is_no_schedule_is_told_and_put_off(
    server: TaskServer, rows: Rows, told: list[str], fault: str
) -> None:
    forge(rows, **BROKEN[fault])
    ((name,),) = rows.execute("SELECT name FROM jobs_queue_schedules")
    worker = Schedules(server.store)
    assert worker.fire(name)
    ((found,),) = rows.execute("SELECT next_at FROM jobs_queue_schedules")
    assert rows.seconds_from_now(found) == pytest.approx(PUT_OFF_SECONDS, abs=30)
    move_to_past(rows)
    assert worker.fire(name)  # of which one hears once a run
    assert len(told) == 1
    assert told[0].startswith(f"schedule {name}: ")
    assert fault in told[0]
    assert rows.all() == []
    (stored,) = worker.all()
    assert fault in str(stored.fault)


def test_a_row_that_gives_no_next_time_comes_at_once(server: TaskServer, rows: Rows) -> None:
    rows.execute("INSERT INTO jobs_queue_schedules (name, task, every_seconds) VALUES ('nightly', 'tasks.note', 60)")
    assert server.store.due.look().schedules == ["nightly"]
    assert fire(server)
    assert task_of(rows)["args"] is None


def test_a_schedule_that_is_changed_just_as_its_time_comes_adds_what_it_was_changed_to(
    server: TaskServer, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.schedule("nightly", "tasks.note", ["old"], every=600)
    move_to_past(rows)
    worker = Schedules(server.store)
    write = worker._unless_held

    def deploy_before(*args: Any) -> bool:
        rows.execute("UPDATE jobs_queue_schedules SET args = '[\"new\"]', priority = 5")
        return write(*args)

    monkeypatch.setattr(worker, "_unless_held", deploy_before)
    assert worker.fire("nightly")
    assert (task_of(rows)["args"], task_of(rows)["priority"]) == ('["new"]', 5)


def test_schedules_that_others_hold_are_left_for_a_while_and_the_others_come(
    mysql_queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"number {number}" for number in range(6)]
    with TaskServer(mysql_queue.dsn) as server, mysql_queue.connect() as other, other.cursor() as cursor:
        for name in names:
            server.schedule(name, "tasks.note", every=600)
        make_due(mysql_queue)
        worker = Schedules(server.store)
        tried: list[str] = []
        fire = worker.fire

        def fire_and_tell(name: str) -> bool:
            tried.append(name)
            return fire(name)

        monkeypatch.setattr(worker, "fire", fire_and_tell)
        monkeypatch.setattr(schedules, "PAUSE_PER_SECOND", 1000.0)
        monkeypatch.setattr("random.sample", lambda several, count: list(several))
        other.begin()
        cursor.execute(HOLD, ("number 2",))
        assert worker.fire_all(names) == 2
        assert worker.fire_all(names) == 0
        assert tried == names[:3]  # the third one was met, and no other after it
        worker._again_at = 0.0
        other.rollback()
        assert worker.fire_all(names[2:]) == 4
        assert server.store.due.look().schedules == []


def test_a_run_passes_over_what_is_no_schedule(queue: Queue) -> None:
    queue.sql("INSERT INTO jobs_queue_schedules (name, task) VALUES ('bad one', 'tasks.note')")
    with TaskServer(queue.dsn) as server:
        server.schedule("good one", "tasks.note", ["ran"], every=600)
    make_due(queue)
    ended = queue.worker()
    assert_one_line(ended, 0, "schedule bad one: it has neither every nor cron")
    assert queue.notes() == ["ran"]
    assert_silent(queue.worker())


def test_many_rows_that_are_no_schedules_keep_no_good_one_from_its_time(queue: Queue) -> None:
    values = ", ".join(f"('bad {number}', 'tasks.note', '{LONG_AGO}')" for number in range(MAX_DUE_PER_LOOK + 1))
    queue.sql(f"INSERT INTO jobs_queue_schedules (name, task, next_at) VALUES {values}")
    with TaskServer(queue.dsn) as server:
        server.schedule("good one", "tasks.note", ["ran"], every=600)
    queue.sql(f"UPDATE jobs_queue_schedules SET next_at = {queue.now} WHERE name = 'good one'")
    ended = queue.worker()
    *told, rest = ended.stderr.splitlines()
    assert (ended.returncode, len(told)) == (0, MAX_FAULTS_TOLD)
    assert rest == f"more than {MAX_FAULTS_TOLD} schedules have faults: see client.py status"
    assert queue.notes() == ["ran"]


@pytest.mark.parametrize("name", ["X'FF'", "CAST(X'FF' AS TEXT)"])
def test_a_name_of_bytes_in_sqlite_ends_no_worker(sqlite_queue: Queue, name: str) -> None:
    sqlite_queue.sql(f"INSERT INTO jobs_queue_schedules (name, task, every_seconds) VALUES ({name}, 'tasks.note', 60)")
    sqlite_queue.add("tasks.note")
    assert_one_line(sqlite_queue.worker(), 0, "schedule ", "name")
    assert sqlite_queue.notes() == ["noted"]


@pytest.mark.parametrize("instant", ["2020-99-99 00:00:00", "2020-01-01 00:00:00 or so", "2020-01-01 00:00:00"])
def test_a_time_in_sqlite_that_is_written_otherwise_is_as_good(sqlite_queue: Queue, instant: str) -> None:
    with TaskServer(sqlite_queue.dsn) as server:
        server.schedule("nightly", "tasks.note", ["ran"], every=600)
        sqlite_queue.sql("UPDATE jobs_queue_schedules SET next_at = ?", instant)
        (stored,) = Schedules(server.store).all()
        assert (stored.next_at, stored.fault) == (instant, None)
        assert_silent(sqlite_queue.worker())
        (stored,) = Schedules(server.store).all()
        assert 0 < (stored.next_seconds or 0) <= 600
    assert sqlite_queue.notes() == ["ran"]


# ---- without the library


@pytest.fixture
def no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cronsim", None)


def test_without_the_library_every_works_and_cron_says_how_to_get_it(no_library: None) -> None:
    check_schedule(schedule(every=60))
    with pytest.raises(SettingError, match="cronsim is missing") as refused:
        schedule(cron="* * * * *")
    line = f"{sys.executable} -m pip install --target {ROOT} 'cronsim>=2.6,<3'; every needs none"
    assert str(refused.value).endswith(line)


def test_a_host_without_the_library_leaves_the_time_to_another_one(
    server: TaskServer, rows: Rows, told: list[str], no_library: None
) -> None:
    forge(rows, cron="* * * * *")
    before = next_at(rows)
    worker = Schedules(server.store)
    assert [worker.fire("nightly"), worker.fire("nightly")] == [False, False]
    assert (rows.all(), next_at(rows)) == ([], before)
    assert len(told) == 1
    assert "cronsim is missing" in told[0]
    (stored,) = worker.all()
    assert "cronsim is missing" in str(stored.fault)


def test_a_host_without_the_library_still_comes_to_what_it_can_reckon(
    server: TaskServer, rows: Rows, no_library: None
) -> None:
    for number in range(MAX_DUE_PER_LOOK):
        forge(rows, name=str(number), cron="* * * * *")
    forge(rows, every_seconds=60, next_at="2021-01-01 00:00:00.000000")
    assert "nightly" not in server.store.due.look().schedules
    worker = Schedules(server.store)
    for _ in range(2):
        for name in server.store.due.look().schedules:
            worker.fire(name)
    assert task_of(rows)["status"] == Status.NEW


def test_a_host_without_time_zones_says_how_to_get_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("taskserver.model.schedule.available_timezones", set)
    assert schedule(cron="* * * * *").timezone == "UTC"
    with pytest.raises(SettingError, match=r"no time zones but UTC: .* -m pip install --target .* tzdata"):
        schedule(cron="* * * * *", timezone="Nowhere/Nowhere")


# ---- commands


def test_the_command_makes_a_schedule_and_says_when_it_comes(queue: Queue) -> None:
    arguments = ("nightly", "tasks.note", '["ran"]', "--cron", "30 3 * * *", "--timezone", "Asia/Kathmandu")
    made = queue.client("schedule", *arguments, "--group", 3, "--priority", -5)
    assert (made.returncode, made.stderr) == (0, "")
    assert made.stdout.startswith("nightly: next at 20")
    assert made.stdout.endswith(" 21:45:00.000000 UTC\n")
    (report,) = json.loads(queue.client("status", "--json").stdout)["schedules"]
    assert report.pop("next_at").endswith("T21:45:00.000000Z")
    assert 0 < report.pop("next_seconds") <= 86_400
    assert report == {
        "name": "nightly",
        "task": "tasks.note",
        "args": '["ran"]',
        "group_id": 3,
        "priority": -5,
        "every_seconds": None,
        "cron": "30 3 * * *",
        "timezone": "Asia/Kathmandu",
        "fault": None,
    }


def test_the_command_ends_a_schedule_and_may_be_said_again(sqlite_queue: Queue) -> None:
    assert sqlite_queue.client("schedule", "nightly", "tasks.note", "--every", 60).returncode == 0
    ended = sqlite_queue.client("unschedule", "nightly")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "nightly is scheduled no more\n", "")
    assert_one_line(sqlite_queue.client("unschedule", "nightly"), 0, "there is no schedule 'nightly'")


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (("nightly", "tasks.note"), "neither every nor cron"),
        (("nightly", "tasks.note", "--every", "60", "--cron", "* * * * *"), "every and cron"),
        (("nightly", "tasks.note", "--every", "0"), "'0' is not a whole number from 1"),
        (("nightly", "tasks.note", "--cron", "* * *"), "it has not five fields"),
        (("nightly", "tasks.note", "--cron", "*", "*", "*"), "and EXPR too"),
        (("nightly", "tasks.note", "[1", "--every", "60"), "ARGS_JSON is not valid JSON"),
        (("nightly",), "TASK"),
    ],
)
def test_a_mistake_on_the_command_line_is_told_in_one_line(
    sqlite_queue: Queue, arguments: tuple[str, ...], fault: str
) -> None:
    assert_one_line(sqlite_queue.client("schedule", *arguments), 2, fault)


def test_status_shows_when_each_schedule_comes_and_what_is_wrong_with_it(sqlite_queue: Queue) -> None:
    assert "schedule" not in sqlite_queue.client("status").stdout
    for name, timing in (("soon", ("--every", 600)), ("nightly", ("--cron", "30 3 * * *"))):
        assert sqlite_queue.client("schedule", name, "tasks.note", *timing).returncode == 0
    sqlite_queue.sql(
        "INSERT INTO jobs_queue_schedules (name, task, next_at) VALUES (?, 'x', ?)", "bad\x1b[1m", LONG_AGO
    )
    printed = sqlite_queue.client("status").stdout
    (line,) = [line for line in printed.splitlines() if line.startswith("soon ")]
    assert line.split() == ["soon", "tasks.note", "every", "600", "s", "in", "10", "min"]
    assert "30 3 * * * UTC" in printed
    assert "never" in printed
    assert "late by" in printed
    assert "schedule bad\\x1b[1m: name is" in printed


# ---- documents


@pytest.mark.parametrize("columns_of", [columns_in_sqlite, columns_in_mysql])
def test_the_reference_has_every_column_of_a_schedule(columns_of: Callable[[str], list[str]]) -> None:
    assert list(table(REFERENCE, "column of `jobs_queue_schedules`")) == columns_of("jobs_queue_schedules")


def test_the_columns_are_those_of_a_schedule(server: TaskServer) -> None:
    found = columns_in_sqlite("jobs_queue_schedules")
    assert [*Schedule._fields, "next_at", "created_at"] == found
