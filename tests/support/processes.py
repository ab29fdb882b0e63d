"""Processes and threads of a test: awaited, frozen, killed; what they printed, and what a terminal showed."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import struct
import subprocess
import termios
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.deployment import Deployment

WAIT_SECONDS = 30.0
"""For what comes in milliseconds, unless it never comes."""


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "what was waited for did not come"
        time.sleep(0.01)


def wait_for(process: subprocess.Popen[str]) -> subprocess.CompletedProcess[str]:
    """A process that must end by itself, once it has."""
    try:
        output, errors = process.communicate(timeout=WAIT_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        pytest.fail("the process did not end")
    return subprocess.CompletedProcess(process.args, process.returncode, output, errors)


def end_of(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of a process that must end by itself."""
    ended = wait_for(process)
    return ended.returncode, ended.stdout, ended.stderr


def kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    assert process.wait(WAIT_SECONDS) == -signal.SIGKILL


def is_alive(pid: int) -> bool:
    """Whether it runs, and has not only been left unburied."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def stop(process: subprocess.Popen[str], number: signal.Signals = signal.SIGTERM) -> None:
    """By a signal, which it obeys without a word."""
    process.send_signal(number)
    assert end_of(process) == (0, "", "")


def freeze(process: subprocess.Popen[str]) -> None:
    """SIGSTOP; returns once the whole process has stopped."""
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED)


def thaw(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGCONT)


def assert_silent(ended: subprocess.CompletedProcess[str]) -> None:
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


def assert_one_line(ended: subprocess.CompletedProcess[str], code: int, *words: str) -> None:
    """The program ended with this code, and said why in one line on standard error: these words, and no password."""
    assert ended.returncode == code, ended.stderr
    assert ended.stdout == ""
    assert len(ended.stderr.splitlines()) == 1, ended.stderr
    assert "Traceback" not in ended.stderr
    assert "s3cr" not in ended.stderr
    for word in words:
        assert word in ended.stderr, f"{word!r} is not in {ended.stderr!r}"


def assert_shows_where_it_hangs(errors: str, function: str) -> None:
    """The stacks of a process that nothing could interrupt, with this function among them.

    Before them is at most one line, which names the task: none if its code holds the interpreter.
    """
    words, found, stacks = errors.rpartition("Timeout (")
    assert words.count("\n") == ("still runs" in words), errors
    first, *stack = f"{found}{stacks}".splitlines()
    assert first.startswith("Timeout ("), errors
    assert all(
        line == "" or line.startswith(("Thread 0x", "Current thread 0x", '  File "', "Extension modules"))
        for line in stack
    ), errors
    assert any(function in line for line in stack), errors


Run = Callable[..., "subprocess.CompletedProcess[str]"]
"""A command of a program inside this process."""


class Terminal(NamedTuple):
    """What a person saw of a program that ran on a terminal."""

    code: int
    screen: str


def on_terminal(command: Sequence[str], cwd: Path, env: Mapping[str, str], columns: int = 0) -> Terminal:
    """Runs a command with a terminal as standard input, output and error; one of no width counts as 80 columns wide."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("4H", 24, columns, 0, 0))
    process = subprocess.Popen(
        command, cwd=cwd, env=env, stdin=follower, stdout=follower, stderr=follower, start_new_session=True
    )
    os.close(follower)
    overdue = threading.Timer(2 * WAIT_SECONDS, process.kill)
    overdue.start()
    screen = b""
    with suppress(OSError):  # Linux says EIO once the last program has closed the terminal
        while part := os.read(leader, 65536):
            screen += part
    os.close(leader)
    overdue.cancel()
    return Terminal(process.wait(WAIT_SECONDS), screen.decode())


def run_on_terminal(
    deployment: Deployment, script: str, *args: object, columns: int = 0, has_colours: bool = False, **env: str
) -> Terminal:
    """Runs a script of a deployment so."""
    colours = {} if has_colours else {"NO_COLOR": "1"}
    environ = {"PATH": os.defpath, "HOME": str(deployment.home), **colours, **env}
    command = [deployment.python, str(deployment.folder / script), *map(str, args)]
    return on_terminal(command, deployment.home, environ, columns)


@contextmanager
def together(*works: Callable[[], object]) -> Iterator[None]:
    """Does all of these, each in a thread of its own, until the end of the `with`; what they raise, it raises."""
    with ThreadPoolExecutor(len(works)) as pool:
        doing = [pool.submit(work) for work in works]
        yield
        for one in doing:
            one.result(2 * WAIT_SECONDS)


def in_another_thread(work: Callable[[], object]) -> None:
    """Do it there, to its end."""
    with together(work):
        pass
