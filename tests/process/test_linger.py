"""A worker that lingers (--linger) leaves its slot to a successor; tests/unit/test_slots.py has the locks."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

from tests.support.processes import WAIT_SECONDS, assert_silent, end_of, kill, wait_until
from tests.support.queues import Queue

TASKS = """
import os
import threading
import time

def hold():
    note("started")
    while not (HERE / "go").exists():
        time.sleep(0.01)

def leave_thread():
    threading.Thread(target=hold).start()

def who():
    note(os.getpid())
"""
SETTINGS = {"TASKSERVER_PAUSES": "0.05,0.2,1"}
STAYS = ("0", "--linger", 2 * WAIT_SECONDS, "--slots", "1")


def waits(queue: Queue, process: subprocess.Popen[str]) -> bool:
    """Whether the run of this process has begun, and has not ended."""
    assert process.poll() is None
    return queue.sql("SELECT pid, ended_at FROM jobs_queue_workers") == [(process.pid, None)]


def start_successor(queue: Queue) -> subprocess.Popen[str]:
    """One that waits for the slot of a worker which runs a task."""
    process = queue.start(*STAYS)
    (slot,) = Path(queue.folder, "var", "slots").glob("*.lock")
    wait_until(lambda: any(map(is_held, slot.parent.glob("*.next"))))
    assert process.poll() is None
    return process


def is_held(path: Path) -> bool:
    """Whether a process has the lock of a file; to try would look like a successor."""
    return f":{path.stat().st_ino} " in Path("/proc/locks").read_text()


def stop(process: subprocess.Popen[str], number: signal.Signals = signal.SIGTERM) -> None:
    process.send_signal(number)
    assert end_of(process) == (0, "", "")


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
    stop(second)


def test_an_idle_worker_leaves_at_once_for_its_successor(queue: Queue) -> None:
    first = queue.start(*STAYS)
    wait_until(lambda: waits(queue, first))
    second = queue.start(*STAYS)
    assert end_of(first) == (0, "", "")
    wait_until(lambda: waits(queue, second))
    stop(second)


def test_a_thread_that_a_task_left_does_not_keep_the_slot_from_the_successor(queue: Queue) -> None:
    queue.add("tasks.leave_thread")
    first = queue.start_task(*STAYS)
    second = queue.start(*STAYS)
    wait_until(lambda: queue.sql("SELECT pid FROM jobs_queue_processes") == [(second.pid,)])
    assert first.poll() is None
    queue.add("tasks.who")
    wait_until(lambda: queue.notes()[1:] == [str(second.pid)])
    queue.go()
    assert end_of(first) == (0, "", "")
    stop(second)


def test_a_successor_takes_the_place_of_a_worker_that_is_killed(queue: Queue) -> None:
    queue.add("tasks.hold")
    first = queue.start_task(*STAYS)
    second = start_successor(queue)
    kill(first)
    queue.add("tasks.who")
    wait_until(lambda: queue.notes() == ["started", str(second.pid)])
    second.send_signal(signal.SIGTERM)
    code, _, errors = end_of(second)
    assert (code, f"process {first.pid} ended while it ran task 1" in errors) == (0, True)


def test_a_signal_ends_the_wait_of_a_successor(queue: Queue) -> None:
    queue.add("tasks.hold")
    first = queue.start_task(*STAYS)
    stop(start_successor(queue), signal.SIGINT)
    queue.go()
    stop(first, signal.SIGINT)
