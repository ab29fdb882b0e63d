"""Workers that are killed or frozen, by real signals; the next run is in the test's process.

Where a test says that a lease ended, SQL has put its end into the past: no test depends on how fast this machine is.
"""

from __future__ import annotations

import subprocess

import pytest

from taskserver import TaskServer
from taskserver.worker.maintenance import LOST_TEXT
from tests.support.processes import assert_silent, end_of, freeze, kill, thaw, wait_until
from tests.support.queues import LAST_GROUP, Queue

"""Without a task: a run for it takes back what is due, and runs nothing."""
SETTINGS = {"TASKSERVER_LEASE": "600", "TASKSERVER_MAX_ATTEMPTS": "10", "TASKSERVER_BACKOFF": "fixed:500"}
"""Nothing ends, is renewed or comes back while a test looks, unless it says so."""
TASKS = """
import os
import signal
import time

WORKER = os.environ.get("WORKER", "")  # the name that a test gave it

def hold(name="task"):
    note(f"{name} started by {WORKER}")
    while not (HERE / f"go-{WORKER}").exists():
        time.sleep(0.01)
    note(f"{name} finished by {WORKER}")

def hold_and_fail():
    hold()
    raise ValueError("too late")

def kill_worker():
    note("killing")
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)
"""


def start_holding(queue: Queue, name: str = "first", **env: str) -> subprocess.Popen[str]:
    """A worker of that name that has begun to run `hold`, and goes on once it may."""
    return queue.start_task(WORKER=name, **env)


def kill_elsewhere(queue: Queue, process: subprocess.Popen[str]) -> None:
    """Kill a worker of which the next run cannot know that it is gone, as of one on another host."""
    kill(process)
    queue.move_workers()


def end_late(queue: Queue, process: subprocess.Popen[str]) -> None:
    """The first worker, frozen so far, goes on, says that its lease was lost, and changes nothing of what is there."""
    before = queue.rows()
    queue.go("go-first")
    thaw(process)
    code, output, errors = end_of(process)
    assert (code, output, len(errors.splitlines())) == (0, "", 1), errors
    assert "task 1 " in errors
    assert "lease was lost" in errors
    assert queue.rows() == before


# ---- killed


def test_the_tasks_of_a_killed_worker_come_back_once_its_lease_has_ended_and_not_before(queue: Queue) -> None:
    queue.deployment.claim_at_once()
    queue.add("tasks.hold", None, 0, -1)
    for number, priority in enumerate([5, 0, 5, 0]):
        queue.add("tasks.note", f'["{number}"]', 0, priority)
    queue.sql("UPDATE jobs_queue SET attempts = 3 WHERE id = 3")
    kill_elsewhere(queue, start_holding(queue))
    claimed = queue.rows()
    assert queue.statuses() == [1] * 5
    queue.add("tasks.note", '["later"]', 0, 5)
    assert queue.run_here().done == 1
    assert queue.notes()[1:] == ["later"]
    assert queue.rows() == claimed
    queue.add("tasks.note", '["latest"]', 0, 0)
    queue.end_leases()
    queue.run_here(mode="mark")
    assert queue.notes()[2:] == ["1", "3", "latest", "0", "2"]
    assert queue.rows("status, attempts, claim") == [
        (3, 1, None),
        (2, 1, None),
        (2, 4, None),
        (2, 1, None),
        (2, 1, None),
        (2, 1, None),
    ]
    assert queue.errors()[0] == LOST_TEXT
    assert 499 < queue.seconds_ahead()[0] < 551
    queue.end_backoffs()
    queue.go("go-second")
    assert_silent(queue.worker(WORKER="second"))
    assert queue.notes()[-2:] == ["task started by second", "task finished by second"]


def test_a_task_of_one_attempt_whose_worker_was_killed_never_starts_again(queue: Queue) -> None:
    once = {"TASKSERVER_MAX_ATTEMPTS": "1"}
    queue.add("tasks.hold")
    kill_elsewhere(queue, start_holding(queue, **once))
    queue.end_leases()
    ended = queue.worker(**once)
    assert (ended.returncode, ended.stderr) == (0, f"task 1 tasks.hold is fatal: {LOST_TEXT}\n")
    before = queue.rows()
    assert queue.run_here().taken == 0
    assert queue.rows() == before
    assert queue.notes() == ["task started by first"]


def test_a_task_that_kills_its_worker_each_time_ends_fatal_and_lets_the_others_run(queue: Queue) -> None:
    settings = {"TASKSERVER_MAX_ATTEMPTS": "2", "TASKSERVER_BACKOFF": "fixed:0"}
    queue.add("tasks.kill_worker")
    queue.add("tasks.note")
    codes = []
    while {0, 1, 3} & {*queue.statuses()}:
        codes.append(queue.worker(**settings).returncode)
        queue.move_workers()
        queue.end_leases()
        assert len(codes) < 12
    assert sorted(queue.notes()) == ["killing"] * 2 + ["noted"]
    assert codes.count(0) == len(codes) - 2
    assert queue.rows("task, status, attempts, error_text") == [("tasks.kill_worker", 4, 2, LOST_TEXT)]


def test_a_module_that_kills_the_process_when_imported_uses_attempts_and_does_not_loop(queue: Queue) -> None:
    queue.deployment.claim_at_once()
    settings = {"TASKSERVER_MAX_ATTEMPTS": "2", "TASKSERVER_BACKOFF": "fixed:0", "TASKSERVER_MODULES": "tasks,deadly"}
    queue.deployment.write_tasks("import os, tasks\n\ntasks.note('imported')\nos._exit(9)\n", "deadly.py")
    queue.add("deadly.task")
    queue.add("tasks.note")
    for expected in ([1, 1], [1]):
        assert queue.worker(**settings).returncode == 9
        queue.move_workers()
        assert queue.statuses()[: len(expected)] == expected
        queue.end_leases()
    for _ in range(2):
        assert queue.worker(**settings).returncode == 0
        queue.end_leases()
    assert sorted(queue.notes()) == ["imported"] * 2 + ["noted"]
    assert queue.rows("task, status, attempts, error_text") == [("deadly.task", 4, 2, LOST_TEXT)]


# ---- slow or frozen


def test_a_task_that_runs_for_longer_than_its_lease_is_not_taken_over(queue: Queue) -> None:
    queue.add("tasks.hold")
    process = start_holding(queue, TASKSERVER_LEASE="3")
    ends: set[object] = set()
    with TaskServer(queue.dsn, folder=queue.folder, backoff="fixed:0") as other:

        def is_renewed_often() -> bool:
            assert other.run().taken == 0
            ends.update(queue.rows("due_at"))
            return len(ends) > 3  # a third of a lease apart

        wait_until(is_renewed_often)
    queue.go("go-first")
    assert end_of(process) == (0, "", "")
    assert queue.notes() == ["task started by first", "task finished by first"]
    assert queue.rows() == []


@pytest.mark.parametrize("task", ["hold", "hold_and_fail"])
def test_a_worker_that_was_frozen_changes_nothing_in_a_task_that_another_runs(queue: Queue, task: str) -> None:
    queue.add(f"tasks.{task}")
    first = start_holding(queue)
    freeze(first)
    queue.end_leases()
    queue.run_here(groups=[LAST_GROUP])
    queue.end_backoffs()
    second = start_holding(queue, "second")
    assert queue.rows("status, attempts, started_at IS NOT NULL") == [(1, 2, 1)]
    end_late(queue, first)
    queue.go("go-second")
    assert end_of(second) == (0, "", "")
    assert queue.rows("status, attempts") == ([] if task == "hold" else [(3, 2)])
