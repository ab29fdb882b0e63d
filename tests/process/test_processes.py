"""Several workers from one line (--processes): the supervisor replaces, hands on, and leaves no orphans."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from taskserver.cli.processes import Processes
from taskserver.cli.worker_options import Options
from taskserver.worker.maintenance import DEAD_WORKER_TEXT
from tests.support.processes import assert_one_line, assert_silent, end_of, is_alive, kill, wait_until
from tests.support.queues import Queue

TASKS = """
import os
import signal
import time
from functools import partial

def hear(handle, *values):
    handle(*values)
    note("heard")

def hold():
    signal.signal(signal.SIGTERM, partial(hear, signal.getsignal(signal.SIGTERM)))
    note(os.getpid())
    while not (HERE / "go").exists():
        time.sleep(0.01)

def die():
    note(os.getpid())
    os.kill(os.getpid(), signal.SIGKILL)
"""
SETTINGS = {"TASKSERVER_BACKOFF": "fixed:500", "TASKSERVER_LEASE": "600"}


def workers_of(process: subprocess.Popen[str]) -> list[int]:
    """The process ids of its workers."""
    return [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]


@pytest.fixture
def held(queue: Queue) -> Iterator[tuple[Queue, subprocess.Popen[str], set[int]]]:
    """Two workers that hold a task each, and two more tasks behind these."""
    for _ in range(2):
        queue.add("tasks.hold", None, 0)
    queue.add("tasks.note")
    process = queue.start(0, "--processes", 2, "--batch", 1)
    wait_until(lambda: len(queue.notes()) == 2)
    workers = set(map(int, queue.notes()))
    yield queue, process, workers
    queue.go()
    process.kill()
    process.wait()
    wait_until(lambda: not any(map(is_alive, workers)))


Held = tuple[Queue, subprocess.Popen[str], set[int]]


def test_a_signal_reaches_all_workers_which_finish_their_tasks(held: Held) -> None:
    queue, process, _ = held
    process.send_signal(signal.SIGTERM)
    wait_until(lambda: queue.notes().count("heard") == 2)
    assert process.poll() is None
    queue.go()
    assert end_of(process) == (0, "", "")
    assert queue.statuses() == [0]


def test_a_signal_to_the_whole_group_counts_once(queue: Queue) -> None:
    """As `timeout` sends one, and a terminal at Ctrl-C."""
    for _ in range(2):
        queue.add("tasks.hold")
    queue.deployment.wrap_python(["setsid"])
    process = queue.start(0, "--processes", 2, "--batch", 1)
    wait_until(lambda: len(queue.notes()) == 2)
    os.killpg(process.pid, signal.SIGINT)
    time.sleep(0.3)  # several looks of the supervisor
    queue.go()
    assert end_of(process) == (0, "", "")
    assert queue.rows() == []  # no task was interrupted


def test_a_second_signal_interrupts_the_tasks_of_all(held: Held) -> None:
    queue, process, _ = held
    for _ in range(5):
        process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(1.2)  # within a second they are one request
    assert end_of(process) == (0, "", "")
    assert sorted(queue.statuses()) == [0, 3, 3]
    assert [error for error in queue.first_lines() if error] == ["TaskInterrupted: stopped by a second signal"] * 2


# ---- deaths


def test_a_worker_that_dies_is_replaced_and_what_it_had_not_started_runs(queue: Queue) -> None:
    queue.deployment.claim_at_once()
    queue.add("tasks.die")
    for _ in range(3):
        queue.add("tasks.note")
    ended = queue.worker(0, "--processes", 1)
    (pid, *others) = queue.notes()
    died, ran = ended.stderr.splitlines()
    assert (ended.returncode, ended.stdout, others) == (1, "", ["noted"] * 3)
    assert died == f"process {pid}, a worker of this line, died: signal 9 (Killed)"
    assert ran.startswith(f"process {pid} ended while it ran task 1 tasks.die: when the lease ends")
    assert queue.statuses() == [1]
    queue.end_leases()
    assert_silent(queue.worker())
    assert queue.errors() == [DEAD_WORKER_TEXT.format(pid)]


def test_the_pause_before_a_dead_worker_is_replaced_grows_up_to_five_seconds(queue: Queue) -> None:
    line = Processes(queue.server.settings, Options(processes=1), lambda *values: 0)
    pauses = []
    for _ in range(5):
        began = time.monotonic()
        line._start_later()
        pauses.append(round(line._starts.pop() - began, 1))
    assert pauses == [0.5, 1.0, 2.0, 4.0, 5.0]


def test_a_worker_that_dies_while_all_are_stopped_is_not_replaced(queue: Queue) -> None:
    queue.add("tasks.hold")
    process = queue.start_task(0, "--processes", 1)
    (worker,) = workers_of(process)
    process.send_signal(signal.SIGTERM)
    wait_until(lambda: "heard" in queue.notes())
    os.kill(worker, signal.SIGKILL)
    assert end_of(process) == (1, "", f"process {worker}, a worker of this line, died: signal 9 (Killed)\n")
    assert queue.statuses() == [1]


def test_workers_whose_supervisor_is_killed_end_after_their_tasks(held: Held) -> None:
    queue, process, workers = held
    kill(process)
    time.sleep(0.3)  # several looks of the workers
    assert all(map(is_alive, workers))
    queue.go()
    wait_until(lambda: not any(map(is_alive, workers)))
    assert queue.statuses() == [0]
    assert_silent(queue.worker())


def test_idle_workers_whose_supervisor_is_killed_end_at_once(queue: Queue) -> None:
    process = queue.start(0, "--processes", 2, "--linger", 60)
    wait_until(lambda: len(queue.sql("SELECT pid FROM jobs_queue_processes")) == 2)
    workers = workers_of(process)
    kill(process)
    wait_until(lambda: not any(map(is_alive, workers)))
    assert queue.sql("SELECT pid FROM jobs_queue_processes") == []


REFUSE = """
import os
fork, count = os.fork, [0]

def refuse():
    count[0] += 1
    if count[0] in {}:
        raise OSError(11, "Resource temporarily unavailable")
    return fork()

os.fork = refuse
"""


def test_a_host_that_refuses_a_process_is_asked_again(queue: Queue) -> None:
    assert_silent(queue.worker())  # makes var/, which has what was said within the hour
    queue.add("tasks.hold")
    (queue.folder / "sitecustomize.py").write_text(REFUSE.format(range(2, 4)))
    process = queue.start(0, "--processes", 2, PYTHONPATH=str(queue.folder))
    wait_until(lambda: len(workers_of(process)) == 2)
    queue.go()
    code, _, errors = end_of(process)
    assert (code, errors.count("the host refuses to start a process now")) == (0, 1)


def test_a_host_that_refuses_all_processes_ends_the_line(queue: Queue) -> None:
    (queue.folder / "sitecustomize.py").write_text(REFUSE.format(range(1, 99)))
    ended = queue.worker(0, "--processes", 2, PYTHONPATH=str(queue.folder))
    assert_one_line(ended, 1, "the host refuses to start a process", "use fewer --processes")


def test_a_worker_that_fails_does_not_become_a_supervisor(queue: Queue) -> None:
    """It would start workers, and each of these would, and no signal would end them all."""
    queue.add("tasks.note")
    code = (
        "import os, taskserver.cli.worker as worker\nwork, pid = worker._work, os.getpid()\n"
        "def fail(*values):\n    if os.getppid() == pid and not os.path.exists('failed'):\n"
        "        open('failed', 'w').close()\n        raise SystemError('no')\n"
        "    return work(*values)\nworker._work = fail\n"
    )
    (queue.folder / "sitecustomize.py").write_text(code)
    ended = queue.worker(0, "--processes", 1, PYTHONPATH=str(queue.folder))
    assert (ended.returncode, queue.notes()) == (1, ["noted"])
    assert "SystemError: no" in ended.stderr
    assert ended.stderr.count("died: exit code 1") == 1
