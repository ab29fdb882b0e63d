"""Leases and claims: workers that are killed, frozen or slow, as processes; rows as SQL sees them.

Where a test says that a lease ended, SQL has put its end into the past, which is all that time would do: so no test
depends on how fast this machine is. Two tests wait for a real lease.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from taskserver import TaskServer
from tests.deployment import Deployment
from tests.test_worker import WAIT_SECONDS, Queue, assert_silent, end_of, wait_until

LONG_AGO = "2020-01-01 00:00:00.000000"
OTHER_GROUP = "4294967295"
"""Without a task: whoever works for it takes back what is due, and runs nothing."""
LOST = "lost: its worker vanished, hung, or could not record its end, and its lease ended"
CALM = {"TASKSERVER_LEASE": "600", "TASKSERVER_MAX_ATTEMPTS": "10", "TASKSERVER_BACKOFF": "fixed:500"}
"""Nothing ends, is renewed or comes back while a test looks, unless it says so."""
ONCE = CALM | {"TASKSERVER_MAX_ATTEMPTS": "1"}

TASKS = '''
"""Callables that wait, die and leave notes; WORKER is the name that a test gave to the worker."""

import os
import signal
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
WORKER = os.environ.get("WORKER", "")


def note(text="noted"):
    with open(HERE / "notes", "a") as file:
        file.write(f"{text}\\n")


def hold(name="task"):
    note(f"{name} started by {WORKER}")
    while not (HERE / f"go-{WORKER}").exists():
        time.sleep(0.01)
    note(f"{name} finished by {WORKER}")


def hold_and_fail():
    hold()
    raise ValueError("too late")


def sleep(seconds):
    note("started")
    time.sleep(seconds)


def kill_worker():
    note("killing")
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


def exit_worker():
    note("killing")
    os._exit(3)

'''


@pytest.fixture
def queue(deployment: Deployment, dsn: str) -> Queue:
    """On both stores."""
    return make_queue(deployment, dsn)


@pytest.fixture
def mysql_queue(deployment: Deployment, mysql_dsn: str) -> Queue:
    return make_queue(deployment, mysql_dsn)


@pytest.fixture
def sqlite_queue(deployment: Deployment, sqlite_dsn: str) -> Queue:
    return make_queue(deployment, sqlite_dsn)


@pytest.fixture(params=["sqlite", pytest.param("mysql", marks=pytest.mark.long)])
def one_queue(request: pytest.FixtureRequest, deployment: Deployment) -> Queue:
    """On SQLite; among the long tests on MySQL/MariaDB too."""
    return make_queue(deployment, str(request.getfixturevalue(f"{request.param}_dsn")))


def make_queue(deployment: Deployment, dsn: str) -> Queue:
    queue = Queue(deployment, dsn)
    deployment.write_tasks(TASKS)
    return queue


def rows(queue: Queue, columns: str = "*", table: str = "jobs_queue") -> list[tuple[Any, ...]]:
    return queue.sql(f"SELECT {columns} FROM {table} ORDER BY id")


def end_leases(queue: Queue) -> None:
    """As if the lease of every claim had passed."""
    queue.sql(f"UPDATE jobs_queue SET due_at = '{LONG_AGO}' WHERE status = 1")


def end_backoffs(queue: Queue) -> None:
    queue.sql(f"UPDATE jobs_queue SET due_at = '{LONG_AGO}' WHERE status = 3")


def seconds_between(queue: Queue, earlier: str, later: str) -> str:
    """SQL for the seconds from one instant to another."""
    if queue.is_sqlite:
        return f"(julianday({later}) - julianday({earlier})) * 86400.0"
    return f"TIMESTAMPDIFF(MICROSECOND, {earlier}, {later}) / 1e6"


def start_holding(queue: Queue, *args: object, name: str = "first", **env: str) -> subprocess.Popen[str]:
    """A worker of that name that has begun to run `hold`, and goes on once `let_go` is called."""
    before = sum("started by" in note for note in queue.notes())
    process = queue.start(*args, WORKER=name, **env)
    wait_until(lambda: sum("started by" in note for note in queue.notes()) > before)
    return process


def let_go(queue: Queue, name: str = "first") -> None:
    (queue.deployment.folder / f"go-{name}").touch()


def kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    assert process.wait(WAIT_SECONDS) == -signal.SIGKILL


def freeze(process: subprocess.Popen[str]) -> None:
    """SIGSTOP; returns once the whole process stands still."""
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED)


def thaw(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGCONT)


def take_back(queue: Queue) -> None:
    """The lease of the running task ends, another worker takes it back, and its backoff ends too."""
    end_leases(queue)
    assert_silent(queue.worker(0, OTHER_GROUP, **CALM))
    end_backoffs(queue)
    assert queue.statuses() == [3]


def assert_lost(process: subprocess.Popen[str], *task_ids: int) -> None:
    """It ended well and said in one line for each of these tasks (none: the first) that its lease was lost."""
    code, output, errors = end_of(process)
    assert (code, output) == (0, ""), errors
    for line, task_id in zip(errors.splitlines(), task_ids or (1,), strict=True):
        assert f"task {task_id} " in line
        assert "lease was lost" in line


# ---- a worker that was killed


def test_the_tasks_of_a_killed_worker_come_back_once_its_lease_has_ended_and_not_before(queue: Queue) -> None:
    queue.add("tasks.hold", None, 0, -1)
    for number, priority in enumerate([5, 0, 5, 0]):
        queue.add("tasks.note", f'["{number}"]', 0, priority)
    queue.sql("UPDATE jobs_queue SET attempts = 3 WHERE id = 3")
    kill(start_holding(queue, **CALM))
    claimed = rows(queue)
    assert queue.statuses() == [1] * 5
    queue.add("tasks.note", '["later"]', 0, 5)
    assert_silent(queue.worker(**CALM))
    assert queue.notes()[1:] == ["later"]
    assert rows(queue) == claimed
    queue.add("tasks.note", '["latest"]', 0, 0)
    end_leases(queue)
    assert_silent(queue.worker("--mode", "mark", **CALM))
    assert queue.notes()[2:] == ["1", "3", "latest", "0", "2"]
    assert rows(queue, "status, attempts, claim") == [(3, 1, None), *[(2, 1, None), (2, 4, None)], *[(2, 1, None)] * 3]


def test_the_task_that_a_killed_worker_was_running_has_used_its_attempt_and_waits(queue: Queue) -> None:
    queue.add("tasks.hold")
    kill(start_holding(queue, **CALM))
    end_leases(queue)
    assert_silent(queue.worker(**CALM))
    wait = seconds_between(queue, "updated_at", "due_at")
    ((status, attempts, most, claim, error_text, seconds),) = rows(
        queue, f"status, attempts, max_attempts, claim, error_text, {wait}"
    )
    assert (status, attempts, most, claim, error_text) == (3, 1, 10, None, LOST)
    assert 500 <= float(seconds) <= 550.01
    end_backoffs(queue)
    let_go(queue, "second")
    assert_silent(queue.worker(WORKER="second", **CALM))
    assert queue.notes() == ["task started by first", "task started by second", "task finished by second"]
    assert rows(queue) == []


def test_a_lost_task_that_has_no_attempt_left_is_fatal(queue: Queue) -> None:
    for max_attempts, attempts in [(1, 0), (7, 6), (2, 0)]:
        queue.add("tasks.hold")
        queue.sql(
            "UPDATE jobs_queue SET max_attempts = ?, attempts = ? WHERE max_attempts IS NULL", max_attempts, attempts
        )
    for _ in range(3):
        kill(start_holding(queue, 1, **CALM))
    tokens = [claim for (claim,) in rows(queue, "claim")]
    assert len(set(tokens)) == 3
    end_leases(queue)
    ended = queue.worker(**CALM)
    assert (ended.returncode, ended.stdout) == (0, "")
    assert sorted(ended.stderr.splitlines()) == [f"task {number} tasks.hold is fatal: {LOST}" for number in (1, 2)]
    # Only what may start once keeps its token, for a worker that turns out to be alive.
    assert rows(queue, "status, attempts, claim, error_text, finished_at IS NOT NULL, due_at IS NULL") == [
        (4, 1, tokens[0], LOST, 1, 1),
        (4, 7, None, LOST, 1, 1),
        (3, 1, None, LOST, 0, 0),
    ]


def test_a_lease_is_counted_by_the_database_and_its_tasks_are_not_taken_before_its_end(one_queue: Queue) -> None:
    one_queue.add("tasks.hold")
    for number in range(3):
        one_queue.add("tasks.note", f'["{number}"]')
    process = start_holding(one_queue, **CALM | {"TASKSERVER_LEASE": "3"})
    kill(process)
    lease = seconds_between(one_queue, "started_at", "due_at")
    assert float(rows(one_queue, lease)[0][0]) == pytest.approx(3, abs=0.01)
    ends = rows(one_queue, "id, due_at")
    while len(one_queue.notes()) < 4:
        assert_silent(one_queue.worker("--mode", "mark", **CALM))
    assert one_queue.notes()[1:] == ["0", "1", "2"]
    assert one_queue.statuses() == [3, 2, 2, 2]
    for (task_id, started_at), (_, end) in zip(rows(one_queue, "id, started_at")[1:], ends[1:], strict=True):
        assert started_at > end, task_id


@pytest.mark.parametrize("task", ["kill_worker", "exit_worker"])
def test_a_task_that_kills_its_worker_each_time_ends_fatal_and_lets_the_others_run(one_queue: Queue, task: str) -> None:
    settings = CALM | {"TASKSERVER_MAX_ATTEMPTS": "3", "TASKSERVER_BACKOFF": "fixed:0"}
    one_queue.add(f"tasks.{task}")
    one_queue.add("tasks.note")
    codes = []
    while 1 in (statuses := one_queue.statuses()) or 0 in statuses or 3 in statuses:
        codes.append(one_queue.worker(**settings).returncode)
        end_leases(one_queue)
        assert len(codes) < 12
    assert one_queue.notes().count("killing") == 3
    assert one_queue.notes().count("noted") == 1
    assert codes.count(0) == len(codes) - 3
    assert rows(one_queue, "task, status, attempts, error_text") == [(f"tasks.{task}", 4, 3, LOST)]


def test_a_module_that_kills_the_process_when_imported_uses_attempts_and_does_not_loop(queue: Queue) -> None:
    settings = CALM | {
        "TASKSERVER_MAX_ATTEMPTS": "2",
        "TASKSERVER_BACKOFF": "fixed:0",
        "TASKSERVER_MODULES": "tasks,deadly",
    }
    queue.deployment.write_tasks("import os, tasks\n\ntasks.note('imported')\nos._exit(9)\n", "deadly.py")
    queue.add("deadly.task")
    queue.add("tasks.note")
    for expected in ([1, 1], [1]):
        assert queue.worker(**settings).returncode == 9
        assert queue.statuses()[: len(expected)] == expected
        end_leases(queue)
    for _ in range(2):
        assert queue.worker(**settings).returncode == 0
        end_leases(queue)
    assert queue.notes().count("imported") == 2
    assert queue.notes().count("noted") == 1
    assert rows(queue, "task, status, attempts, error_text") == [("deadly.task", 4, 2, LOST)]


def test_a_module_that_kills_the_process_starts_a_task_of_one_attempt_at_most_once(one_queue: Queue) -> None:
    one_queue.deployment.write_tasks("import os, tasks\n\ntasks.note('imported')\nos._exit(9)\n", "deadly.py")
    one_queue.add("deadly.task")
    for expected in (9, 0, 0):
        assert one_queue.worker(**ONCE, TASKSERVER_MODULES="tasks,deadly").returncode == expected
        end_leases(one_queue)
    assert one_queue.notes() == ["imported"]
    assert rows(one_queue, "status, attempts, error_text") == [(4, 1, LOST)]


def test_a_callable_that_says_one_attempt_is_not_run_twice_by_a_worker_that_dies_in_between(one_queue: Queue) -> None:
    code = "\nfrom taskserver import task\n\n@task(max_attempts=1)\ndef once():\n    note('once')\n    os._exit(3)\n"
    one_queue.deployment.write_tasks(TASKS + code)
    one_queue.add("tasks.once")
    codes = []
    for _ in range(3):
        codes.append(one_queue.worker(**CALM).returncode)
        end_leases(one_queue)
        end_backoffs(one_queue)
    assert codes == [3, 0, 0]
    assert one_queue.notes() == ["once"]
    ((status, attempts, most, claim, error_text),) = rows(
        one_queue, "status, attempts, max_attempts, claim, error_text"
    )
    assert (status, attempts, most, error_text) == (4, 1, 1, LOST)
    assert claim is not None


def test_a_half_uploaded_module_is_tried_again_after_its_backoff_and_runs_once_mended(queue: Queue) -> None:
    queue.deployment.write_tasks(TASKS + "def half(:\n")
    queue.add("tasks.note")
    queue.add("tasks.note")
    assert_silent(queue.worker(**CALM))
    wait = seconds_between(queue, "updated_at", "due_at")
    for status, attempts, claim, error_text, seconds in rows(queue, f"status, attempts, claim, error_text, {wait}"):
        assert (status, attempts, claim) == (3, 1, None)
        assert "SyntaxError" in error_text.partition("\n")[0]
        assert 500 <= float(seconds) <= 550.01
    queue.deployment.write_tasks(TASKS)
    assert_silent(queue.worker(**CALM))
    assert queue.notes() == [], "before its backoff ended"
    end_backoffs(queue)
    assert_silent(queue.worker("--mode", "mark", **CALM))
    assert rows(queue, "status, attempts, error_text") == [(2, 2, None)] * 2
    assert queue.notes() == ["noted"] * 2


# ---- a worker that is slow


def test_a_task_that_runs_for_several_leases_is_not_taken_over_by_a_worker_that_looks_all_the_time(
    one_queue: Queue,
) -> None:
    lease = 2
    one_queue.add("tasks.hold")
    process = start_holding(one_queue, **CALM | {"TASKSERVER_LEASE": str(lease)})
    ends: set[object] = set()
    looks = 0
    passed = seconds_between(one_queue, "started_at", one_queue.now)
    with TaskServer(one_queue.dsn, folder=one_queue.deployment.folder, backoff="fixed:0") as other:
        while float(rows(one_queue, passed)[0][0]) < 2.5 * lease:
            result = other.run()
            assert result.taken == 0
            ends.add(rows(one_queue, "due_at")[0][0])
            looks += 1
            time.sleep(0.02)
    let_go(one_queue)
    assert end_of(process) == (0, "", "")
    assert one_queue.notes() == ["task started by first", "task finished by first"]
    assert rows(one_queue) == []
    assert looks > 10
    assert len(ends) >= 4, "renewed each third of a lease"


def test_tasks_that_wait_under_a_long_one_are_given_back_after_a_third_of_a_lease(queue: Queue) -> None:
    lease = 3
    queue.add("tasks.hold")
    for number in range(3):
        queue.add("tasks.note", f'["{number}"]')
    queue.sql("UPDATE jobs_queue SET attempts = 2 WHERE id = 3")
    process = start_holding(queue, **CALM | {"TASKSERVER_LEASE": str(lease)})
    assert queue.statuses() == [1] * 4
    wait_until(lambda: queue.statuses() == [1, 0, 0, 0])
    assert rows(queue, "attempts, claim, due_at, started_at")[1:] == [(n, None, None, None) for n in (0, 2, 0)]
    passed = seconds_between(queue, "a.started_at", "b.updated_at")
    for (seconds,) in queue.sql(f"SELECT {passed} FROM jobs_queue a, jobs_queue b WHERE a.id = 1 AND b.id > 1"):
        assert float(seconds) >= lease / 3 - 0.05
    assert_silent(queue.worker(**CALM))
    assert queue.notes()[1:] == ["0", "1", "2"]
    assert process.poll() is None
    let_go(queue)
    assert end_of(process) == (0, "", "")
    assert rows(queue) == []
    # The record is that of the run that ended last.
    assert queue.sql("SELECT taken, done, lost, released FROM jobs_queue_workers") == [(1, 1, 0, 3)]


def test_tasks_that_wait_under_a_task_without_a_time_limit_are_given_back_too(sqlite_queue: Queue) -> None:
    sqlite_queue.add("tasks.hold")
    sqlite_queue.add("tasks.note")
    process = start_holding(sqlite_queue, **CALM | {"TASKSERVER_LEASE": "1", "TASKSERVER_TIMEOUT": "0"})
    wait_until(lambda: sqlite_queue.statuses() == [1, 0])
    let_go(sqlite_queue)
    assert end_of(process) == (0, "", "")
    assert sqlite_queue.notes()[-1] == "noted"


def test_between_tasks_a_worker_gives_back_what_it_has_held_for_half_a_lease(one_queue: Queue) -> None:
    lease = 2
    code = "\ndef tick():\n    note('tick')\n    time.sleep(0.25)\n"
    one_queue.deployment.write_tasks(TASKS + code)
    for _ in range(10):
        one_queue.add("tasks.tick")
    assert_silent(one_queue.worker("--mode", "mark", **CALM | {"TASKSERVER_LEASE": str(lease)}))
    assert one_queue.notes() == ["tick"] * 10
    assert one_queue.sql("SELECT taken, done, lost FROM jobs_queue_workers") == [(10, 10, 0)]
    ((released,),) = one_queue.sql("SELECT released FROM jobs_queue_workers")
    assert released > 0
    assert rows(one_queue, "status, attempts") == [(2, 1)] * 10


# ---- a worker that was frozen


def test_a_worker_that_was_frozen_beyond_its_lease_changes_nothing_in_a_task_that_waits_for_its_retry(
    queue: Queue,
) -> None:
    queue.add("tasks.hold")
    queue.add("tasks.note", '["taken over"]')
    process = start_holding(queue, 0, "0", **CALM)
    freeze(process)
    end_leases(queue)
    assert_silent(queue.worker(**CALM))
    assert queue.notes()[1:] == ["taken over"]
    before = rows(queue)
    assert queue.statuses() == [3]
    let_go(queue)
    thaw(process)
    # Its clock says that the lease still holds, so it tries to start the next one too: the token forbids it.
    assert_lost(process, 1, 2)
    assert rows(queue) == before
    assert queue.notes()[1:] == ["taken over", "task finished by first"]
    assert queue.sql("SELECT taken, done, fatal, lost FROM jobs_queue_workers WHERE group_ids = '0'") == [(2, 0, 0, 2)]


@pytest.mark.parametrize("task", ["hold", "hold_and_fail"])
def test_a_worker_that_was_frozen_changes_nothing_in_a_task_that_another_runs(queue: Queue, task: str) -> None:
    queue.add(f"tasks.{task}")
    first = start_holding(queue, **CALM)
    freeze(first)
    take_back(queue)
    second = start_holding(queue, name="second", **CALM)
    before = rows(queue)
    assert rows(queue, "status, attempts, started_at IS NOT NULL") == [(1, 2, 1)]
    let_go(queue)
    thaw(first)
    assert_lost(first)
    assert rows(queue) == before
    let_go(queue, "second")
    assert end_of(second) == (0, "", "")
    assert rows(queue, "status, attempts") == ([] if task == "hold" else [(3, 2)])


@pytest.mark.parametrize("mode", ["delete", "move", "mark"])
def test_a_worker_that_was_frozen_changes_nothing_in_a_task_that_another_completed(one_queue: Queue, mode: str) -> None:
    one_queue.add("tasks.hold")
    first = start_holding(one_queue, "--mode", mode, **CALM)
    freeze(first)
    take_back(one_queue)
    let_go(one_queue, "second")
    assert_silent(one_queue.worker("--mode", mode, WORKER="second", **CALM))
    before = rows(one_queue), rows(one_queue, table="jobs_queue_done")
    assert [len(table) for table in before] == [mode == "mark", mode == "move"]
    let_go(one_queue)
    thaw(first)
    assert_lost(first)
    assert (rows(one_queue), rows(one_queue, table="jobs_queue_done")) == before


def test_a_worker_whose_lease_ended_and_was_not_taken_may_still_finish(one_queue: Queue) -> None:
    one_queue.add("tasks.hold")
    process = start_holding(one_queue, **CALM)
    freeze(process)
    end_leases(one_queue)
    let_go(one_queue)
    thaw(process)
    assert end_of(process) == (0, "", "")
    assert rows(one_queue) == []


@pytest.mark.long
def test_a_worker_that_is_frozen_for_longer_than_a_real_lease_loses_its_task(one_queue: Queue) -> None:
    one_queue.add("tasks.hold")
    first = start_holding(one_queue, **CALM | {"TASKSERVER_LEASE": "3"})
    freeze(first)
    ((end,),) = rows(one_queue, "due_at")
    second = one_queue.start(WORKER="second", **CALM)
    while end_of(second) == (0, "", "") and one_queue.statuses() == [1]:
        second = one_queue.start(WORKER="second", **CALM)
    ((status, updated_at),) = rows(one_queue, "status, updated_at")
    assert status == 3
    assert updated_at >= end
    before = rows(one_queue)
    let_go(one_queue)
    thaw(first)
    assert_lost(first)
    assert rows(one_queue) == before


@contextmanager
def transaction(queue: Queue) -> Iterator[Callable[[str], object]]:
    """Another program's transaction that holds the queue's rows until it commits; runs SQL in it."""
    if queue.is_sqlite:
        connection = sqlite3.connect(queue.path, isolation_level=None, timeout=WAIT_SECONDS)
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield connection.execute
            connection.execute("COMMIT")
        finally:
            connection.close()
        return
    with queue.connect() as page, page.cursor() as cursor:
        cursor.execute("BEGIN")
        cursor.execute("SELECT * FROM jobs_queue FOR UPDATE")
        yield cursor.execute
        cursor.execute("COMMIT")


def test_a_worker_that_was_frozen_before_a_start_does_not_start_what_another_took_over(queue: Queue) -> None:
    queue.add("tasks.hold")
    queue.add("tasks.note", '["started all the same"]')
    process = start_holding(queue, **CALM)
    with transaction(queue) as execute:
        let_go(queue)
        wait_until(lambda: "task finished by first" in queue.notes())
        if not queue.is_sqlite:  # its start waits for our lock
            waiting = "SELECT 1 FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'"
            wait_until(lambda: queue.sql(waiting))
        freeze(process)
        execute(f"UPDATE jobs_queue SET claim = 7, attempts = 1, started_at = {queue.now} WHERE id = 2")
    before = rows(queue)
    thaw(process)
    assert_lost(process, 2)
    assert "started all the same" not in queue.notes()
    assert rows(queue) == [row for row in before if row[0] == 2]


# ---- at most once, and a completion that comes late


def test_a_task_of_one_attempt_whose_worker_was_killed_never_starts_again(queue: Queue) -> None:
    queue.add("tasks.hold")
    kill(start_holding(queue, **ONCE))
    end_leases(queue)
    ended = queue.worker(**ONCE)
    assert (ended.returncode, ended.stderr) == (0, f"task 1 tasks.hold is fatal: {LOST}\n")
    before = rows(queue)
    for _ in range(2):
        assert_silent(queue.worker(**CALM))
    assert rows(queue) == before
    assert queue.notes() == ["task started by first"]


def give_up(queue: Queue) -> None:
    """Its lease ends, and another worker takes it for lost."""
    end_leases(queue)
    assert queue.worker(0, OTHER_GROUP, **ONCE).returncode == 0


@pytest.mark.parametrize("mode", ["delete", "move", "mark"])
def test_the_completion_of_a_worker_that_was_only_frozen_is_accepted(queue: Queue, mode: str) -> None:
    queue.add("tasks.hold")
    process = start_holding(queue, "--mode", mode, **ONCE)
    freeze(process)
    give_up(queue)
    assert rows(queue, "status, error_text") == [(4, LOST)]
    let_go(queue)
    thaw(process)
    assert end_of(process) == (0, "", "")
    columns = "id, status, attempts, claim, due_at, error_text, started_at <= finished_at"
    places = {"move": "jobs_queue_done", "mark": "jobs_queue"}
    for table in ("jobs_queue", "jobs_queue_done"):
        completed = [(1, 2, 1, None, None, None, 1)] if places.get(mode) == table else []
        assert rows(queue, columns, table) == completed
    assert queue.sql("SELECT done, fatal, lost FROM jobs_queue_workers WHERE group_ids = 'all'") == [(1, 0, 0)]


def test_a_failure_that_comes_late_changes_nothing(queue: Queue) -> None:
    queue.add("tasks.hold_and_fail")
    process = start_holding(queue, **ONCE)
    freeze(process)
    give_up(queue)
    before = rows(queue)
    assert queue.statuses() == [4]
    let_go(queue)
    thaw(process)
    assert_lost(process)
    assert rows(queue) == before


BY_A_PERSON = {
    "retried": "UPDATE jobs_queue SET status = 0 WHERE group_id = {group}",
    "retried, all attempts anew": "UPDATE jobs_queue SET status = 0, attempts = 0, error_text = NULL, "
    "max_attempts = NULL, claim = NULL, started_at = NULL, finished_at = NULL WHERE group_id = {group}",
    "retried later": "UPDATE jobs_queue SET status = 5, due_at = '2037-01-01 00:00:00', attempts = 0 "
    "WHERE group_id = {group}",
    "deleted": "DELETE FROM jobs_queue WHERE group_id = {group}",
    "cancelled with a reason": "UPDATE jobs_queue SET error_text = 'cancelled by hand' WHERE group_id = {group}",
    "cancelled without one": "UPDATE jobs_queue SET error_text = NULL WHERE group_id = {group}",
    "cancelled by its claim": "UPDATE jobs_queue SET claim = NULL WHERE group_id = {group}",
    "called done": "UPDATE jobs_queue SET status = 2 WHERE group_id = {group}",
}


@pytest.mark.parametrize("mode", ["delete", pytest.param("move", marks=pytest.mark.long)])
def test_a_completion_is_not_accepted_once_a_person_has_retried_or_cancelled_the_task(queue: Queue, mode: str) -> None:
    groups = dict(enumerate(BY_A_PERSON.values(), start=1))
    workers = {}
    for group in groups:
        queue.add("tasks.hold", f'["{group}"]', group)
        workers[group] = queue.start(1, group, "--mode", mode, WORKER="first", **ONCE)
    wait_until(lambda: len(queue.notes()) == len(groups))
    for process in workers.values():
        freeze(process)
    give_up(queue)
    assert queue.statuses() == [4] * len(groups)
    for group, statement in groups.items():
        queue.sql(statement.format(group=group))
    before = rows(queue)
    let_go(queue)
    for process in workers.values():
        thaw(process)
    for group, process in workers.items():
        code, output, errors = end_of(process)
        assert (code, output) == (0, ""), errors
        assert [line for line in errors.splitlines() if "lease was lost" in line] == errors.splitlines()
        assert len(errors.splitlines()) == 1, (groups[group], errors)
    assert rows(queue) == before
    assert rows(queue, table="jobs_queue_done") == []


def test_a_completion_is_not_accepted_while_and_after_a_retry_of_the_task_runs(one_queue: Queue) -> None:
    one_queue.add("tasks.hold")
    first = start_holding(one_queue, **ONCE)
    freeze(first)
    give_up(one_queue)
    one_queue.sql("UPDATE jobs_queue SET status = 0, attempts = 0")
    second = start_holding(one_queue, name="second", **ONCE)
    before = rows(one_queue)
    let_go(one_queue)
    thaw(first)
    assert_lost(first)
    assert rows(one_queue) == before
    kill(second)
    give_up(one_queue)
    ((claim, error_text),) = rows(one_queue, "claim, error_text")
    assert (claim, error_text) == (before[0][list_columns(one_queue).index("claim")], LOST)


def list_columns(queue: Queue) -> list[str]:
    if queue.is_sqlite:
        return [name for _, name, *_ in queue.sql("PRAGMA table_info(jobs_queue)")]
    return [name for name, *_ in queue.sql("SHOW COLUMNS FROM jobs_queue")]


def test_a_second_frozen_worker_s_token_is_not_taken_for_that_of_the_first(one_queue: Queue) -> None:
    """Lost, retried by a person, and lost again: only the worker of the last claim may still complete it."""
    one_queue.add("tasks.hold")
    first = start_holding(one_queue, **ONCE)
    freeze(first)
    give_up(one_queue)
    one_queue.sql("UPDATE jobs_queue SET status = 0, attempts = 0")
    second = start_holding(one_queue, name="second", **ONCE)
    freeze(second)
    give_up(one_queue)
    before = rows(one_queue)
    let_go(one_queue)
    thaw(first)
    assert_lost(first)
    assert rows(one_queue) == before
    let_go(one_queue, "second")
    thaw(second)
    assert end_of(second) == (0, "", "")
    assert rows(one_queue) == []


# ---- the heartbeat's connection and thread

CONNECTIONS = "SELECT COUNT(*) FROM information_schema.processlist WHERE db = DATABASE() AND id <> CONNECTION_ID()"


def renewals(queue: Queue, count: int, look: Callable[[], object]) -> None:
    """Waits until the running task's lease was renewed so often, and calls `look` all the while."""
    ends: set[object] = set()

    def seen() -> bool:
        ends.update(queue.sql("SELECT due_at FROM jobs_queue WHERE status = 1"))
        look()
        return len(ends) > count

    wait_until(seen)


def test_a_worker_has_one_connection_even_while_a_long_task_is_renewed(mysql_queue: Queue) -> None:
    mysql_queue.add("tasks.hold")
    mysql_queue.add("tasks.note")
    process = start_holding(mysql_queue, **CALM | {"TASKSERVER_LEASE": "1"})
    counts: list[int] = []
    renewals(mysql_queue, 3, lambda: counts.append(mysql_queue.sql(CONNECTIONS)[0][0]))
    assert set(counts) == {1}
    let_go(mysql_queue)
    assert end_of(process) == (0, "", "")


@pytest.fixture
def importable(tmp_path: Path) -> Iterator[str]:
    """The name of a module of tasks that this process can import, under a name of its own."""
    name = f"lease_tasks_{tmp_path.name.rpartition('-')[2]}_{os.getpid()}_{time.monotonic_ns()}"
    yield name
    sys.modules.pop(name, None)
    if str(tmp_path) in sys.path:
        sys.path.remove(str(tmp_path))


HOLDING = """
server = None
may_end = None

def hold_connection():
    def tasks():
        yield {{"task": "{module}.nothing"}}
        may_end.wait(30)
    server.add_tasks(tasks())

def nothing():
    pass

def wait():
    may_end.wait(30)
"""


def test_a_task_that_holds_the_worker_s_own_connection_is_renewed_all_the_same(
    mysql_dsn: str, mysql_queue: Queue, importable: str, tmp_path: Path
) -> None:
    (tmp_path / f"{importable}.py").write_text(HOLDING.format(module=importable))
    with TaskServer(mysql_dsn, modules=importable, folder=tmp_path, lease=1) as server:
        server.add_task(f"{importable}.nothing")
        assert server.run().done == 1
        module: Any = sys.modules[importable]
        module.server, module.may_end = server, threading.Event()
        server.add_task(f"{importable}.hold_connection")
        results = []
        worker = threading.Thread(target=lambda: results.append(server.run(1)))
        worker.start()
        try:
            renewals(mysql_queue, 3, lambda: None)
        finally:
            module.may_end.set()
            worker.join(WAIT_SECONDS)
        assert [(result.done, result.lost) for result in results] == [(1, 0)]
        assert rows(mysql_queue, "task, status") == [(f"{importable}.nothing", 0)]


def heartbeats() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "taskserver-heartbeat"]


def test_the_heartbeat_s_thread_ends_with_its_run(dsn: str, importable: str, tmp_path: Path) -> None:
    (tmp_path / f"{importable}.py").write_text(HOLDING.format(module=importable))
    with TaskServer(dsn, modules=importable, folder=tmp_path, lease=1) as server:
        server.create_tables()
        server.add_task(f"{importable}.nothing")
        server.run()
        module: Any = sys.modules[importable]
        module.server, module.may_end = server, threading.Event()
        server.add_task(f"{importable}.wait")
        worker = threading.Thread(target=server.run)
        worker.start()
        try:
            wait_until(heartbeats)
        finally:
            module.may_end.set()
            worker.join(WAIT_SECONDS)
        assert not worker.is_alive()
        assert heartbeats() == []


def test_the_heartbeat_s_thread_ends_with_a_run_that_an_error_ends(
    dsn: str, importable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / f"{importable}.py").write_text(HOLDING.format(module=importable))
    with TaskServer(dsn, modules=importable, folder=tmp_path) as server:
        server.create_tables()
        server.add_task(f"{importable}.nothing")
        seen: list[threading.Thread] = []

        def break_down(result: object) -> None:
            seen.extend(heartbeats())
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            server.run(on_progress=break_down)
        assert len(seen) == 1
        assert heartbeats() == []


def run_many(queue: Queue, count: int, at_once: int) -> None:
    """Workers that leave while their heartbeat is at work; each must end with code 0 and without a word."""
    queue.deployment.write_tasks(TASKS + "\ndef nap(seconds):\n    time.sleep(seconds)\n")
    settings = CALM | {"TASKSERVER_LEASE": "1"}
    for first in range(0, count, at_once):
        groups = range(first, first + at_once)
        for group in groups:
            # Just before, at and after the moment at which the heartbeat wakes, a third of a lease.
            queue.add("tasks.nap", f"[{0.32 + 0.02 * (group % 3)}]", group)
        for ended in [end_of(process) for process in [queue.start(0, group, **settings) for group in groups]]:
            assert ended == (0, "", "")
    assert rows(queue) == []


def test_workers_end_with_code_0_while_their_heartbeat_is_at_work(one_queue: Queue) -> None:
    run_many(one_queue, count=12, at_once=6)


@pytest.mark.long
def test_hundreds_of_workers_end_with_code_0_while_their_heartbeat_is_at_work(queue: Queue) -> None:
    run_many(queue, count=240, at_once=6)
