"""Slots: how many workers of the same groups are at work at once on a host; --linger, which hands its slot over.

tests/unit/test_host.py has the locks.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

from tests.support.processes import WAIT_SECONDS, assert_one_line, assert_silent, end_of, kill, stop, wait_until
from tests.support.queues import Queue

SETTINGS = {"TASKSERVER_MAX_ATTEMPTS": "10", "TASKSERVER_LEASE": "600", "TASKSERVER_PAUSES": "0.05,0.2,1"}
STAYS = ("0", "--linger", 2 * WAIT_SECONDS, "--slots", "1")
TASKS = """
import os
import time

def hold():
    note("started")
    while not (HERE / "go").exists():
        time.sleep(0.01)

def leave_child():
    child = os.fork()
    if child == 0:
        os.setsid()
        time.sleep(60)
        os._exit(0)
    note(child)
    time.sleep(60)

def who():
    note(os.getpid())
"""


def test_one_worker_more_than_there_are_slots_leaves_at_once_and_says_nothing(queue: Queue) -> None:
    for _ in range(2):
        queue.add("tasks.hold")
    queue.add("tasks.note")
    first, second = (queue.start_task(1, "--slots", 2) for _ in range(2))
    before = queue.sql("SELECT pid, started_at FROM jobs_queue_workers")
    assert_silent(queue.worker("--slots", 2))
    assert "2 workers of these groups at work here" in queue.worker("--slots", 2, "--verbose").stderr
    assert queue.statuses() == [1, 1, 0]
    assert queue.sql("SELECT pid, started_at FROM jobs_queue_workers") == before
    kill(first)
    queue.move_workers()
    assert_silent(queue.worker("--slots", 2))
    assert queue.statuses() == [1, 1]
    assert queue.notes()[-1] == "noted"
    queue.go()
    assert end_of(second) == (0, "", "")


def test_other_groups_and_tables_have_slots_of_their_own(queue: Queue) -> None:
    other = {"TASKSERVER_TABLE": "other_queue"}
    assert queue.here("init", env=other).returncode == 0
    assert queue.here("add", "tasks.note", '["elsewhere"]', "--group", 5, env=other).returncode == 0
    queue.add("tasks.hold", None, 3)
    process = queue.start_task(1, "5,3", "--slots", 1)
    queue.add("tasks.note", '["same groups"]', 5)
    assert_silent(queue.worker(0, "3,5", "--slots", 1))
    assert_silent(queue.worker(0, "5,3", "--slots", 1, **other))
    assert queue.notes() == ["started", "elsewhere"]
    assert_silent(queue.worker("--slots", 1))
    assert queue.notes()[-1] == "same groups"
    queue.go()
    assert end_of(process) == (0, "", "")


def test_a_child_that_a_task_leaves_behind_does_not_hold_its_worker_s_slot(queue: Queue) -> None:
    queue.add("tasks.leave_child")
    process = queue.start_task("--slots", 1)
    pid = int(queue.notes()[0])
    try:
        kill(process)
        queue.move_workers()
        queue.add("tasks.note")
        assert_silent(queue.worker("--slots", 1))
        assert queue.notes()[1:] == ["noted"]
    finally:
        os.kill(pid, signal.SIGKILL)  # it lived on


def test_a_folder_of_slots_that_cannot_be_written_is_one_line_with_the_way_out(queue: Queue) -> None:
    path = queue.folder / "var"
    shutil.rmtree(path, ignore_errors=True)
    path.write_text("a file where a folder should be")
    queue.add("tasks.note")
    assert_one_line(queue.worker(), 2, "worker.py", str(path), "--slots 0")
    assert queue.statuses() == [0]
    assert_silent(queue.worker("--slots", 0))
    assert queue.notes() == ["noted"]


def test_a_worker_that_ended_leaves_its_slot_and_private_files(queue: Queue) -> None:
    umask = os.umask(0)
    try:
        for _ in range(2):
            queue.add("tasks.note")
            assert_silent(queue.worker("--slots", 1))
    finally:
        os.umask(umask)
    assert queue.notes() == ["noted"] * 2
    assert (queue.folder / "notes").stat().st_mode & 0o777 == 0o644, "what tasks make is not for others to write"
    slots = queue.folder / "var" / "slots"
    files = list(slots.iterdir())
    assert files
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}
    assert {path.stat().st_mode & 0o777 for path in (slots, slots.parent)} == {0o700}


def test_as_many_slots_as_processes_are_free_and_a_second_line_finds_none(queue: Queue) -> None:
    for _ in range(6):
        queue.add("tasks.hold")
    process = queue.start(0, "--processes", 5, "--batch", 1)  # one more than there are slots without it
    wait_until(lambda: len(queue.notes()) == 5)
    assert_silent(queue.worker(0, "--processes", 5))
    assert sorted(queue.statuses()) == [0, *[1] * 5]
    queue.go()
    assert end_of(process) == (0, "", "")


# ---- --linger


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


def test_a_signal_ends_the_wait_of_a_successor(queue: Queue) -> None:
    queue.add("tasks.hold")
    first = queue.start_task(*STAYS)
    stop(start_successor(queue), signal.SIGINT)
    queue.go()
    stop(first, signal.SIGINT)
