"""What nothing interrupts: a process that hangs in a task or in a clean-up shows where, and ends."""

from __future__ import annotations

import time

import pytest

from tests.support.processes import assert_shows_where_it_hangs, assert_silent, end_of
from tests.support.queues import Queue

SETTINGS = {"TASKSERVER_BACKOFF": "fixed:500", "TASKSERVER_TIMEOUT": "1", "TASKSERVER_LEASE": "1"}
TASKS = """
import atexit
import faulthandler
import itertools
import threading
import time

def swallow():
    note("started")
    while True:
        try:
            time.sleep(0.05)
        except BaseException:
            note("swallowed")

def hold_interpreter():
    # The heartbeat has its turn; without one the limit between two calls holds, half a minute later.
    had_its_turn, limit = threading.Event(), faulthandler.dump_traceback_later
    faulthandler.dump_traceback_later = lambda *values, **named: (limit(*values, **named), had_its_turn.set())
    had_its_turn.wait()
    note("started")
    sum(itertools.repeat(0))

def leaves_a_thread():
    threading.Thread(target=time.sleep, args=(600,)).start()

def leaves_what_ends():
    atexit.register(time.sleep, 0.2)
"""


@pytest.mark.parametrize("task", ["hold_interpreter", "swallow"])
def test_what_cannot_be_interrupted_ends_its_worker_and_is_taken_back(queue: Queue, task: str) -> None:
    queue.add(f"tasks.{task}")
    queue.add("tasks.note")
    process = queue.start_task()
    code, output, errors = end_of(process)
    assert (code, output) == (1, ""), errors
    assert_shows_where_it_hangs(errors, task)
    assert errors.startswith("task 1 tasks.swallow, attempt 1 still runs ") == (task == "swallow")
    passed = queue.seconds_between("started_at", queue.now)
    assert float(queue.sql(f"SELECT {passed} FROM jobs_queue WHERE id = 1")[0][0]) >= 2
    assert queue.rows("status, attempts")[0] == (1, 1)
    queue.end_leases()
    assert f"ended while it ran task 1 tasks.{task}" in queue.worker().stderr
    assert queue.rows("id, status, attempts") == [(1, 3, 1)]
    assert queue.first_lines()[0].startswith("lost: ")
    assert queue.notes()[-1] == "noted"
    assert ("swallowed" in queue.notes()) == (task == "swallow")


def test_what_a_task_left_behind_keeps_its_worker_no_longer_than_timeout_and_lease(queue: Queue) -> None:
    queue.add("tasks.leaves_what_ends")
    began = time.monotonic()
    assert_silent(queue.worker(TASKSERVER_TIMEOUT="60"))
    assert time.monotonic() - began > 0.2
    queue.add("tasks.leaves_a_thread")
    code, _, errors = end_of(queue.start())
    assert code == 1
    assert errors.startswith("Timeout (0:00:02)!\nThread 0x"), errors
    assert (queue.rows(), queue.reason()) == ([], "empty")
