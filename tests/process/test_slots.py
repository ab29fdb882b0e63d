"""Slots: how many workers of the same groups are at work at once on a host."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pytest

from tests.support.processes import assert_one_line, assert_silent, end_of, kill, wait_until
from tests.support.queues import Queue

SETTINGS = {"TASKSERVER_MAX_ATTEMPTS": "10", "TASKSERVER_LEASE": "600"}
TASKS = """
import os
import subprocess
import time

def hold():
    note("started")
    while not (HERE / "go").exists():
        time.sleep(0.01)

def back_up():
    files = [path for path in (HERE / "var" / "slots").iterdir() if path.read_bytes() is not None]
    assert files
    hold()
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


def test_other_groups_tables_and_databases_have_slots_of_their_own(queue: Queue) -> None:
    table, database = {"TASKSERVER_TABLE": "other_queue"}, {"TASKSERVER_DSN": "sqlite:///var/other.db"}
    for other in (table, database):
        assert queue.here("init", env=other).returncode == 0
        assert queue.here("add", "tasks.note", '["elsewhere"]', "--group", 5, env=other).returncode == 0
    queue.add("tasks.hold", None, 3)
    process = queue.start_task(1, "5,3", "--slots", 1)
    queue.add("tasks.note", '["same groups"]', 5)
    queue.add("tasks.note", '["other groups"]', 6)
    assert_silent(queue.worker(0, "3,5", "--slots", 1))
    assert_silent(queue.worker(0, "6", "--slots", 1))
    for other in (table, database):
        assert_silent(queue.worker(0, "5,3", "--slots", 1, **other))
    assert queue.notes() == ["started", "other groups", "elsewhere", "elsewhere"]
    assert_silent(queue.worker("--slots", 1))
    assert queue.notes()[-1] == "same groups"
    queue.go()
    assert end_of(process) == (0, "", "")


CHILDREN = {
    "forked": "if os.fork() == 0:\n        os.setsid()\n        time.sleep(60)\n        os._exit(0)",
    "a program with every file": "subprocess.Popen(['sleep', '60'], close_fds=False, start_new_session=True)",
}


@pytest.mark.parametrize("code", CHILDREN.values(), ids=CHILDREN.keys())
def test_a_child_that_a_task_leaves_behind_does_not_hold_its_worker_s_slot(queue: Queue, code: str) -> None:
    queue.define(f"def leave_child():\n    {code}\n    note('started')\n    time.sleep(60)\n")
    queue.add("tasks.leave_child")
    process = queue.start_task("--slots", 1)
    pids = [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
    try:
        kill(process)
        queue.move_workers()
        queue.add("tasks.note")
        assert_silent(queue.worker("--slots", 1))
        assert queue.notes() == ["started", "noted"]
        assert pids, "no child lived on: nothing was shown"
        for pid in pids:
            os.kill(pid, 0)
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)


def test_a_task_that_reads_the_whole_folder_as_a_backup_does_not_free_its_worker_s_slot(queue: Queue) -> None:
    queue.add("tasks.back_up")
    worker = queue.start_task("--slots", 1)
    queue.add("tasks.note")
    assert_silent(queue.worker("--slots", 1))
    assert queue.statuses() == [1, 0]
    queue.go()
    assert end_of(worker) == (0, "", "")
    assert queue.notes() == ["started", "noted"]


@pytest.mark.parametrize("place", ["var", "var/slots"])
def test_a_folder_of_slots_that_cannot_be_written_is_one_line_with_the_way_out(queue: Queue, place: str) -> None:
    path = queue.folder / place
    shutil.rmtree(path, ignore_errors=True)
    path.parent.mkdir(exist_ok=True)
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
    for _ in range(8):
        queue.add("tasks.hold")
    process = queue.start(0, "--processes", 6, "--batch", 1)
    wait_until(lambda: len(queue.notes()) == 6)
    assert_silent(queue.worker(0, "--processes", 6))
    assert sorted(queue.statuses()) == [0, 0, *[1] * 6]
    queue.go()
    assert end_of(process) == (0, "", "")
