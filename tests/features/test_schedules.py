"""Periodic tasks: each time adds one task, however workers race or die. tests/unit/test_schedules.py checks timings.

Time is moved by SQL, by putting `next_at` into the past; no test waits for it.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from taskserver import DatabaseError, InvalidTask, Schedule, TaskServer
from taskserver.errors import Conflict
from taskserver.model.attempt import Start
from taskserver.model.schedule import next_time
from taskserver.model.task import Status
from taskserver.stores.queue import schedules
from taskserver.stores.queue.due import MAX_DUE_PER_LOOK
from taskserver.stores.queue.notes import MAX_READ
from taskserver.stores.queue.schedules import PUT_OFF_SECONDS, Schedules
from taskserver.stores.retrying import RetryPolicy, Scope
from tests.support.databases import EACH_SERVER
from tests.support.deployment import ROOT
from tests.support.processes import WAIT_SECONDS, assert_one_line, assert_silent, wait_until
from tests.support.queues import LONG_AGO, Queue
from tests.support.rows import Rows
from tests.support.threads import together

HOLD = "SELECT name FROM jobs_queue_schedules WHERE name = ? FOR UPDATE"
RACERS = 6


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=timezone.utc)


# ---- in the database


def next_at(rows: Rows, name: str = "nightly") -> datetime:
    ((found,),) = rows.execute(f"SELECT next_at FROM jobs_queue_schedules WHERE name = '{name}'")
    return utc(str(found))


def move_to_past(rows: Rows, seconds: float = 100_000) -> None:
    rows.execute(f"UPDATE jobs_queue_schedules SET next_at = {rows.after(-seconds)}")


def add_due(server: TaskServer, rows: Rows, args: object = None) -> None:
    """The schedule `nightly`, whose time has come."""
    server.schedule("nightly", "tasks.note", args, every=600)
    move_to_past(rows)


def make_due(queue: Queue) -> None:
    queue.sql(f"UPDATE jobs_queue_schedules SET next_at = '{LONG_AGO}'")


def fire(server: TaskServer, name: str = "nightly") -> bool:
    return Schedules(server.store).fire(name)


def task_of(rows: Rows) -> dict[str, Any]:
    """The only task there is, which is that of the schedule."""
    (row,) = rows.all()
    assert row["unique_key"] in ("schedule:nightly", b"schedule:nightly")
    return row


def seconds_to_next(rows: Rows, name: str = "nightly") -> float:
    return rows.seconds_from_now(next_at(rows, name).replace(tzinfo=None))


# ---- put


def test_the_first_time_comes_after_the_seconds_or_by_the_expression(server: TaskServer, rows: Rows) -> None:
    assert server.schedule("nightly", "tasks.note", every=600) == next_at(rows)
    assert seconds_to_next(rows) == pytest.approx(600, abs=30)
    returned = server.schedule("daily", "tasks.note", cron="7 3 * * *", timezone="Asia/Kathmandu")
    assert (returned, returned.utcoffset()) == (next_at(rows, "daily"), timedelta(0))
    assert f"{next_at(rows, 'daily'):%H:%M:%S.%f}" == "21:22:00.000000"
    assert 0 < seconds_to_next(rows, "daily") <= 86_400
    before = next_at(rows)
    assert not fire(server)
    assert not fire(server, "no such one")
    assert (rows.all(), next_at(rows)) == ([], before)


@pytest.mark.parametrize("timing", [{"every": 600}, {"cron": "*/5 * * * *", "timezone": "Europe/Berlin"}])
def test_the_same_again_changes_nothing_and_another_task_not_the_time(
    server: TaskServer, rows: Rows, timing: dict[str, Any]
) -> None:
    server.schedule("nightly", "tasks.note", {"n": 1}, **timing)
    move_to_past(rows)
    before, planned = rows.execute("SELECT * FROM jobs_queue_schedules"), next_at(rows)
    assert server.schedule("nightly", "tasks.note", {"n": 1}, **timing) == planned
    assert rows.execute("SELECT * FROM jobs_queue_schedules") == before
    server.schedule("nightly", "tasks.other", ["x"], group_id=3, priority=-5, **timing)
    (stored,) = Schedules(server.store).all()
    assert stored.schedule[:5] == ("nightly", "tasks.other", '["x"]', 3, -5)
    assert next_at(rows) == planned


@pytest.mark.parametrize(
    ("first", "then"),
    [
        ({"every": 600}, {"every": 900}),
        ({"every": 600}, {"cron": "9 3 * * *"}),
        ({"cron": "7 3 * * *"}, {"cron": "9 3 * * *"}),
        ({"cron": "7 3 * * *"}, {"cron": "7 3 * * *", "timezone": "Asia/Dhaka"}),
        ({"cron": "7 3 * * *", "timezone": "Asia/Tokyo"}, {"every": 900}),
    ],
)
def test_another_timing_is_reckoned_from_now(
    server: TaskServer, rows: Rows, first: dict[str, Any], then: dict[str, Any]
) -> None:
    server.schedule("nightly", "tasks.note", **first)
    move_to_past(rows)
    server.schedule("nightly", "tasks.note", **then)
    assert seconds_to_next(rows) > 0
    (stored,) = Schedules(server.store).all()
    assert stored.schedule[5:] == (then.get("every"), then.get("cron"), then.get("timezone", "UTC"))


def test_what_a_schedule_added_stays_where_it_is_ended(server: TaskServer, rows: Rows) -> None:
    server.schedule("nightly", "tasks.note", every=600)
    for name in (0, None, b"nightly", "\ud800"):
        with pytest.raises(InvalidTask, match=r"name is .*; allowed: a text"):
            server.unschedule(name)  # type: ignore[arg-type]
    move_to_past(rows)
    assert fire(server)
    assert server.unschedule("nightly")
    assert not server.unschedule("nightly")
    assert task_of(rows)["status"] == Status.NEW
    assert not fire(server)


# ---- fire


def test_its_time_adds_the_task_as_it_was_given(server: TaskServer, rows: Rows) -> None:
    server.schedule("nightly", "tasks.note", {"text": "ä"}, every=600, group_id=3, priority=-5)
    move_to_past(rows, 10)
    assert server.store.due.look().schedules == ["nightly"]
    assert fire(server)
    row = task_of(rows)
    assert (row["task"], row["args"], row["group_id"], row["priority"]) == ("tasks.note", r'{"text":"\u00e4"}', 3, -5)
    assert (row["status"], row["attempts"], row["max_attempts"], row["due_at"]) == (0, 0, None, None)
    assert server.store.due.look().schedules == []


def test_times_that_were_missed_come_once(server: TaskServer, rows: Rows) -> None:
    server.schedule("nightly", "tasks.note", every=1)
    server.schedule("hourly", "tasks.note", cron="0 * * * *")
    move_to_past(rows, 30 * 86_400)
    assert [fire(server), fire(server, "hourly"), fire(server, "hourly")] == [True, True, False]
    assert len(rows.all()) == 2
    assert min(seconds_to_next(rows, name) for name in ("nightly", "hourly")) > -5


ENDED = {
    "done": "status = 2, attempts = 3, finished_at = created_at",
    "fatal": "status = 4, attempts = 3, error_text = 'lost: x', claim = 7, max_attempts = 1, finished_at = created_at",
    "cancelled": "status = 7, error_text = 'cancelled'",
}
UNDER_WAY = {
    "new": "status = 0",
    "running": f"status = 1, claim = 7, attempts = 1, due_at = '{LONG_AGO}', started_at = created_at",
    "error": f"status = 3, attempts = 1, due_at = '{LONG_AGO}', error_text = 'x', started_at = created_at",
    "waiting": f"status = 5, due_at = '{LONG_AGO}'",
}


def fire_again(server: TaskServer, rows: Rows, change: str) -> list[dict[str, Any]]:
    """A time of a schedule, a change of its task, and another task at the next time; the rows before that."""
    add_due(server, rows, ["old"])
    assert fire(server)
    rows.execute(f"UPDATE jobs_queue SET {change}, created_at = '{LONG_AGO}', updated_at = '{LONG_AGO}'")
    before = rows.all()
    server.schedule("nightly", "tasks.other", ["new"], every=600, group_id=3, priority=-5)
    move_to_past(rows)
    assert fire(server)
    assert seconds_to_next(rows) > 0
    return before


@pytest.mark.parametrize("was", ENDED)
def test_a_task_that_has_ended_becomes_new_as_the_schedule_now_has_it(server: TaskServer, rows: Rows, was: str) -> None:
    fire_again(server, rows, ENDED[was])
    row = task_of(rows)
    assert (row["task"], row["args"], row["group_id"], row["priority"]) == ("tasks.other", '["new"]', 3, -5)
    assert (row["status"], row["attempts"], row["max_attempts"]) == (0, 0, None)
    assert (row["claim"], row["due_at"], row["error_text"], row["finished_at"]) == (None, None, None, None)
    assert rows.seconds_from_now(row["created_at"]) == pytest.approx(0, abs=30)
    assert rows.seconds_from_now(row["updated_at"]) == pytest.approx(0, abs=30)


@pytest.mark.parametrize("state", UNDER_WAY)
def test_a_task_that_is_under_way_is_left_as_it_is_and_that_time_is_passed_over(
    server: TaskServer, rows: Rows, state: str
) -> None:
    before = fire_again(server, rows, UNDER_WAY[state])
    assert rows.all() == before


@pytest.mark.parametrize(("status", "words"), [(0, "new"), (1, "in progress"), (3, "error"), (5, "waiting")])
def test_status_names_the_task_that_has_the_key_and_has_not_ended(queue: Queue, status: int, words: str) -> None:
    queue.server.schedule("nightly", "tasks.note", every=86_400)
    queue.sql(f"INSERT INTO jobs_queue (task, unique_key, status) VALUES ('tasks.note', 'schedule:nightly', {status})")
    (held,) = [one["held"] for one in json.loads(queue.client("status", "--json").stdout)["schedules"]]
    assert held == f"task 1 has its key and is {words}: its times add nothing until that task has ended"
    assert held in queue.client("status").stdout
    queue.sql("UPDATE jobs_queue SET status = 4")
    assert [one.held for one in Schedules(queue.server.store).all()] == [None]


SILENCED = [
    ("0, NULL", False), ("1, {after}", False), ("3, {soon}", False), ("5, {soon}", False),
    ("3, {after}", True), ("5, {after}", True), ("5, NULL", True), ("9, NULL", True),
]  # fmt: skip


@pytest.mark.parametrize(("row", "is_silenced"), SILENCED)
def test_a_row_that_keeps_a_schedule_silent_for_more_than_a_day_is_found(
    queue: Queue, row: str, is_silenced: bool
) -> None:
    queue.server.schedule("nightly", "tasks.note", every=86_400)
    values = row.format(after=queue.ago(-30 * 86_400), soon=queue.ago(-3600))
    columns = "task, unique_key, status, due_at"
    queue.sql(f"INSERT INTO jobs_queue ({columns}) VALUES ('tasks.note', 'schedule:nightly', {values})")
    (stored,) = Schedules(queue.server.store).all()
    assert stored.is_silenced is is_silenced


# ---- sync


def kept(server: TaskServer) -> dict[str, Any]:
    return {stored.schedule.name: stored.schedule for stored in Schedules(server.store).all()}


def test_a_sync_makes_changes_and_removes_schedules_and_keeps_the_times_of_others(
    server: TaskServer, rows: Rows
) -> None:
    server.schedule("by hand", "tasks.note", every=600)
    nightly = Schedule(name="nightly", task="tasks.note", args=["x"], cron="30 3 * * *", timezone="Europe/Berlin")
    hourly = Schedule(name="hourly", task="tasks.note", every="1h", group_id=3, priority=-5)
    assert server.sync_schedules([nightly, hourly]) == (["hourly", "nightly"], [], [])
    assert kept(server)["hourly"] == ("hourly", "tasks.note", None, 3, -5, 3600, None, "UTC")
    move_to_past(rows)
    before = rows.execute("SELECT * FROM jobs_queue_schedules ORDER BY name")
    assert server.sync_schedules(iter((hourly, nightly))) == ([], [], [])
    assert rows.execute("SELECT * FROM jobs_queue_schedules ORDER BY name") == before
    changed = [Schedule(**{**hourly, "priority": 5}), Schedule(**{**nightly, "timezone": "UTC"})]
    assert server.sync_schedules(changed) == ([], ["hourly", "nightly"], [])
    assert (seconds_to_next(rows, "hourly") < 0, seconds_to_next(rows) > 0) == (True, True)
    assert server.sync_schedules([nightly]).removed == ["hourly"]
    assert sorted(kept(server)) == ["by hand", "nightly"]
    assert server.sync_schedules([Schedule(name="by hand", task="tasks.note", every=600)]).removed == ["nightly"]
    rows.execute("UPDATE jobs_queue_notes SET value = '7'")  # anybody may have written there
    assert server.sync_schedules([]) == ([], [], [])
    assert list(kept(server)) == ["by hand"]


GOOD = Schedule(name="new", task="tasks.note", every=60)


@pytest.mark.parametrize(
    ("wrong", "fault"),
    [
        ([GOOD, {"name": "n", "task": "tasks.x"}], "schedule 2 'n': it has neither every nor cron"),
        ([GOOD, {**GOOD, "name": "n", "every": "soon"}], "schedule 2 'n': every is 'soon'"),
        ([GOOD, {"name": "n", "task": "tasks.x", "cron": "* * *"}], "schedule 2 'n': cron is '* * *'"),
        ([GOOD, {**GOOD, "name": "n", "evry": 9}], "schedule 2 'n': it has 'evry'; allowed: name, task, args, every"),
        ([GOOD, {"name": "n", "every": 60}], "schedule 2 'n': it has no task; allowed: "),
        ([GOOD, {}], "schedule 2: it has no name and no task; allowed: "),
        ([GOOD, GOOD], "schedule 2 'new': a schedule before it has the same name"),
        ([GOOD, {**GOOD, "name": ""}], "schedule 2 '': name is ''"),
        ([GOOD, "n"], "schedule 2: it is 'n'; allowed: Schedule("),
        ([{**GOOD, "name": f"{n:0190}"} for n in range(400)], "the names of all schedules have 77600 bytes"),
        ({"new": GOOD}, "schedules is {'new'"),
        (None, "schedules is None; allowed: a list"),
    ],
)
def test_a_sync_with_a_wrong_schedule_names_it_and_changes_nothing(
    server: TaskServer, rows: Rows, wrong: Any, fault: str
) -> None:
    server.sync_schedules([Schedule(name="old", task="tasks.note", every=600)])
    before = [rows.execute(f"SELECT * FROM jobs_queue_{table}") for table in ("schedules", "notes")]
    with pytest.raises(InvalidTask, match=rf"^{re.escape(fault)}"):
        server.sync_schedules(wrong)
    assert [rows.execute(f"SELECT * FROM jobs_queue_{table}") for table in ("schedules", "notes")] == before


def test_a_sync_that_breaks_off_changes_nothing(
    server: TaskServer, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = server.store.database.write

    def fail_late(sql: str, values: Any = ()) -> int:
        if sql.startswith("UPDATE {notes}"):
            raise DatabaseError("gone")
        return write(sql, values)

    monkeypatch.setattr(server.store.database, "write", fail_late)
    with pytest.raises(DatabaseError, match="gone"):
        server.sync_schedules([GOOD])
    assert rows.execute("SELECT name FROM jobs_queue_schedules UNION SELECT name FROM jobs_queue_notes") == []


DEPLOY = """
import sys
from taskserver import Schedule, TaskServer

dsn, app = sys.argv[1:]
with TaskServer(dsn) as server:
    for turn in range(40):
        names = [app, f"{app}{turn % 3}", "both", "too"]
        server.sync_schedules([Schedule(name=name, task=f"tasks.{app}", every=600) for name in names])
"""


def test_of_two_deploys_at_once_the_last_one_holds_as_a_whole(server: TaskServer, rows: Rows, dsn: str) -> None:
    deploys = [subprocess.Popen([sys.executable, "-c", DEPLOY, dsn, app], cwd=ROOT) for app in ("a", "b")]
    assert [deploy.wait(WAIT_SECONDS) for deploy in deploys] == [0, 0]
    found = sorted(rows.execute("SELECT name, task FROM jobs_queue_schedules"))
    app = found[0][1].removeprefix("tasks.")
    assert found == sorted((name, f"tasks.{app}") for name in (app, f"{app}0", "both", "too"))


# ---- run now


def test_a_schedule_run_now_adds_its_task_and_keeps_its_next_time(server: TaskServer, rows: Rows) -> None:
    server.schedule("nightly", "tasks.note", ["x"], every=600, group_id=3, priority=-5)
    planned = next_at(rows)
    task_id = server.run_schedule_now("nightly")
    row = task_of(rows)
    assert [row[name] for name in ("id", "task", "args", "group_id", "priority", "status")] == [
        *(task_id, "tasks.note", '["x"]', 3, -5, Status.NEW)
    ]
    for state in (*UNDER_WAY.values(), *ENDED.values()):
        rows.execute(f"UPDATE jobs_queue SET {state}")
        before = task_of(rows)
        assert server.run_schedule_now("nightly") == task_id
        assert (task_of(rows) == before) == (state in UNDER_WAY.values())
    assert (task_of(rows)["status"], next_at(rows)) == (Status.NEW, planned)


def test_what_cannot_run_now_is_refused(server: TaskServer, rows: Rows) -> None:
    for name, fault in (("nightly", "there is no schedule 'nightly'"), (0, "name is 0"), ("a\ud800", "name is")):
        with pytest.raises(InvalidTask, match=fault):
            server.run_schedule_now(name)  # type: ignore[arg-type]
    forge(rows, every_seconds=60, args="{")
    with pytest.raises(InvalidTask, match="args"):
        server.run_schedule_now("nightly")
    assert rows.all() == []


# ---- several at once


def test_of_workers_that_read_the_same_time_one_adds_the_task(
    server: TaskServer, rows: Rows, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_due(server, rows)
    barrier, fired = threading.Barrier(RACERS), list[bool]()

    def wait_and_reckon(*given: Any) -> datetime:
        barrier.wait(WAIT_SECONDS)  # all have read before the first of them writes
        return next_time(*given)

    def race() -> None:
        with TaskServer(dsn) as racer:
            fired.append(fire(racer))

    monkeypatch.setattr(schedules, "next_time", wait_and_reckon)
    with together(*[race] * RACERS):
        pass
    assert sorted(fired) == [False] * (RACERS - 1) + [True]
    assert task_of(rows)["status"] == Status.NEW


def test_a_worker_that_read_a_time_and_comes_late_does_not_add_its_task_again(
    server: TaskServer, rows: Rows, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_due(server, rows)

    def let_another_go_first(*given: Any) -> datetime:
        monkeypatch.setattr(schedules, "next_time", next_time)
        with TaskServer(dsn) as other:
            assert fire(other)
        rows.execute("DELETE FROM jobs_queue")  # it ran to its end
        return next_time(*given)

    monkeypatch.setattr(schedules, "next_time", let_another_go_first)
    assert not fire(server)
    assert rows.all() == []


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
    add_due(server, rows)
    before = next_at(rows)
    killed = subprocess.run([sys.executable, "-c", KILLED_BETWEEN, dsn], cwd=ROOT, capture_output=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert (rows.all(), next_at(rows)) == ([], before)
    wait_until(lambda: fire(server))  # the server may take a moment to see that the other is gone
    assert task_of(rows)["status"] == Status.NEW


# ---- runs


@pytest.mark.parametrize("mode", ["delete", "move", "mark"])
def test_each_time_runs_once_in_every_mode(queue: Queue, mode: str) -> None:
    queue.server.schedule("nightly", "tasks.note", ["ran"], every=86_400)
    for count in (1, 2, 3):
        make_due(queue)
        assert_silent(queue.worker("--mode", mode))
        assert_silent(queue.worker("--mode", mode))
        assert queue.notes() == ["ran"] * count
    assert queue.statuses() == ([Status.DONE] if mode == "mark" else [])
    assert len(queue.rows("id", "jobs_queue_done")) == (3 if mode == "move" else 0)
    (stored,) = Schedules(queue.server.store).all()
    assert stored.last
    assert re.fullmatch(r"today \d\d:\d\d, done in \d s", stored.last.words)


def test_a_note_that_cannot_be_written_costs_no_task_and_counts_none_twice(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*given: object) -> None:
        raise Conflict("others hold it")

    monkeypatch.setattr(schedules, "note_ends", fail)
    queue.server.schedule("nightly", "tasks.note", ["ran"], every=86_400)
    make_due(queue)
    assert queue.run_here().done == 1
    assert queue.sql("SELECT done FROM jobs_queue_stats") == [(1,)]
    assert Schedules(queue.server.store).all()[0].last is None


def test_how_the_last_task_of_a_schedule_ended_is_known_until_the_schedule_is_removed(queue: Queue) -> None:
    queue.server.schedule("nightly", "tasks.missing", every=86_400)
    for key in ("other", "schedule:other", "schedule:Nightly", "schedule:"):
        queue.sql("INSERT INTO jobs_queue (task, unique_key) VALUES ('tasks.note', ?)", key)
    make_due(queue)
    queue.worker()
    (stored,) = Schedules(queue.server.store).all()
    assert stored.last
    assert (stored.last.status, stored.last.words.partition(", ")[2]) == (Status.FATAL, "failed for good after 0 s")
    assert queue.sql("SELECT COUNT(*) FROM jobs_queue_notes") == [(1,)]
    queue.sql("UPDATE jobs_queue_notes SET value = 'x'")
    assert Schedules(queue.server.store).all()[0].last is None
    queue.server.unschedule("nightly")
    assert queue.sql("SELECT COUNT(*) FROM jobs_queue_notes") == [(0,)]


@pytest.mark.parametrize(("max_attempts", "words"), [(1, "failed for good"), (2, "will be retried")])
def test_a_task_of_a_schedule_that_was_lost_is_its_last_run(queue: Queue, max_attempts: int, words: str) -> None:
    queue.server.schedule("nightly", "tasks.note", ["ran"], every=86_400)
    make_due(queue)
    queue.run_here(mode="mark")
    queue.server.run_schedule_now("nightly")
    [task] = queue.server.store.claims.claim(1, ()).tasks
    queue.server.store.finishes.advance([], Start(task, max_attempts))
    began_at = datetime.now(timezone.utc) - timedelta(hours=3)
    queue.sql(f"UPDATE jobs_queue SET started_at = '{began_at:%Y-%m-%d %H:%M:%S}', due_at = '{LONG_AGO}'")
    queue.run_here(mode="mark", backoff="fixed:1h")
    (stored,) = Schedules(queue.server.store).all()
    assert stored.last
    assert abs(stored.last.started_at - began_at) < timedelta(minutes=1)
    assert stored.last.words.partition(", ")[2] == f"its worker vanished, {words}"
    assert stored.last.as_dict()["seconds"] is None


def test_of_many_tasks_those_of_schedules_leave_a_note_in_one_commit(
    server: TaskServer, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"n{number}" for number in range(MAX_READ + 1)]
    values = ", ".join(f"('{name}', 'tasks.note', 60, '2038-01-01 00:00:00')" for name in names)
    rows.execute(f"INSERT INTO jobs_queue_schedules (name, task, every_seconds, next_at) VALUES {values}")
    database, done = server.store.database, []
    run = database.run_in_doubt

    def note(policy: RetryPolicy, *given: Any) -> Any:
        done.append(policy)
        return run(policy, *given)

    monkeypatch.setattr(database, "run_in_doubt", note)
    ends = [(f"schedule:{kind}{number}", Status.DONE, 1.0, 0.0) for kind in "nu" for number in range(len(names))]
    schedules.note_ends(database, ends)
    assert len(done) == 2, "the names are read, then all notes are written"
    assert [tuple(row) for row in rows.execute("SELECT COUNT(*) FROM jobs_queue_notes")] == [(len(names),)]
    assert all(stored.last for stored in Schedules(server.store).all())


# ---- rows that anybody wrote


def forge(rows: Rows, **columns: Any) -> None:
    values = {"name": "nightly", "task": "tasks.note", "next_at": LONG_AGO} | columns
    written = ", ".join("'" + str(value).replace("'", "''") + "'" for value in values.values())
    rows.execute(f"INSERT INTO jobs_queue_schedules ({', '.join(values)}) VALUES ({written})")


@pytest.mark.parametrize(
    ("columns", "fault"),
    [
        ({"every_seconds": 60, "cron": "* * * * *"}, "it has every and cron"),
        ({"cron": "0 0 * 2 MON#5"}, "after 2038"),
        ({"every_seconds": 60, "name": "ä" * 101}, "name is "),
    ],
)
def test_a_row_that_is_no_schedule_is_reported_and_put_off(
    server: TaskServer, rows: Rows, caplog: pytest.LogCaptureFixture, columns: dict[str, Any], fault: str
) -> None:
    forge(rows, **columns)
    name = columns.get("name", "nightly")
    worker = Schedules(server.store)
    assert worker.fire(name)
    assert seconds_to_next(rows, name) == pytest.approx(PUT_OFF_SECONDS, abs=30)
    move_to_past(rows)
    assert worker.fire(name)  # it is logged once a run
    (logged,) = caplog.messages
    assert logged.startswith(f"schedule {name}: ")
    assert fault in logged
    assert rows.all() == []
    (stored,) = worker.all()
    assert fault in str(stored.fault)


def test_a_schedule_changed_just_as_its_time_comes_adds_the_new_task(
    server: TaskServer, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_due(server, rows, ["old"])
    worker = Schedules(server.store)
    run = server.store.database.run

    def deploy_before(*args: Any) -> Any:
        if args[0].scope is Scope.TRANSACTION:
            rows.execute("UPDATE jobs_queue_schedules SET args = '[\"new\"]', priority = 5")
        return run(*args)

    monkeypatch.setattr(server.store.database, "run", deploy_before)
    assert worker.fire("nightly")
    assert (task_of(rows)["args"], task_of(rows)["priority"]) == ('["new"]', 5)


@EACH_SERVER
def test_a_held_schedule_is_left_to_the_next_look(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"number {number}" for number in range(6)]
    with TaskServer(queue.dsn) as server, closing(Rows(queue.dsn)) as other:
        for name in names:
            server.schedule(name, "tasks.note", every=10_000_000)
        make_due(queue)
        worker = Schedules(server.store)
        tried: list[str] = []
        fire = worker.fire

        def fire_and_note(name: str) -> bool:
            tried.append(name)
            return fire(name)

        monkeypatch.setattr(worker, "fire", fire_and_note)
        monkeypatch.setattr("random.sample", lambda several, count: list(several))
        other.execute("BEGIN")
        other.execute(HOLD, ["number 2"])
        assert worker.fire_all(names) == 2
        assert tried == names[:3]  # the third one was met, and no other after it
        other.execute("ROLLBACK")
        assert worker.fire_all(names[2:]) == 4
        assert server.store.due.look().schedules == []


def test_many_rows_that_are_no_schedules_keep_no_good_one_from_its_time(queue: Queue) -> None:
    values = ", ".join(f"('bad {number}', 'tasks.note', '{LONG_AGO}')" for number in range(MAX_DUE_PER_LOOK + 1))
    queue.sql(f"INSERT INTO jobs_queue_schedules (name, task, next_at) VALUES {values}")
    # One without a time comes at once, one with a time when that has come.
    queue.sql("INSERT INTO jobs_queue_schedules (name, task, every_seconds) VALUES ('at once', 'tasks.note', 60)")
    queue.server.schedule("good one", "tasks.note", ["ran"], every=600)
    queue.sql(f"UPDATE jobs_queue_schedules SET next_at = {queue.now} WHERE name = 'good one'")
    ended = queue.worker()
    assert_one_line(ended, 0, ": it has neither every nor cron")  # the log has the others
    assert sorted(queue.notes()) == ["noted", "ran"]


def test_schedules_with_invalid_names_are_reported_and_end_no_worker(queue: Queue) -> None:
    names = ["''"] + ["CAST(X'FF' AS TEXT)"] * queue.is_sqlite
    for name in names:
        queue.sql(f"INSERT INTO jobs_queue_schedules (name, task, every_seconds) VALUES ({name}, 'tasks.bad', 60)")
    first, second = queue.worker(), queue.worker()
    assert (first.returncode, first.stderr.count("\n")) == (0, 1)
    assert (second.returncode, first.stderr in second.stderr) == (0, False)  # the same is said once an hour


# ---- without the library


@pytest.fixture
def no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cronsim", None)


def test_a_host_without_the_library_leaves_the_time_to_another_one(
    server: TaskServer, rows: Rows, caplog: pytest.LogCaptureFixture, no_library: None
) -> None:
    forge(rows, cron="* * * * *")
    before = next_at(rows)
    worker = Schedules(server.store)
    assert [worker.fire("nightly"), worker.fire("nightly")] == [False, False]
    assert (rows.all(), next_at(rows)) == ([], before)
    (logged,) = caplog.messages
    assert "cronsim is missing" in logged
    (stored,) = worker.all()
    assert "cronsim is missing" in str(stored.fault)


# ---- commands


Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def client(sqlite_queue: Queue) -> Run:
    """A command of client.py, inside this process."""
    return sqlite_queue.here


def test_the_command_makes_a_schedule_and_says_when_it_comes(sqlite_queue: Queue, client: Run) -> None:
    arguments = ("nightly", "tasks.note", '["ran"]', "--cron", "30 3 * * *", "--timezone", "Asia/Kathmandu")
    made = client("schedule", *arguments, "--group", 3, "--priority", -5)
    assert (made.returncode, made.stderr) == (0, "")
    assert made.stdout.startswith("nightly: next at 20")
    assert made.stdout.endswith(" 21:45:00.000000 UTC\n")
    (report,) = json.loads(client("status", "--json").stdout)["schedules"]
    assert report.pop("next_at").endswith("T21:45:00.000000Z")
    assert 0 < report.pop("next_seconds") <= 86_400
    assert report == {
        "name": "nightly", "task": "tasks.note", "args": '["ran"]', "group_id": 3, "priority": -5,
        "every_seconds": None, "cron": "30 3 * * *", "timezone": "Asia/Kathmandu", "fault": None, "held": None,
        "is_silenced": False, "last": None,
    }  # fmt: skip
    ended = client("unschedule", "nightly")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "nightly is scheduled no more\n", "")
    assert_one_line(client("unschedule", "nightly"), 0, "there is no schedule 'nightly'")


def test_a_mistake_is_one_line(sqlite_queue: Queue, client: Run) -> None:
    mistakes = {
        ("nightly", "tasks.note"): "neither every nor cron",
        ("nightly", "tasks.note", "--every", "5000d"): ", of seconds, nor a span as 90s, 5m, 1h or 2d",
        ("nightly", "tasks.note", "--cron", "* * *"): "it has not five fields",
        ("nightly", "tasks.note", "--cron", "*", "*", "*"): "and EXPR too",
        ("nightly", "tasks.note", "[1", "--every", "60"): "ARGS_JSON is not valid JSON",
    }
    for arguments, fault in mistakes.items():
        assert_one_line(client("schedule", *arguments), 2, fault)


def test_status_shows_when_each_schedule_comes_and_what_is_wrong_with_it(sqlite_queue: Queue, client: Run) -> None:
    assert "schedule" not in client("status").stdout
    for name, timing in (("soon", ("--every", 600)), ("nightly", ("--cron", "30 3 * * *"))):
        assert client("schedule", name, "tasks.note", *timing).returncode == 0
    bad = "INSERT INTO jobs_queue_schedules (name, task, next_at) VALUES (?, 'x', ?)"
    sqlite_queue.sql(bad, "bad\x1b[1m", LONG_AGO)
    printed = client("status").stdout
    (line,) = [line for line in printed.splitlines() if line.startswith("soon ")]
    assert line.split() == ["soon", "tasks.note", "every", "10", "minutes", "in", "10", "min"]
    assert all(words in printed for words in ("daily 03:30 UTC", "never", "late by"))
    assert "schedule bad\\x1b[1m: name is" in printed
