"""What worker.py writes to standard error and to a terminal, and what tasks do to the process around them."""

from __future__ import annotations

import os
import re
import subprocess

import pytest

from tests.support.processes import WAIT_SECONDS, assert_silent, run_on_terminal
from tests.support.queues import Queue

SETTINGS = {"TASKSERVER_MAX_ATTEMPTS": "1"}
TASKS = """
import os
import subprocess
import sys
import time

def fail(message="no luck"):
    raise ValueError(message)

def say(text="said"):
    print(text)

def say_past_print():
    print('unencodable \\udcff')
    sys.stdout.buffer.write(b'bytes')
    subprocess.run(['echo', 'from a child'])

def show_password():
    started = subprocess.run(["env"], capture_output=True, text=True).stdout
    note([started.count("hunter2"), str(os.environ).count("hunter2")])
"""


# ---- standard error


def test_an_empty_queue_ends_a_run_at_once_and_quietly(queue: Queue) -> None:
    assert_silent(queue.worker(100, "3,5,6"))
    assert queue.reason() == "empty"


def test_verbose_says_on_standard_error_what_it_does(queue: Queue) -> None:
    queue.add("tasks.note")
    queue.add("tasks.fail")
    ended = queue.worker("--verbose")
    assert (ended.returncode, ended.stdout) == (0, "")
    assert "task 1 tasks.note is done" in ended.stderr
    assert "task 2 tasks.fail is fatal: ValueError: no luck" in ended.stderr
    assert "empty" in ended.stderr
    assert "task 2 tasks.fail failed, attempt 1 of 1: ValueError: no luck\n    Traceback (most" in ended.stderr


def test_a_run_shows_twenty_fatal_tasks_and_counts_the_rest(queue: Queue) -> None:
    for number in range(45):
        queue.add("tasks.fail" if number % 2 else "os.system")
    ended = queue.worker()
    *shown, rest = ended.stderr.splitlines()
    assert (ended.returncode, len(shown)) == (0, 20)
    assert all("is fatal" in line for line in shown)
    assert " 25 more" in rest


def test_control_characters_of_rows_and_tasks_are_escaped(queue: Queue) -> None:
    queue.add("tasks.fail", '["first line\\nsecond line"]')
    queue.add("tasks.\x1b[2Jx\r\x07")
    queue.add("tasks.fail", '["\\u001b]0;title\\u0007 \\u202e \\u0085 \\u2028 \\ud800 end"]')
    queue.add("tasks.fail", '["nul \\u0000 end"]')
    ended = queue.worker()
    assert ended.returncode == 0
    assert len(ended.stderr.splitlines()) == 4
    assert ended.stderr.startswith("task 1 tasks.fail is fatal: ValueError: first line\ntask 2 ")
    assert not [character for character in ended.stderr if not character.isprintable() and character != "\n"]
    assert "\\x1b[2J" in ended.stderr
    assert "\\x1b]0;title\\x07 \\u202e \\x85 \\u2028 \\ud800 end" in ended.stderr


# ---- standard output and a terminal


def test_a_worker_prints_nothing_on_standard_output_even_if_tasks_print(queue: Queue) -> None:
    for task in ("say", "say_past_print"):
        queue.add(f"tasks.{task}")
    assert_silent(queue.worker())
    assert queue.statuses() == []


def test_a_terminal_has_what_tasks_print_and_a_summary_and_one_that_closes_it_breaks_no_run(queue: Queue) -> None:
    for name, args in (("say", '["for a person"]'), ("fail", None), ("note", None)):
        queue.add(f"tasks.{name}", args)
    code, screen = run_on_terminal(queue.deployment, "worker.py")
    said, failure, summary = screen.splitlines()
    assert (code, said, failure) == (0, "for a person", "task 2 tasks.fail is fatal: ValueError: no luck")
    assert re.fullmatch(r"2 done, 1 fatal in \d+\.\d s; ended: empty", summary)
    queue.define("def close_stdout():\n    sys.stdout.close()\n")
    for name in ("close_stdout", "note"):
        queue.add(f"tasks.{name}")
    code, screen = run_on_terminal(queue.deployment, "worker.py")
    assert (code, queue.notes(), queue.reason()) == (0, ["noted"] * 2, "empty")
    assert "Traceback" not in screen


def test_a_worker_without_standard_streams_runs_all_the_same(queue: Queue) -> None:
    for task in ("say", "fail", "note"):
        queue.add(f"tasks.{task}")
    command = ["/bin/sh", "-c", 'exec "$@" >&- 2>&- <&-', "sh", queue.deployment.python]
    ended = subprocess.run(
        [*command, str(queue.folder / "worker.py")],
        cwd=queue.deployment.home,
        env={"PATH": os.defpath},
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
    )
    assert_silent(ended)
    assert (queue.notes(), queue.statuses()) == (["noted"], [4])


# ---- the process around tasks


@pytest.mark.parametrize("program", ["worker", "client"])
def test_a_password_in_the_environment_reaches_no_program_that_a_task_starts(sqlite_queue: Queue, program: str) -> None:
    sqlite_queue.add("tasks.show_password")
    env = {"TASKSERVER_PASSWORD": "hunter2", "TASKSERVER_DSN": sqlite_queue.dsn}
    ended = sqlite_queue.worker("1", **env) if program == "worker" else sqlite_queue.client("run", "1", env=env)
    assert ended.returncode == 0, ended.stderr
    assert sqlite_queue.notes() == ["[0, 0]"]


def test_the_worker_is_found_through_a_symlink_from_any_current_folder(queue: Queue) -> None:
    queue.add("tasks.note")
    link = queue.deployment.home / "bin" / "run-tasks"
    link.parent.mkdir()
    link.symlink_to(queue.folder / "worker.py")
    # What lies in the current folder is not one of its business.
    for name, text in {".env": "TASKSERVER_MODE=nonsense\n", "tasks.py": "raise SystemExit\n"}.items():
        (queue.deployment.home / name).write_text(text)
    assert_silent(queue.deployment.run(str(link)))
    assert queue.notes() == ["noted"]


BREAKING = {
    "standard streams": ["sys.stdout.close()", "sys.stderr.close()", "os.close(1)", "sys.stdout = None"],
    "folders and the environment": [
        "os.mkdir('gone'); os.chdir('gone'); os.rmdir('../gone')",
        "os.environ['TZ'] = 'Asia/Tokyo'; time.tzset()",
        "os.environ.clear()",
        "sys.path.clear()",
    ],
    "the interpreter": [
        "import threading; threading.Thread(target=time.sleep, args=(0.2,)).start()",
        "import socket; socket.setdefaulttimeout(1e-6)",
        "import warnings; warnings.simplefilter('error')",
        "sys.setrecursionlimit(100)",
    ],
}


@pytest.mark.parametrize("damages", BREAKING.values(), ids=BREAKING)
def test_what_a_task_does_to_the_process_breaks_no_run(queue: Queue, damages: list[str]) -> None:
    queue.define("".join(f"\ndef do_{n}():\n    {code}\n" for n, code in enumerate(damages)))
    after = ["tasks.say", "tasks.fail", "tasks.note"]
    for number in range(len(damages)):
        for task in (f"tasks.do_{number}", *after):
            queue.add(task)
    ended = queue.worker("--mode", "mark")
    assert (ended.returncode, ended.stdout) == (0, ""), ended.stderr
    assert "Traceback" not in ended.stderr
    assert queue.statuses() == [2, 2, 4, 2] * len(damages)
    assert queue.reason() == "empty"
