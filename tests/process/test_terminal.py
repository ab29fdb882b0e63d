"""What a person sees on a terminal, and types there."""

from __future__ import annotations

import os
import pty
import sys
from itertools import takewhile

import pytest

from tests.support.deployment import Deployment
from tests.support.printed import made_healthy
from tests.support.processes import run_on_terminal
from tests.support.queues import Queue


def test_the_doctors_lines_are_wrapped_and_indented(queue: Queue) -> None:
    made_healthy(queue)
    queue.add("tasks.not_there")
    whole = next(line for line in queue.here("doctor").stdout.splitlines() if " callables " in line)
    screen = run_on_terminal(queue.deployment, "client.py", "doctor", columns=80).screen.splitlines()
    indent = " " * whole.index("'tasks.not_there'")
    first, *others = screen[next(number for number, line in enumerate(screen) if " callables" in line) :]
    continued = list(takewhile(lambda line: line.startswith(indent), others))
    assert continued
    assert max(map(len, [first, *continued])) <= 80
    assert " ".join([first, *(line.removeprefix(indent) for line in continued)]).split() == whole.split()


def test_colours_come_on_a_terminal_only_and_not_against_the_wish(queue: Queue) -> None:
    queue.add_many([(0, 4)])
    for command, words in (("list", "\x1b[31mfatal\x1b[0m"), ("status", "\x1b[33mwarning\x1b[0m: 1 task is fatal")):
        assert words in run_on_terminal(queue.deployment, "client.py", command, columns=200, has_colours=True).screen
        assert "\x1b" not in queue.here(command).stdout
    assert "\x1b" not in run_on_terminal(queue.deployment, "client.py", "list").screen


def test_a_row_is_one_line_of_a_terminal_of_80_columns(queue: Queue) -> None:
    queue.add("tasks.note", f'["{"x" * 90}"]')
    queue.sql("UPDATE jobs_queue SET status = 4, error_text = ?", f"ValueError: {'y' * 90}")
    for command in (["list"], ["errors"]):
        screen = run_on_terminal(queue.deployment, "client.py", *command, columns=80).screen
        assert max(map(len, screen.splitlines())) <= 80
        assert "ValueError" in screen


def test_an_outage_is_reported_each_time(deployment: Deployment) -> None:
    for _ in range(2):
        seen = run_on_terminal(deployment, "worker.py", TASKSERVER_DSN="mysql://user:secret@127.0.0.1:1/shop")
        assert (seen.code, "Can't connect" in seen.screen, "once an hour" in seen.screen) == (1, True, False)


@pytest.mark.parametrize(("second", "code"), [("correct horse battery", 0), ("correct horse", 2)])
def test_a_password_is_typed_twice_and_not_shown(deployment: Deployment, second: str, code: int) -> None:
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(sys.executable, [sys.executable, str(deployment.folder / "client.py"), "page", "--password"])
    seen = b""
    for prompt, typed in ((b"Password for the page:", "correct horse battery"), (b"once more:", second)):
        while prompt not in seen:
            seen += os.read(terminal, 1000)
        os.write(terminal, f"{typed}\n".encode())
    while True:
        try:
            seen += os.read(terminal, 1000)
        except OSError:
            break
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == code
    assert b"horse" not in seen
    assert (b"pbkdf2:sha256:600000$" in seen) is (code == 0)
    os.close(terminal)
