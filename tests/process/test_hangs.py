"""What nothing interrupts: a process that hangs in a task or in a clean-up shows where, and ends."""

from __future__ import annotations

import os
import signal
import time

import pytest

from tests.support.processes import assert_shows_where_it_hangs, assert_silent, end_of, freeze, thaw
from tests.support.queues import Queue

SETTINGS = {"TASKSERVER_BACKOFF": "fixed:500", "TASKSERVER_TIMEOUT": "1", "TASKSERVER_LEASE": "1"}
TASKS = """
import atexit
import itertools
import multiprocessing
import threading
import time

from taskserver import Fatal, task
from taskserver.worker import heartbeat

def nap():
    note("started")
    time.sleep(60)

def swallow():
    note("started")
    while True:
        try:
            time.sleep(0.05)
        except BaseException:
            note("swallowed")

def hold_interpreter():
    time.sleep(0.5)  # the heartbeat has its turn; without one the limit between two calls holds, half a minute later
    note("started")
    sum(itertools.repeat(0))

def leaves_a_thread():
    threading.Thread(target=time.sleep, args=(600,)).start()

def leaves_a_handler():
    atexit.register(time.sleep, 600)

def leaves_a_child():
    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))
    child.start()
    note(child.pid)

def leaves_what_ends():
    atexit.register(time.sleep, 0.2)
    threading.Thread(target=time.sleep, args=(0.4,)).start()

class Connection:  # as a client library's, whose close waits for a server that is away
    def __del__(self):
        time.sleep(600)

def leaves_a_connection():
    connection = Connection()
    raise Fatal("refused")

@task(batch=10, max_attempts=1)
def leaves_a_connection_between_calls(items):
    heartbeat.MAX_WRITE_SECONDS = 1
    error = OSError("refused")
    error.connection = Connection()
    return [error]
"""


@pytest.mark.parametrize("task", ["hold_interpreter", "swallow"])
def test_what_cannot_be_interrupted_ends_its_worker_and_is_taken_back(queue: Queue, task: str) -> None:
    queue.add(f"tasks.{task}")
    queue.add("tasks.note")
    process = queue.start_task()
    code, output, errors = end_of(process)
    assert (code, output) == (1, ""), errors
    assert_shows_where_it_hangs(errors, task)
    assert errors.startswith("task 1 tasks.swallow, attempt 1 goes on ") == (task == "swallow")
    passed = queue.seconds_between("started_at", queue.now)
    assert float(queue.sql(f"SELECT {passed} FROM jobs_queue WHERE id = 1")[0][0]) >= 2
    assert queue.rows("status, attempts")[0] == (1, 1)
    queue.end_leases()
    assert f"ended while it ran task 1 tasks.{task}" in queue.worker().stderr
    assert queue.rows("id, status, attempts") == [(1, 3, 1)]
    assert queue.first_lines()[0].startswith("lost: ")
    assert queue.notes()[-1] == "noted"
    assert ("swallowed" in queue.notes()) == (task == "swallow")


def test_a_task_that_swallows_a_second_signal_ends_its_worker_a_lease_later(queue: Queue) -> None:
    queue.add("tasks.swallow")
    process = queue.start_task(TASKSERVER_TIMEOUT="600")
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGINT)
    code, _, errors = end_of(process)
    assert code == 1
    assert_shows_where_it_hangs(errors, "swallow")
    assert errors.startswith("task 1 tasks.swallow, attempt 1 goes on 1 s after it was interrupted")


@pytest.mark.long
def test_a_host_that_stands_still_for_less_than_a_lease_ends_no_worker(queue: Queue) -> None:
    queue.add("tasks.nap")
    queue.add("tasks.note")
    process = queue.start_task()
    freeze(process)
    time.sleep(1.2)
    thaw(process)
    assert end_of(process) == (0, "", "")
    assert queue.rows("task, status, attempts") == [("tasks.nap", 3, 1)]
    assert queue.first_lines() == ["TaskInterrupted: it ran for longer than its timeout of 1 s"]


# ---- what tasks leave behind


@pytest.mark.parametrize(
    "task",
    ["leaves_a_thread", *(pytest.param(one, marks=pytest.mark.long) for one in ("leaves_a_child", "leaves_a_handler"))],
)
def test_what_a_task_left_behind_keeps_its_worker_no_longer_than_timeout_and_lease(queue: Queue, task: str) -> None:
    queue.add(f"tasks.{task}")
    process = queue.start()
    code = process.wait(timeout=30)
    for pid in queue.notes():  # a child outlives its parent, and holds its standard error open
        os.kill(int(pid), signal.SIGKILL)
    _, errors = process.communicate(timeout=30)
    assert code == 1
    assert errors.startswith("Timeout (0:00:02)!\nThread 0x"), errors
    assert (queue.rows(), queue.reason()) == ([], "empty")


def test_a_worker_waits_for_what_ends(queue: Queue) -> None:
    queue.add("tasks.leaves_what_ends")
    began = time.monotonic()
    assert_silent(queue.worker(TASKSERVER_TIMEOUT="60"))
    assert time.monotonic() - began > 0.6


def test_a_slow_clean_up_of_what_an_error_holds_is_interrupted(queue: Queue) -> None:
    queue.add("tasks.leaves_a_connection")
    ended = queue.worker()
    assert (ended.returncode, ended.stderr) == (0, "task 1 tasks.leaves_a_connection is fatal: Fatal: refused\n")
