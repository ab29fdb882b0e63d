"""Windows has neither SIGALRM nor locks of fcntl: there tasks are added, looked at and tested, and no worker runs.

These tests take from a Python on Linux what one on Windows lacks.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.processes import assert_one_line
from tests.support.queues import Queue

LIKE_WINDOWS = """
import os, runpy, signal, sys, time
for name in ("fcntl", "grp", "pwd", "resource", "termios"):
    sys.modules[name] = None
# The standard library has looked at what it needs of these by now.
import asyncio, concurrent.futures, getpass, logging, multiprocessing, pathlib, random, shutil, sqlite3, subprocess
import tempfile, unittest.mock
for module, names in {
    os: "fchmod fork getegid geteuid getgid getgroups getuid register_at_fork sysconf uname O_NOFOLLOW",
    signal: "SIGALRM SIGHUP SIGKILL SIGPIPE SIGUSR1 ITIMER_REAL setitimer pthread_sigmask",
    time: "CLOCK_MONOTONIC clock_gettime tzset",
}.items():
    for name in names.split():
        delattr(module, name)
sys.path.insert(0, os.getcwd())
"""
PROGRAM = "sys.argv = [{program!r}, *{arguments!r}]; runpy.run_path({program!r}, run_name='__main__')"
TEST = """
from unittest import mock
from taskserver import Retry
from taskserver.testing import task_queue
import tasks

with task_queue() as queue:
    queue.server.add_task("tasks.say", ["hello"], delay=60)
    assert queue.run_all(until=60).done == 1
    with mock.patch("tasks.say", side_effect=Retry) as say:
        queue.server.add_task(tasks.say)
        ran = queue.run_all(until="1d", raises=False)
    assert (ran.failed, ran.fatal, say.call_count) == (9, 1, 10), ran

with task_queue(timeout=5) as queue:
    queue.server.add_task("tasks.say_later", ["hello"])
    assert queue.run_all().done == 1
"""


@pytest.fixture
def queue(sqlite_queue: Queue) -> Queue:
    sqlite_queue.define(
        "def say(text='x'):\n    print(text)\n\nasync def say_later(text):\n    import asyncio\n"
        "    await asyncio.sleep(0)\n    print(text)\n"
    )
    return sqlite_queue


def on_windows(queue: Queue, code: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", LIKE_WINDOWS + code]
    env = {"PATH": "/bin", "PYTHONPATH": ":".join(sys.path), "TASKSERVER_DSN": queue.dsn}
    return subprocess.run(command, cwd=queue.folder, env=env, capture_output=True, text=True)


def program(queue: Queue, name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return on_windows(queue, PROGRAM.format(program=name, arguments=list(arguments)))


def test_tasks_are_added_and_looked_at(queue: Queue) -> None:
    added = program(queue, "client.py", "add", "tasks.say", '["hello"]')
    assert (added.returncode, added.stdout, added.stderr) == (0, "1\n", "")
    ended = program(queue, "client.py", "page", "--output", "page.html")
    assert (ended.returncode, "Error" in ended.stderr) == (0, False), ended.stderr


def test_a_sites_tests_run_its_tasks(queue: Queue) -> None:
    ended = on_windows(queue, TEST)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize("arguments", [["worker.py"], ["client.py", "doctor"]])
def test_what_runs_tasks_says_that_it_needs_another_system(queue: Queue, arguments: list[str]) -> None:
    queue.add("tasks.say")
    assert_one_line(program(queue, *arguments), 2, "needs Linux or another Unix", "WSL")
    assert queue.statuses() == [0]
