"""Signals where they are easily forgotten: while a worker starts, in what a task forked, and after the run's end."""

from __future__ import annotations

import os
import signal
import subprocess
import time

import pytest

from tests.support.processes import assert_shows_where_it_hangs, assert_silent, end_of, wait_until
from tests.support.queues import Queue

TASKS = """
import atexit
import multiprocessing
import signal
import threading
import time

from taskserver import Fatal, task
from taskserver.cli import worker
from taskserver.worker import heartbeat


def ends_its_child():
    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))
    child.start()
    time.sleep(0.1)
    child.terminate()
    child.join()
    note(child.exitcode)


def leaves_a_thread():
    threading.Thread(target=time.sleep, args=(600,)).start()


def leaves_a_thread_that_hears_the_signal():
    def work():
        threading.main_thread().join()  # it has ended, and Python waits for the others
        time.sleep(0.1)
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
        time.sleep(600)

    threading.Thread(target=work).start()


def is_told_to_end_between_its_last_look_and_its_clean_up():
    def limit(*args):
        signal.raise_signal(signal.SIGTERM)
        limit_clean_up(*args)

    leaves_a_thread()
    limit_clean_up, worker._limit_clean_up = worker._limit_clean_up, limit


def leaves_a_handler():
    atexit.register(time.sleep, 600)


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


class Mute(Exception):
    def __str__(self):
        time.sleep(600)


def raises_what_gives_no_text():
    raise Mute


def leaves_a_child():
    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))
    child.start()
    note(child.pid)
"""

# Each makes its process deaf in one way; a later task is late, one after it sends the process a signal.
DEAFENING = {
    "ignores": "for number in NUMBERS: signal.signal(number, signal.SIG_IGN)",
    "dies of": "for number in NUMBERS: signal.signal(number, signal.SIG_DFL)",
    "handles": "for number in NUMBERS: signal.signal(number, lambda *_: None)",
}
DEAF = """
import os, signal, socket, time
from taskserver import task

NUMBERS = (signal.SIGTERM, signal.SIGINT, signal.SIGALRM, signal.SIGPIPE)

def deafen():
    {code}

@task(timeout=0.2)
def late():
    time.sleep(60)

def breaks_a_pipe():
    one, other = socket.socketpair()
    other.close()
    try:
        one.send(b"")
        one.send(b"x")
    except BrokenPipeError:
        pass

def signals(number):
    os.kill(os.getpid(), number)
"""

# Signals itself at the first import from the package.
STARTS_SLOWLY = """
import os, runpy, signal, sys

class Signalling:
    def find_spec(self, name, path=None, target=None):
        if name == "taskserver":
            os.kill(os.getpid(), {number:d})

sys.meta_path.insert(0, Signalling())
sys.argv = ["{program}", *{arguments}]
runpy.run_path("{program}", run_name="__main__")
"""


SHORT = {"TASKSERVER_TIMEOUT": "1", "TASKSERVER_LEASE": "1"}


def signalled(queue: Queue, program: str, arguments: list[str], number: int) -> tuple[int, str, str]:
    """How a program ends that is signalled while it imports what it needs."""
    code = STARTS_SLOWLY.format(number=number, program=queue.folder / program, arguments=arguments)
    ended = subprocess.run([queue.deployment.python, "-c", code], capture_output=True, text=True, timeout=60)
    return ended.returncode, ended.stdout, ended.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_worker_that_is_stopped_while_it_starts_ends_well(sqlite_queue: Queue, number: int) -> None:
    sqlite_queue.add("tasks.note")
    assert signalled(sqlite_queue, "worker.py", [], number) == (0, "", "")
    assert (sqlite_queue.statuses(), sqlite_queue.reason()) == ([0], "stopped")


def test_client_that_is_interrupted_while_it_starts_says_nothing(sqlite_queue: Queue) -> None:
    assert signalled(sqlite_queue, "client.py", ["status"], signal.SIGINT) == (130, "", "")


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.long)])
@pytest.mark.parametrize("code", DEAFENING.values(), ids=DEAFENING.keys())
def test_a_task_that_ignores_or_handles_signals_does_so_for_itself_alone(
    sqlite_queue: Queue, code: str, number: int
) -> None:
    sqlite_queue.define(DEAF.format(code=code))
    for task, args in (("deafen", None), ("late", None), ("deafen", None), ("breaks_a_pipe", None)):
        sqlite_queue.add(f"tasks.{task}", args)
    sqlite_queue.add("tasks.signals", f"[{number:d}]")
    sqlite_queue.add("tasks.note")
    assert_silent(sqlite_queue.worker())
    assert sqlite_queue.reason() == "stopped"
    assert sqlite_queue.rows("task, status, attempts") == [("tasks.late", 3, 1), ("tasks.note", 0, 0)]


def test_what_a_task_forked_obeys_signals_itself(sqlite_queue: Queue) -> None:
    sqlite_queue.add("tasks.ends_its_child")
    assert_silent(sqlite_queue.worker(TASKSERVER_TIMEOUT="30"))
    assert sqlite_queue.notes() == [f"{-signal.SIGTERM}"]


@pytest.mark.parametrize(
    "task",
    ["leaves_a_thread", *(pytest.param(one, marks=pytest.mark.long) for one in ("leaves_a_child", "leaves_a_handler"))],
)
def test_what_a_task_left_behind_keeps_its_worker_no_longer_than_timeout_and_lease(
    sqlite_queue: Queue, task: str
) -> None:
    sqlite_queue.add(f"tasks.{task}")
    process = sqlite_queue.start(**SHORT)
    code = process.wait(timeout=30)
    for pid in sqlite_queue.notes():  # a child outlives its parent, and holds its standard error open
        os.kill(int(pid), signal.SIGKILL)
    _, errors = process.communicate(timeout=30)
    assert code == 1
    assert errors.startswith("Timeout (0:00:02)!\nThread 0x"), errors
    assert (sqlite_queue.rows(), sqlite_queue.reason()) == ([], "empty")


def test_what_an_error_holds_is_let_go_where_a_slow_end_of_it_is_interrupted(sqlite_queue: Queue) -> None:
    sqlite_queue.add("tasks.leaves_a_connection")
    ended = sqlite_queue.worker(**SHORT)
    assert (ended.returncode, ended.stderr) == (0, "task 1 tasks.leaves_a_connection is fatal: Fatal: refused\n")


@pytest.mark.long
def test_a_clean_up_between_two_tasks_keeps_its_worker_no_longer_than_that_and_the_waits_for_the_database(
    sqlite_queue: Queue,
) -> None:
    sqlite_queue.add("tasks.leaves_a_connection_between_calls", "[1]")
    process = sqlite_queue.start(**SHORT, TASKSERVER_DB_PATIENCE="0")
    try:
        _, errors = process.communicate(timeout=40)
    finally:
        process.kill()
    assert process.returncode == 1
    assert_shows_where_it_hangs(errors, "__del__")
    time.sleep(1)
    assert "tasks.leaves_a_connection_between_calls is fatal: lost" in sqlite_queue.worker().stderr


def test_an_exception_that_gives_no_text_fails_its_task_alone_however_short_the_lease_is(sqlite_queue: Queue) -> None:
    sqlite_queue.add("tasks.raises_what_gives_no_text")
    assert sqlite_queue.run_here(timeout=3, lease=1, max_attempts=1).fatal == 1
    assert sqlite_queue.first_lines() == ["Mute: (its text could not be read)"]


def test_a_worker_waits_for_what_ends(sqlite_queue: Queue) -> None:
    sqlite_queue.add("tasks.leaves_what_ends")
    began = time.monotonic()
    assert_silent(sqlite_queue.worker())
    assert time.monotonic() - began > 0.6


def test_a_worker_that_waits_for_a_thread_ends_at_the_first_signal(sqlite_queue: Queue) -> None:
    sqlite_queue.add("tasks.leaves_a_thread")
    process = sqlite_queue.start()
    wait_until(lambda: sqlite_queue.sql("SELECT 1 FROM jobs_queue_workers WHERE reason = 'empty'"))
    process.terminate()
    assert end_of(process) == (0, "", "")


@pytest.mark.parametrize(
    "name",
    [
        "is_told_to_end_between_its_last_look_and_its_clean_up",
        "leaves_a_thread_that_hears_the_signal",  # as one does that wakes nobody, since Python is about to wait
    ],
)
def test_a_signal_ends_the_clean_up_at_whatever_instant_it_comes(sqlite_queue: Queue, name: str) -> None:
    sqlite_queue.add(f"tasks.{name}")
    assert_silent(sqlite_queue.worker())
    assert sqlite_queue.rows() == []


def test_a_process_that_multiprocessing_starts_anew_can_be_terminated(sqlite_queue: Queue) -> None:
    """It imports worker.py, which holds signals back while it starts."""
    sqlite_queue.define(
        "def begin(path):\n    Path(path).touch()\n    time.sleep(60)\n\ndef start():\n"
        "    context = multiprocessing.get_context('spawn')\n    begun = HERE / 'begun'\n"
        "    process = context.Process(target=begin, args=(begun,))\n    process.start()\n"
        "    while not begun.exists(): time.sleep(0.01)\n    process.terminate()\n    process.join(20)\n"
        "    assert process.exitcode == -signal.SIGTERM, process.exitcode\n"
    )
    sqlite_queue.add("tasks.start")
    assert_silent(sqlite_queue.worker())
    assert sqlite_queue.rows() == []
