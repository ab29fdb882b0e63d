"""Signals: while a worker starts, during a task, twice, in what a task forked, and after the run's end."""

from __future__ import annotations

import signal
import subprocess

from tests.support.processes import assert_silent, end_of, wait_until
from tests.support.queues import Queue

SETTINGS = {"TASKSERVER_MAX_ATTEMPTS": "10", "TASKSERVER_BACKOFF": "fixed:500", "TASKSERVER_LEASE": "600"}
TASKS = """
import multiprocessing
import os
import signal
import threading
import time

from taskserver import task

def hold():
    note("started")
    while not (HERE / "go").exists():
        time.sleep(0.01)
    note("finished")

def nap():
    note("started")
    time.sleep(60)

def busy():
    note("started")
    while True:
        try:
            time.sleep(0.001)
        except Exception:
            return

def deafen():
    for number in (signal.SIGTERM, signal.SIGALRM):
        signal.signal(number, signal.SIG_IGN)

@task(timeout=0.2)
def late():
    time.sleep(60)

def signals(number, times=1):
    for _ in range(times):
        os.kill(os.getpid(), number)

def ends_its_child():
    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))
    child.start()
    time.sleep(0.1)
    child.terminate()
    child.join()
    note(child.exitcode)

def stay():
    threading.main_thread().join()
    note("left alone")
    time.sleep(600)

def leaves_a_thread():
    threading.Thread(target=stay).start()
"""
STARTS_SLOWLY = """
import os, runpy, signal, sys

class Signalling:
    def find_spec(self, name, path=None, target=None):
        if name == "taskserver":
            os.kill(os.getpid(), signal.SIGTERM)

sys.meta_path.insert(0, Signalling())
sys.argv = ["{program}"]
runpy.run_path("{program}", run_name="__main__")
"""
"""Signals itself at the first import from the package."""


def test_a_worker_that_is_stopped_while_it_starts_ends_well(queue: Queue) -> None:
    queue.add("tasks.note")
    code = STARTS_SLOWLY.format(program=queue.folder / "worker.py")
    assert_silent(subprocess.run([queue.deployment.python, "-c", code], capture_output=True, text=True, timeout=60))
    assert (queue.statuses(), queue.reason()) == ([0], "stopped")


# ---- during a task


def test_after_a_signal_the_running_task_finishes_and_the_rest_is_given_back(queue: Queue) -> None:
    queue.deployment.claim_at_once()
    queue.add("tasks.hold")
    for _ in range(4):
        queue.add("tasks.note")
    process = queue.start_task(100)
    assert queue.statuses() == [1] * 5
    process.send_signal(signal.SIGINT)
    queue.go()
    assert end_of(process) == (0, "", "")
    assert queue.notes() == ["started", "finished"]
    columns = "status, attempts, claim, due_at, started_at, error_text"
    assert queue.rows(columns) == [(0, 0, None, None, None, None)] * 4
    assert queue.sql("SELECT reason, taken, done, fatal, released FROM jobs_queue_workers") == [("stopped", 1, 1, 0, 4)]


# ---- a second one


def test_a_second_signal_interrupts_the_running_task_which_has_failed_and_is_retried(queue: Queue) -> None:
    queue.add("tasks.busy")
    queue.add("tasks.note")
    process = queue.start_task()
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGINT)  # two of one kind right after each other are one request
    assert end_of(process) == (0, "", "")
    assert queue.rows("status, attempts, claim") == [(3, 1, None), (0, 0, None)]
    assert queue.first_lines() == ["TaskInterrupted: stopped by a second signal", ""]
    assert queue.reason() == "stopped"


def test_two_signals_at_once_wake_a_task_that_sleeps(queue: Queue) -> None:
    """The kernel gives the second to any thread that is free: one that takes it would leave the sleeper asleep."""
    count = 3
    for group in range(count):
        queue.add("tasks.nap", None, group)
    workers = [queue.start(0, group) for group in range(count)]
    wait_until(lambda: len(queue.notes()) == count)
    for process in workers:
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGINT)
    assert [end_of(process) for process in workers] == [(0, "", "")] * count
    assert queue.rows("status, attempts") == [(3, 1)] * count


def test_two_signals_right_after_each_other_are_one_request(queue: Queue) -> None:
    """As `timeout` sends one to its child, and one to the group of both."""
    queue.add("tasks.signals", f"[{signal.SIGTERM:d}, 2]")
    assert_silent(queue.worker())
    assert (queue.rows(), queue.reason()) == ([], "stopped")  # the task was not interrupted


# ---- tasks that handle signals


def test_a_task_that_ignores_signals_does_so_only_for_itself(queue: Queue) -> None:
    for task in ("deafen", "late", "deafen"):
        queue.add(f"tasks.{task}")
    queue.add("tasks.signals", f"[{signal.SIGTERM:d}]")
    queue.add("tasks.note")
    assert_silent(queue.worker())
    assert queue.reason() == "stopped"
    assert queue.rows("task, status, attempts") == [("tasks.late", 3, 1), ("tasks.note", 0, 0)]


def test_a_process_that_a_task_started_obeys_signals_itself(queue: Queue) -> None:
    queue.add("tasks.ends_its_child")
    assert_silent(queue.worker(TASKSERVER_TIMEOUT="60"))
    assert queue.notes() == [f"{-signal.SIGTERM}"]


# ---- after the run's end


def test_a_worker_that_waits_for_a_thread_ends_at_the_first_signal(queue: Queue) -> None:
    queue.add("tasks.leaves_a_thread")
    process = queue.start_task()  # it waits for the thread by then
    process.terminate()
    assert end_of(process) == (0, "", "")
