"""A queue in an SQLite file that fails, for tests of what its programs say and lose."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.deployment import Deployment
from tests.support.processes import assert_one_line, wait_until
from tests.support.queues import Queue

TASKS = '''
import os
import time

NOTES = os.open(HERE / "notes", os.O_WRONLY | os.O_CREAT | os.O_APPEND)


def note(name, seconds=0.0):
    """Its name and the process that ran it. A short write to the end of a file is one piece."""
    os.write(NOTES, f"{name} {os.getpid()}\\n".encode())
    time.sleep(seconds)


def wait_for_go(name):
    note(name)
    while not (HERE / "go").exists():
        time.sleep(0.01)


def fill(name, path):
    """Take all the space there is on a disk; the first time only."""
    note(name)
    if (HERE / "filled").exists():
        return
    (HERE / "filled").touch()
    with open(path, "wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            pass
'''
IMPATIENT = {"TASKSERVER_DB_PATIENCE": "1"}
AFTER_A_CRASH = {"TASKSERVER_LEASE": "1", "TASKSERVER_BACKOFF": "fixed:0"}
"""So that what a worker left behind is taken back while a test waits."""


def add(queue: Queue, *names: object, seconds: float = 0.0) -> None:
    for name in names:
        queue.add("tasks.note", f'["{name}", {seconds}]')


def ran(queue: Queue) -> list[str]:
    """The names of the tasks that ran, in order."""
    return [line.split()[0] for line in queue.notes()]


def assert_one_line_each(queue: Queue, *words: str) -> None:
    """Every command that uses the queue fails in the same way, a worker as it does once an hour."""
    shutil.rmtree(queue.folder / "var" / "outages", ignore_errors=True)
    for arguments in (["worker.py"], ["client.py", "add", "tasks.note", '["lost"]'], ["client.py", "status"]):
        assert_one_line(queue.deployment.run(*arguments, env=IMPATIENT), 1, *words)


def run_until_empty(queue: Queue) -> None:
    """Runs worker.py again and again, as cron does, until no task is left that is not fatal."""

    def is_empty() -> bool:
        ended = queue.worker(**AFTER_A_CRASH)
        # It reports only tasks that were lost with their worker.
        reported = (" is fatal: ", ": lost: its worker, process ", " ended while it ran task ")
        assert (ended.returncode, ended.stdout) == (0, ""), ended.stderr
        assert all(any(words in line for words in reported) for line in ended.stderr.splitlines()), ended.stderr
        listed = queue.client("list").stdout
        return listed == "no tasks\n" or " fatal " in listed

    wait_until(is_empty)


class SmallDisk:
    """A file system of its own, of twelve mebibytes, that is seen only by those who are sent into it.

    In a mount namespace (and a user namespace, which gives an ordinary user the right to mount): nothing of it is left
    once its holder ends, which it does when this process does.
    """

    def __init__(self, path: Path, deployment: Deployment) -> None:
        """From here on the deployment's programs see this disk."""
        self.path = path
        path.mkdir()
        self._holder = next(filter(None, map(self._hold, (["--user", "--map-root-user"], []))), None)
        if self._holder is None:
            pytest.skip("no file system may be mounted here, not even in a namespace; a quota stands for it")
        deployment.wrap_python(self._entry)

    def _hold(self, namespaces: Sequence[str]) -> subprocess.Popen[str] | None:
        mount = f"mount -t tmpfs -o size=12m,mode=0700 small {shlex.quote(str(self.path))} && echo ready && exec cat"
        try:
            holder = subprocess.Popen(
                ["unshare", *namespaces, "--mount", "sh", "-c", mount],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
        except OSError:
            return None
        assert holder.stdout is not None
        self._entry = ["nsenter", f"--target={holder.pid}", "--mount"]
        self._entry += ["--user", "--preserve-credentials"] if namespaces else []
        seen = [*self._entry, "mountpoint", "-q", str(self.path)]
        if holder.stdout.readline() == "ready\n" and subprocess.run(seen).returncode == 0:
            return holder
        holder.kill()
        holder.communicate()
        return None

    @contextmanager
    def opened(self, file: Path) -> Iterator[None]:
        """Another program has the SQLite file open: its log stays, and its space with it, when a worker closes it."""
        code = "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); c.execute('SELECT * FROM sqlite_master')"
        command = [*self._entry, sys.executable, "-c", f"{code}.fetchall(); print(flush=True); input()", str(file)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "\n"
            yield
            process.communicate("\n")

    def run(self, *command: object) -> str:
        """Runs a command that sees this disk; what it printed."""
        words = [*self._entry, *map(str, command)]
        return subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout

    def free_blocks(self) -> int:
        return int(self.run("stat", "--file-system", "--format=%f", self.path))

    def close(self) -> None:
        if self._holder is not None:
            self._holder.communicate()
