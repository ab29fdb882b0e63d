"""A task's time: timeouts, tasks that swallow interrupts, and programs that run tasks themselves."""

from __future__ import annotations

import signal
import sys

import pytest

from taskserver import Reason
from tests.support.queues import Queue

SETTINGS = {"TASKSERVER_MAX_ATTEMPTS": "10", "TASKSERVER_BACKOFF": "fixed:500", "TASKSERVER_LEASE": "600"}
TASKS = """
import re
import threading
import time

from taskserver import task

server = None

def nap(seconds=60):
    time.sleep(seconds)

def search():
    re.match("(a+)+$", "a" * 60 + "b")

def wait_for_lock():
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()

def swallow_once():
    try:
        time.sleep(60)
    except BaseException:
        note("swallowed")

@task(timeout=0.1)
def late():
    time.sleep(60)
"""
OUTRAN = "TaskInterrupted: it ran for longer than its timeout of {} s"
SLOW = ["nap", "search", "wait_for_lock"]


def test_a_task_that_takes_too_long_is_interrupted_and_the_next_one_runs(queue: Queue) -> None:
    queue.define("".join(f"{name} = task(timeout=0.1)({name})\n" for name in SLOW))
    for name in SLOW:
        queue.add(f"tasks.{name}")
        queue.add("tasks.note", f'["after {name}"]')
    queue.run_here()
    assert queue.rows("task, status, attempts, claim") == [(f"tasks.{name}", 3, 1, None) for name in SLOW]
    assert set(queue.first_lines()) == {OUTRAN.format(0.1)}
    assert queue.notes() == [f"after {name}" for name in SLOW]


def test_the_setting_is_the_limit_of_a_callable_that_has_none_of_its_own(queue: Queue) -> None:
    queue.define("@task(timeout=30)\ndef longer(): nap(1.2)\n\n@task(timeout=0)\ndef unlimited(): nap(1.2)\n")
    for name in ("nap", "longer", "unlimited"):
        queue.add(f"tasks.{name}")
    assert queue.run_here(timeout=1).done == 2
    assert (queue.rows("id, status, attempts"), queue.first_lines()) == ([(1, 3, 1)], [OUTRAN.format(1)])


def test_a_task_that_swallows_its_interrupt_is_done_if_it_returns_and_interrupted_again_if_not(queue: Queue) -> None:
    queue.define(
        "swallow_once = task(timeout=0.1)(swallow_once)\n\n"
        "@task(timeout=0.1)\ndef stubborn():\n    swallow_once()\n    nap()\n"
    )
    for name in ("swallow_once", "stubborn", "note"):
        queue.add(f"tasks.{name}")
    queue.run_here(lease=1)
    assert queue.notes() == ["swallowed", "swallowed", "noted"]
    assert (queue.rows("task, status"), queue.first_lines()) == ([("tasks.stubborn", 3)], [OUTRAN.format(0.1)])


def test_a_module_that_hangs_when_imported_is_interrupted_too(queue: Queue) -> None:
    queue.deployment.write_tasks("import time\n\ntime.sleep(60)\n", "hanging.py")
    queue.add("hanging.task")
    queue.add("tasks.note")
    queue.run_here(timeout=1, modules="tasks,hanging")
    assert (queue.rows("status, attempts"), queue.notes()) == ([(3, 1)], ["noted"])
    assert "TaskInterrupted" in queue.first_lines()[0]


# ---- a program that runs tasks itself

ADDING = """
@task(timeout=0.04)
def add():
    while True:
        note(server.add_task("tasks.note", group_id=9))
"""


@pytest.mark.parametrize("count", [8, pytest.param(200, marks=pytest.mark.long)])
def test_interrupts_amid_writes_to_the_queue_lose_and_double_nothing(queue: Queue, count: int) -> None:
    """Tasks add tasks through the TaskServer that runs them, until their time is up."""
    queue.define(ADDING)
    queue.add("tasks.note", '["first"]', 1)
    assert queue.server.run(groups=[1]).done == 1
    vars(sys.modules["tasks"])["server"] = queue.server
    for _ in range(count):
        queue.add("tasks.add", None, 1)
    queue.add("tasks.note", '["last"]', 1, 1)
    result = queue.server.run(groups=[1])
    assert (result.reason, result.done, result.failed, result.lost) == (Reason.EMPTY, 1, count, 0)
    failed = queue.sql("SELECT error_text FROM jobs_queue WHERE group_id = 1 AND status = 3")
    assert [text.startswith("TaskInterrupted: ") for (text,) in failed] == [True] * count
    added = {new_id for (new_id,) in queue.sql("SELECT id FROM jobs_queue WHERE group_id = 9")}
    first, *ids, last = queue.notes()
    acknowledged = {int(one) for one in ids}
    assert (first, last) == ("first", "last")
    assert len(acknowledged) > count
    assert acknowledged <= added
    assert len(added - acknowledged) <= count  # at most the one whose id the interrupt kept from being noted


def test_a_program_has_its_own_alarm_back_after_a_run(queue: Queue) -> None:
    def handler(number: int, frame: object) -> None:
        raise AssertionError("it is an hour away")

    before = signal.signal(signal.SIGALRM, handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 3600, 60)
        for name in ("note", "late", "note"):
            queue.server.add_task(f"tasks.{name}")
        result = queue.server.run()
        left, interval = signal.setitimer(signal.ITIMER_REAL, 0)
        assert signal.getsignal(signal.SIGALRM) is handler
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert (result.done, result.failed, interval) == (2, 1, 60)
    assert 3000 < left < 3600
