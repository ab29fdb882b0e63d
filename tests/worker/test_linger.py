"""A worker that lingers (--linger): it waits for new tasks, and leaves its slot to a successor without a gap."""

from __future__ import annotations

import json
import math
import signal
import subprocess
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest

from taskserver import Reason, Stop, TaskServer
from taskserver.worker.limits import Limits, RunLimits
from taskserver.worker.record import RunRecord
from taskserver.worker.result import RunResult
from tests.support.processes import WAIT_SECONDS, assert_silent, end_of, kill, wait_until
from tests.support.queues import Queue
from tests.support.servers import MySQLServer

TASKS = """
import os
import time

def hold():
    note("started")
    while not (HERE / "go").exists():
        time.sleep(0.01)

def who():
    note(os.getpid())
"""
SETTINGS = {"TASKSERVER_PAUSES": "0.05,0.2,1"}
LONG = 2 * WAIT_SECONDS
STAYS = ("0", "--linger", LONG, "--slots", "1")


def waits(queue: Queue, process: subprocess.Popen[str]) -> bool:
    """Whether the run of this process has begun, and has not ended."""
    assert process.poll() is None
    return queue.sql("SELECT pid, ended_at FROM jobs_queue_workers") == [(process.pid, None)]


def start_waiting(queue: Queue) -> subprocess.Popen[str]:
    process = queue.start(*STAYS)
    wait_until(lambda: waits(queue, process))
    return process


def start_successor(queue: Queue) -> subprocess.Popen[str]:
    """One that waits for the slot of a worker which is in the midst of a task."""
    process = queue.start(*STAYS)
    (slot,) = Path(queue.folder, "var", "slots").glob("*.lock")
    wait_until(lambda: any(map(is_held, slot.parent.glob("*.next"))))
    assert process.poll() is None
    return process


def has_notes(queue: Queue, count: int) -> bool:
    return len(queue.notes()) == count


def is_held(path: Path) -> bool:
    """Whether a process has the lock of a file; to try would be seen as a successor."""
    return f":{path.stat().st_ino} " in Path("/proc/locks").read_text()


# ---- tasks that come while it waits


def test_a_worker_that_lingers_runs_tasks_that_come_later(queue: Queue) -> None:
    worker = start_waiting(queue)
    for number in (1, 2):
        queue.add("tasks.note", f'["{number}"]')
        wait_until(partial(has_notes, queue, number))
    queue.sql(f"INSERT INTO jobs_queue (task, status, due_at) VALUES ('tasks.note', 5, {queue.now})")
    wait_until(lambda: len(queue.notes()) == 3)
    wait_until(lambda: queue.rows() == [])
    worker.send_signal(signal.SIGTERM)
    assert end_of(worker) == (0, "", "")
    assert queue.sql("SELECT reason, taken, done FROM jobs_queue_workers") == [("stopped", 3, 3)]


def test_it_leaves_an_empty_queue_once_its_time_is_over(queue: Queue) -> None:
    began = time.monotonic()
    assert queue.server.run(linger=0.5).reason is Reason.EMPTY
    assert time.monotonic() - began >= 0.5


def test_max_tasks_and_max_time_end_its_wait_as_ever(sqlite_queue: Queue) -> None:
    for _ in range(3):
        sqlite_queue.add("tasks.note")
    assert sqlite_queue.server.run(2, linger=LONG).reason is Reason.MAX_TASKS
    assert len(sqlite_queue.rows()) == 1
    assert sqlite_queue.server.run(linger=math.inf, max_time=0.5).reason is Reason.MAX_TIME
    assert sqlite_queue.rows() == []


def test_a_wait_does_not_count_as_the_time_that_tasks_take(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)

    class Waiting(Stop):
        def wait(self, seconds: float, rest: object = None) -> bool:
            nonlocal now
            now += seconds
            return True

    result = RunResult()
    limits = RunLimits(Limits(max_seconds=60, linger_seconds=55), Waiting(), result)
    assert limits.wait(40)
    now += 1
    result.taken = 1
    assert limits.reason_to_end() is None  # one task took a second: nineteen more fit in
    now += 18.5
    assert limits.reason_to_end() is Reason.MAX_TIME
    assert not limits.wait(1)


def test_a_python_program_lingers_until_it_asks_its_run_to_stop(sqlite_queue: Queue) -> None:
    stop = Stop()
    sqlite_queue.add("tasks.note")
    with TaskServer(sqlite_queue.dsn, folder=sqlite_queue.folder) as server:
        result = server.run(linger=LONG, stop=stop, on_progress=lambda result: stop.ask())
    assert (result.done, result.reason) == (1, Reason.STOPPED)


# ---- what it costs the database


@pytest.mark.long
@pytest.mark.parametrize("groups", [None, [3, 5]], ids=["all groups", "some groups"])
def test_a_look_costs_two_queries_or_three_where_notices_come(
    queue: Queue, groups: list[int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[str] = []
    with TaskServer(queue.dsn, folder=queue.folder, pauses="0.1,1,1") as server:
        session = server.store.database.session()
        send = session.send

        def listen(sql: str, values: Sequence[object] = ()) -> object:
            sent.append(sql)
            return send(sql, values)

        def sent_by(looks: int) -> int:
            """The queries of a run that stops after so many looks."""
            stop, left = Stop(), iter(range(looks - 1))

            def has_looked(record: RunRecord) -> None:
                if next(left, None) is None:
                    stop.ask()

            monkeypatch.setattr(RunRecord, "show_life", has_looked)
            sent.clear()
            server.run(groups=groups, linger=LONG, stop=stop)
            return len(sent)

        monkeypatch.setattr(session, "send", listen)
        sent_by(1)  # the first one connects
        queries = sent_by(3) - sent_by(1)
    a_look = 3 if queue.is_postgresql or (queue.is_sqlite and groups) else 2  # SQLite looks at each group by itself
    assert queries == 2 * a_look


def test_it_waits_for_a_database_that_goes_away_meanwhile(mysql_queue: Queue, mysql_server: MySQLServer) -> None:
    worker = start_waiting(mysql_queue)
    database, own = mysql_queue.sql("SELECT DATABASE(), CONNECTION_ID()")[0]
    found: list[tuple[int]] = []
    of_worker = (
        f"SELECT id FROM information_schema.processlist WHERE db = '{database}' "
        f"AND command = 'Sleep' AND id NOT IN (CONNECTION_ID(), {own}) ORDER BY id DESC"
    )
    wait_until(lambda: found.extend(mysql_server.execute(of_worker)) or found)  # type: ignore[func-returns-value]
    mysql_server.execute(f"KILL {found[0][0]}")
    mysql_queue.add("tasks.note")
    wait_until(mysql_queue.notes)
    worker.send_signal(signal.SIGTERM)
    assert end_of(worker) == (0, "", "")


# ---- the hand-over


def test_the_worker_leaves_after_its_task_to_its_one_successor(queue: Queue) -> None:
    queue.add("tasks.hold")
    first = queue.start_task(*STAYS)
    second = start_successor(queue)
    assert_silent(queue.worker(*STAYS))  # a third one leaves at once
    assert first.poll() is None
    queue.add("tasks.who")
    queue.go()
    assert end_of(first) == (0, "", "")
    wait_until(lambda: queue.notes() == ["started", str(second.pid)])
    assert second.poll() is None
    second.send_signal(signal.SIGTERM)
    assert end_of(second) == (0, "", "")


def test_an_idle_worker_leaves_at_once_for_its_successor(sqlite_queue: Queue) -> None:
    first = start_waiting(sqlite_queue)
    second = sqlite_queue.start(*STAYS)
    assert end_of(first) == (0, "", "")
    wait_until(lambda: waits(sqlite_queue, second))
    second.send_signal(signal.SIGTERM)
    assert end_of(second) == (0, "", "")


def test_a_thread_that_a_task_left_does_not_keep_the_slot_from_the_successor(sqlite_queue: Queue) -> None:
    sqlite_queue.define("import threading\n\ndef leave_thread():\n    threading.Thread(target=hold).start()\n")
    sqlite_queue.add("tasks.leave_thread")
    first = sqlite_queue.start_task(*STAYS)
    second = sqlite_queue.start(*STAYS)
    wait_until(lambda: sqlite_queue.sql("SELECT pid FROM jobs_queue_processes") == [(second.pid,)])
    assert first.poll() is None
    sqlite_queue.add("tasks.who")
    wait_until(lambda: sqlite_queue.notes()[1:] == [str(second.pid)])
    sqlite_queue.go()
    assert end_of(first) == (0, "", "")
    second.send_signal(signal.SIGTERM)
    assert end_of(second) == (0, "", "")


def test_a_successor_takes_the_place_of_a_worker_that_is_killed(sqlite_queue: Queue) -> None:
    sqlite_queue.add("tasks.hold")
    first = sqlite_queue.start_task(*STAYS)
    second = start_successor(sqlite_queue)
    kill(first)
    sqlite_queue.add("tasks.who")
    wait_until(lambda: sqlite_queue.notes() == ["started", str(second.pid)])
    second.send_signal(signal.SIGTERM)
    code, _, told = end_of(second)
    assert (code, f"process {first.pid} ended while it ran task 1" in told) == (0, True)


def test_a_killed_successor_does_not_drive_its_worker_out(sqlite_queue: Queue) -> None:
    sqlite_queue.add("tasks.hold")
    first = sqlite_queue.start_task(*STAYS)
    kill(start_successor(sqlite_queue))
    sqlite_queue.go()
    sqlite_queue.add("tasks.who")
    wait_until(lambda: sqlite_queue.notes() == ["started", str(first.pid)])
    assert first.poll() is None
    first.send_signal(signal.SIGTERM)
    assert end_of(first) == (0, "", "")


def test_a_signal_ends_the_wait_of_a_successor(sqlite_queue: Queue) -> None:
    sqlite_queue.add("tasks.hold")
    first = sqlite_queue.start_task(*STAYS)
    second = start_successor(sqlite_queue)
    second.send_signal(signal.SIGINT)
    assert end_of(second) == (0, "", "")
    sqlite_queue.go()
    first.send_signal(signal.SIGINT)
    assert end_of(first) == (0, "", "")


@pytest.mark.parametrize("option", ["", "@taskserver.task(commit_every=10)\n"], ids=["alone", "shared"])
def test_a_worker_whose_code_is_older_than_its_files_leaves_a_task_that_needs_the_new_one(
    sqlite_queue: Queue, option: str
) -> None:
    sqlite_queue.define(f"import taskserver\n\n{option}def greet(): note('old')\n")
    sqlite_queue.add("tasks.greet")
    first = sqlite_queue.start_task(0, "--linger", LONG)
    sqlite_queue.define(f"import taskserver\n\n{option}def greet(name=''): note(name or 'old')\n")
    args = json.dumps(["[]", '["ada"]', '["grace"]'])
    sqlite_queue.sql("INSERT INTO jobs_queue (task, args) SELECT 'tasks.greet', value FROM json_each(?)", args)
    assert end_of(first) == (0, "", "")
    assert sqlite_queue.rows("status, attempts") == [(0, 0)] * 2
    assert sqlite_queue.sql("SELECT reason, taken, done FROM jobs_queue_workers") == [("outdated", 2, 2)]
    assert_silent(sqlite_queue.worker())
    assert sqlite_queue.notes() == ["old", "old", "ada", "grace"]
    assert sqlite_queue.rows() == []


@pytest.mark.parametrize("listed", ["tasks", "tasks,more"], ids=["listed later", "listed"])
def test_what_a_new_module_lacks_in_a_loaded_one_costs_no_attempt(sqlite_queue: Queue, listed: str) -> None:
    sqlite_queue.deployment.write_env(TASKSERVER_DSN=sqlite_queue.dsn, TASKSERVER_MODULES=listed)
    first = start_and_run_one(sqlite_queue)
    sqlite_queue.define("def shout(): note('new')\n")
    sqlite_queue.deployment.write_tasks("from tasks import shout\n\ndef greet(): shout()\n", "more.py")
    sqlite_queue.deployment.write_env(TASKSERVER_DSN=sqlite_queue.dsn, TASKSERVER_MODULES="tasks,more")
    sqlite_queue.sql("INSERT INTO jobs_queue (task, max_attempts) VALUES ('more.greet', 1)")
    assert end_of(first) == (0, "", "")
    assert sqlite_queue.rows("status, attempts, max_attempts") == [(0, 0, 1)]
    assert_silent(sqlite_queue.worker())
    assert sqlite_queue.notes() == ["noted", "new"]


def start_and_run_one(queue: Queue) -> subprocess.Popen[str]:
    queue.add("tasks.note")
    return queue.start_task(0, "--linger", LONG)


def test_a_row_that_was_there_long_before_a_file_changed_is_not_left(sqlite_queue: Queue) -> None:
    first = start_and_run_one(sqlite_queue)
    sqlite_queue.define("def new(): pass\n")
    earlier = "strftime('%Y-%m-%d %H:%M:%f', 'now', '-2 minutes') || '000'"
    sqlite_queue.sql(f"INSERT INTO jobs_queue (task, updated_at) VALUES ('tasks.new', {earlier})")
    wait_until(lambda: sqlite_queue.statuses() == [4])
    first.send_signal(signal.SIGTERM)
    assert "has no 'new'" in end_of(first)[2]
