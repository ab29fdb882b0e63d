"""A task's time: timeouts, tasks that swallow interrupts or set the alarm, and programs that run tasks themselves."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import nullcontext

import pytest

from taskserver import Reason, TaskServer
from tests.support.queues import Queue

SETTINGS = {"TASKSERVER_MAX_ATTEMPTS": "10", "TASKSERVER_BACKOFF": "fixed:500", "TASKSERVER_LEASE": "600"}
TASKS = """
import re
import signal
import subprocess
import threading
import time

from taskserver import task

server = None

def nap(seconds=60):
    time.sleep(seconds)
    note("slept")

def busy():
    while True:
        try:
            time.sleep(0.001)
        except Exception:
            return

def search():
    re.match("(a+)+$", "a" * 60 + "b")

def wait_for_lock():
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()

def wait_for_program():
    subprocess.run(["sleep", "60"])

def swallow_once():
    try:
        time.sleep(60)
    except BaseException:
        note("swallowed")

class Mute(Exception):
    def __str__(self):
        time.sleep(600)

def raises_what_gives_no_text():
    raise Mute

@task(timeout=0.1)
def late():
    time.sleep(60)
"""
OUTRAN = "TaskInterrupted: it ran for longer than its timeout of {} s"
SLOW = ["nap", "busy", "search", "wait_for_lock", "wait_for_program"]


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
    assert queue.rows("id, status, attempts") == [(1, 3, 1)]
    assert queue.first_lines() == [OUTRAN.format(1)]


def test_a_task_that_swallows_its_interrupt_is_done_if_it_returns_and_interrupted_again_if_not(queue: Queue) -> None:
    queue.define(
        "swallow_once = task(timeout=0.1)(swallow_once)\n\n"
        "@task(timeout=0.1)\ndef stubborn():\n    swallow_once()\n    nap()\n"
    )
    for name in ("swallow_once", "stubborn", "note"):
        queue.add(f"tasks.{name}")
    queue.run_here(lease=1)
    assert queue.notes() == ["swallowed", "swallowed", "noted"]
    assert queue.rows("task, status") == [("tasks.stubborn", 3)]
    assert queue.first_lines() == [OUTRAN.format(0.1)]


def test_a_module_that_hangs_when_imported_is_interrupted_too(queue: Queue) -> None:
    queue.deployment.write_tasks("import time\n\ntime.sleep(60)\n", "hanging.py")
    queue.add("hanging.task")
    queue.add("tasks.note")
    queue.run_here(timeout=1, modules="tasks,hanging")
    assert queue.rows("status, attempts") == [(3, 1)]
    assert "TaskInterrupted" in queue.first_lines()[0]
    assert queue.notes() == ["noted"]


def test_tasks_that_end_just_at_their_timeout_are_done_or_failed_and_nothing_else(queue: Queue) -> None:
    queue.define("@task(timeout=0.02)\ndef close(seconds): time.sleep(seconds)\n")
    for number in range(30):
        queue.add("tasks.close", f"[{0.01 + 0.0005 * number}]")
    queue.add("tasks.note")
    result = queue.run_here()
    assert (result.done + len(queue.rows()), result.lost) == (31, 0)
    assert set(queue.rows("status, attempts")) == {(3, 1)}, "none was late: nothing was raced"
    assert result.done > 1, "all were late: nothing was raced"
    assert all(line.startswith("TaskInterrupted: ") for line in queue.first_lines())


def test_an_exception_that_gives_no_text_fails_only_its_task_however_short_the_lease_is(queue: Queue) -> None:
    queue.add("tasks.raises_what_gives_no_text")
    assert queue.run_here(timeout=3, lease=1, max_attempts=1).fatal == 1
    assert queue.first_lines() == ["Mute: (its text could not be read)"]


ALARMS = [
    # a handler that raises, again and again
    "signal.signal(signal.SIGALRM, lambda *_: 1 / 0)\n    signal.setitimer(signal.ITIMER_REAL, 0.1, 0.002)",
    # no handler, and an alarm to come
    "signal.signal(signal.SIGALRM, signal.SIG_DFL)\n    signal.setitimer(signal.ITIMER_REAL, 0.1)",
    # one that came
    "signal.signal(signal.SIGALRM, lambda *_: note('its own'))\n"
    "    signal.setitimer(signal.ITIMER_REAL, 0.01)\n    time.sleep(0.05)",
]


def test_a_task_that_sets_the_alarm_breaks_neither_the_run_nor_the_limits_of_later_tasks(queue: Queue) -> None:
    codes = "".join(f"def set_alarm_{number}():\n    {code}\n\n" for number, code in enumerate(ALARMS))
    queue.define(f"{codes}def rest(): time.sleep(0.03)\n")
    for number in range(len(ALARMS)):
        for name in (f"set_alarm_{number}", *["rest"] * 5, "late", "note"):
            queue.add(f"tasks.{name}")
    result = queue.run_here()
    assert (result.failed, result.fatal, result.lost) == (len(ALARMS), 0, 0)
    assert queue.rows("task, status, attempts") == [("tasks.late", 3, 1)] * len(ALARMS)
    assert queue.notes() == ["noted"] * (len(ALARMS) - 1) + ["its own", "noted"]


# ---- a program that runs tasks itself


ADDING = """
@task(timeout=0.04)
def add():
    while True:
        new_id = server.add_task("tasks.note", group_id=9)
        note(new_id)
"""


def hammer(queue: Queue, count: int) -> int:
    """Run tasks that add tasks through the TaskServer that runs them, until their time is up; how many they added."""
    queue.define(ADDING)
    queue.add("tasks.note", '["first"]', 1)
    assert queue.server.run(groups=[1]).done == 1
    vars(sys.modules["tasks"])["server"] = queue.server
    for _ in range(count):
        queue.add("tasks.add", None, 1)
    queue.add("tasks.note", '["last"]', 1, 1)
    result = queue.server.run(groups=[1])
    assert (result.reason, result.done, result.failed, result.lost) == (Reason.EMPTY, 1, count, 0)
    assert queue.notes()[-1] == "last"
    failed = queue.sql("SELECT error_text FROM jobs_queue WHERE group_id = 1 AND status = 3")
    assert [text.startswith("TaskInterrupted: ") for (text,) in failed] == [True] * count
    added = {new_id for (new_id,) in queue.sql("SELECT id FROM jobs_queue WHERE group_id = 9")}
    acknowledged = {int(note) for note in queue.notes()[1:-1]}
    assert acknowledged <= added
    # At most the one whose id the interrupt kept from being noted.
    assert len(added - acknowledged) <= count
    return len(acknowledged)


@pytest.mark.parametrize("count", [8, pytest.param(200, marks=pytest.mark.long)])
def test_interrupts_amid_writes_to_the_queue_lose_and_double_nothing(queue: Queue, count: int) -> None:
    assert hammer(queue, count) > count


@pytest.fixture
def server(queue: Queue) -> Iterator[TaskServer]:
    """Runs tasks in this process's main thread, whose alarm is afterwards what it was."""
    handler = signal.getsignal(signal.SIGALRM)
    try:
        yield queue.server
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)


def test_a_program_has_its_own_alarm_back_after_a_run(server: TaskServer) -> None:
    def handler(number: int, frame: object) -> None:
        raise AssertionError("it is an hour away")

    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 3600, 60)
    others = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for name in ("note", "late", "note"):
        server.add_task(f"tasks.{name}")
    result = server.run()
    assert (result.done, result.failed) == (2, 1)
    left, interval = signal.setitimer(signal.ITIMER_REAL, 0)
    assert signal.getsignal(signal.SIGALRM) is handler
    assert 3000 < left < 3600
    assert interval == 60
    assert {number: signal.getsignal(number) for number in others} == others


@pytest.mark.parametrize("handler", [signal.SIG_DFL, signal.SIG_IGN, lambda number, frame: None])
def test_a_program_without_an_alarm_has_none_after_a_run_or_one_that_broke_down(
    server: TaskServer, handler: signal.Handlers
) -> None:
    def break_down(result: object) -> None:
        raise ZeroDivisionError

    signal.signal(signal.SIGALRM, handler)
    for on_progress in (None, break_down):
        server.add_task("tasks.late")
        with pytest.raises(ZeroDivisionError) if on_progress else nullcontext():
            assert server.run(on_progress=on_progress).failed == 1
        assert signal.getsignal(signal.SIGALRM) is handler
        assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)
