"""Signals where they are easily forgotten: while a worker starts, in what a task forked, and after the run's end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time

import pytest

from tests.support.deployment import Deployment
from tests.support.processes import assert_shows_where_it_hangs, assert_silent

TASKS = """
import atexit
import multiprocessing
import threading
import time
from pathlib import Path

from taskserver import Fatal, task
from taskserver.worker import heartbeat


def nothing():
    pass


def ends_its_child():
    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))
    child.start()
    time.sleep(0.1)
    child.terminate()
    child.join()
    Path(__file__).with_name("child").write_text(str(child.exitcode))


def leaves_a_thread():
    threading.Thread(target=time.sleep, args=(600,)).start()


def leaves_a_thread_that_ends():
    threading.Thread(target=time.sleep, args=(0.5,)).start()


def leaves_a_handler():
    atexit.register(time.sleep, 600)


def leaves_a_handler_that_ends():
    atexit.register(time.sleep, 0.5)


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
    Path(__file__).with_name("child").write_text(str(child.pid))
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

def nothing():
    pass
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


@pytest.fixture
def folder(deployment: Deployment) -> Deployment:
    deployment.write_env(TASKSERVER_DSN="sqlite:///var/queue.db")
    deployment.write_tasks(TASKS)
    assert deployment.client("init").returncode == 0
    return deployment


def signalled(folder: Deployment, program: str, arguments: list[str], number: int) -> tuple[int, str, str]:
    """How a program ends that is signalled while it imports what it needs."""
    code = STARTS_SLOWLY.format(number=number, program=folder.folder / program, arguments=arguments)
    ended = subprocess.run([folder.python, "-c", code], capture_output=True, text=True, timeout=60)
    return ended.returncode, ended.stdout, ended.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_worker_that_is_stopped_while_it_starts_ends_well(folder: Deployment, number: int) -> None:
    folder.client("add", "tasks.nothing")
    assert signalled(folder, "worker.py", [], number) == (0, "", "")
    assert '"new": 1' in folder.client("status", "--json").stdout
    assert "ended: stopped" in folder.client("status").stdout


def test_client_that_is_interrupted_while_it_starts_says_nothing(folder: Deployment) -> None:
    assert signalled(folder, "client.py", ["status"], signal.SIGINT) == (130, "", "")


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.long)])
@pytest.mark.parametrize("code", DEAFENING.values(), ids=DEAFENING.keys())
def test_a_task_that_ignores_or_handles_signals_does_so_for_itself_alone(
    folder: Deployment, code: str, number: int
) -> None:
    folder.write_tasks(DEAF.format(code=code))
    for task, *args in (["deafen"], ["late"], ["deafen"], ["breaks_a_pipe"], ["signals", f"[{number:d}]"], ["nothing"]):
        folder.client("add", f"tasks.{task}", *args)
    ended = folder.worker()
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "ended: stopped" in folder.client("status").stdout
    rows = json.loads(folder.client("list", "--json").stdout)
    assert {row["task"]: (row["status_name"], row["attempts"]) for row in rows} == {
        "tasks.late": ("error", 1),
        "tasks.nothing": ("new", 0),
    }


def test_what_a_task_forked_obeys_signals_itself(folder: Deployment) -> None:
    folder.client("add", "tasks.ends_its_child")
    ended = folder.worker(env={"TASKSERVER_TIMEOUT": "30"})
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
    assert (folder.folder / "child").read_text() == f"{-signal.SIGTERM}"


@pytest.mark.parametrize(
    "task",
    ["leaves_a_thread", *(pytest.param(one, marks=pytest.mark.long) for one in ("leaves_a_child", "leaves_a_handler"))],
)
def test_what_a_task_left_behind_keeps_its_worker_no_longer_than_timeout_and_lease(
    folder: Deployment, task: str
) -> None:
    folder.client("add", f"tasks.{task}")
    process = folder.popen("worker.py", env={"TASKSERVER_TIMEOUT": "1", "TASKSERVER_LEASE": "1"})
    code = process.wait(timeout=30)
    child = folder.folder / "child"
    if child.exists():  # it outlives its parent, and holds its standard error open
        os.kill(int(child.read_text()), signal.SIGKILL)
    _, errors = process.communicate(timeout=30)
    assert code == 1
    assert errors.startswith("Timeout (0:00:02)!\nThread 0x"), errors
    assert "ended: empty" in folder.client("status").stdout
    assert folder.client("list").stdout.strip() == "no tasks"


def test_what_an_error_holds_is_let_go_where_a_slow_end_of_it_is_interrupted(folder: Deployment) -> None:
    folder.client("add", "tasks.leaves_a_connection")
    ended = folder.worker(env={"TASKSERVER_TIMEOUT": "1", "TASKSERVER_LEASE": "1"})
    assert (ended.returncode, ended.stderr) == (0, "task 1 tasks.leaves_a_connection is fatal: Fatal: refused\n")


@pytest.mark.long
def test_a_clean_up_between_two_tasks_keeps_its_worker_no_longer_than_that_and_the_waits_for_the_database(
    folder: Deployment,
) -> None:
    folder.client("add", "tasks.leaves_a_connection_between_calls", "[1]")
    env = {"TASKSERVER_TIMEOUT": "1", "TASKSERVER_LEASE": "1", "TASKSERVER_DB_PATIENCE": "0"}
    process = folder.popen("worker.py", env=env)
    try:
        _, errors = process.communicate(timeout=40)
    finally:
        process.kill()
    assert process.returncode == 1
    assert_shows_where_it_hangs(errors, "__del__")
    time.sleep(1)
    assert "tasks.leaves_a_connection_between_calls is fatal: lost" in folder.worker().stderr


def test_an_exception_that_gives_no_text_fails_its_task_alone_however_short_the_lease_is(folder: Deployment) -> None:
    folder.client("add", "tasks.raises_what_gives_no_text")
    ended = folder.worker(env={"TASKSERVER_TIMEOUT": "3", "TASKSERVER_LEASE": "5", "TASKSERVER_MAX_ATTEMPTS": "1"})
    assert ended.returncode == 0
    assert ended.stderr == "task 1 tasks.raises_what_gives_no_text is fatal: Mute: (its text could not be read)\n"


@pytest.mark.parametrize("task", ["leaves_a_thread_that_ends", "leaves_a_handler_that_ends"])
def test_a_worker_waits_for_what_ends(folder: Deployment, task: str) -> None:
    folder.client("add", f"tasks.{task}")
    ended = folder.worker()
    assert (ended.returncode, ended.stderr) == (0, "")


def test_a_worker_that_waits_for_a_thread_ends_at_the_first_signal(folder: Deployment) -> None:
    folder.client("add", "tasks.leaves_a_thread")
    process = folder.popen("worker.py")
    while "ended: empty" not in folder.client("status").stdout:
        time.sleep(0.05)
    process.terminate()
    assert process.communicate(timeout=30) == ("", "")
    assert process.returncode == 0


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_process_that_multiprocessing_starts_anew_can_be_terminated(folder: Deployment, method: str) -> None:
    """It imports worker.py, which holds signals back while it starts."""
    folder.write_tasks(
        "import multiprocessing, signal, time\n\ndef start():\n"
        f"    process = multiprocessing.get_context({method!r}).Process(target=time.sleep, args=(60,))\n"
        "    process.start()\n    time.sleep(1)\n    process.terminate()\n    process.join(20)\n"
        "    assert process.exitcode == -signal.SIGTERM, process.exitcode\n"
    )
    folder.client("add", "tasks.start", "--max-attempts", 1)
    assert_silent(folder.worker())
