"""What worker.py writes to standard error and to a terminal, and what tasks do to the process around them."""

from __future__ import annotations

import os
import re
import subprocess

import pytest

from tests.support.processes import (
    WAIT_SECONDS,
    assert_silent,
    needs_peak,
    run_on_terminal,
    run_telling_peak,
)
from tests.support.queues import Queue

SETTINGS = {"TASKSERVER_MAX_ATTEMPTS": "1"}
TASKS = """
import logging
import os
import subprocess
import sys
import time

from taskserver import TaskServer

def fail(message="no luck"):
    raise ValueError(message)

def say(text="said"):
    print(text)

def say_in_bytes():
    sys.stdout.write('half a line')
    sys.stdout.flush()
    print('lines', 'of text', sep='\\n')
    print('no end', end='')
    print('unencodable \\udcff')

def say_past_print():
    sys.stdout.buffer.write(b'bytes')
    subprocess.run(['echo', 'from a child'])

def show_password():
    started = subprocess.run(["env"], capture_output=True, text=True).stdout
    note([started.count("hunter2"), str(os.environ).count("hunter2")])

def print_on():
    for _ in range(40):
        print('.' * 1_000_000, end='')
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
    last = ended.stderr.partition("task 2 tasks.fail failed, attempt 1 of 1: ValueError: no luck\n")[2]
    assert last.startswith("    Traceback (most recent call last):\n")
    assert "\n    ValueError: no luck\n" in last


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
    for task in ("say", "say_in_bytes", "say_past_print"):
        queue.add(f"tasks.{task}")
    assert_silent(queue.worker())
    assert queue.statuses() == []


@needs_peak
@pytest.mark.parametrize("log_file", ["", "worker.log"])
def test_what_a_task_prints_without_ending_a_line_is_not_gathered_in_memory(queue: Queue, log_file: str) -> None:
    queue.add("tasks.print_on")
    ended = run_telling_peak(queue.deployment, "worker.py", TASKSERVER_LOG=log_file)
    assert (ended.returncode, ended.stdout, queue.statuses()) == (0, "", [])
    assert int(ended.stderr) < 60_000


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


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&- <&-"])
def test_a_worker_without_one_of_the_standard_streams_runs_all_the_same(queue: Queue, closed: str) -> None:
    for task in ("say", "fail", "note"):
        queue.add(f"tasks.{task}")
    command = ["/bin/sh", "-c", f'exec "$@" {closed}', "sh", queue.deployment.python]
    ended = subprocess.run(
        [*command, str(queue.folder / "worker.py")],
        cwd=queue.deployment.home,
        env={"PATH": os.defpath},
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
    )
    assert "Traceback" not in ended.stderr
    assert (ended.returncode, ended.stdout) == (0, "")
    assert (queue.notes(), queue.statuses()) == (["noted"], [4])


def test_no_connection_gets_the_number_of_a_standard_stream_that_a_task_closed(mysql_queue: Queue) -> None:
    # Else what the next task writes there, arguments of rows, would reach the server as statements.
    mysql_queue.define(
        "import stat\nfrom taskserver import task\n\ndef shut():\n    os.closerange(0, 3)\n\n"
        "@task(transactional=True)\ndef look():\n"
        "    note([stat.S_ISSOCK(os.fstat(number).st_mode) for number in range(3)])\n"
        "    os.write(1, b'lost')\n",
    )
    mysql_queue.add("tasks.shut")
    mysql_queue.add("tasks.look")
    mysql_queue.deployment.run("worker.py")
    assert (mysql_queue.notes(), mysql_queue.statuses()) == (["[False, False, False]"], [])


# ---- the process around tasks


@pytest.mark.parametrize("program", ["worker", "client"])
def test_a_password_in_the_environment_reaches_no_program_that_a_task_starts(queue: Queue, program: str) -> None:
    queue.add("tasks.show_password")
    env = {"TASKSERVER_PASSWORD": "hunter2", "TASKSERVER_DSN": queue.dsn}
    ended = queue.worker("1", **env) if program == "worker" else queue.client("run", "1", env=env)
    assert ended.returncode == 0, ended.stderr
    assert queue.notes() == ["[0, 0]"]


def test_the_worker_is_found_through_a_symlink_from_any_current_folder(queue: Queue) -> None:
    queue.add("tasks.note")
    link = queue.deployment.home / "bin" / "run-tasks"
    link.parent.mkdir()
    link.symlink_to(queue.folder / "worker.py")
    # What lies in the current folder is none of its business.
    for name, text in {".env": "TASKSERVER_MODE=nonsense\n", "tasks.py": "raise SystemExit\n"}.items():
        (queue.deployment.home / name).write_text(text)
    assert_silent(queue.deployment.run(str(link)))
    assert queue.notes() == ["noted"]


BREAKING = {
    "standard streams": ["sys.stdout.close()", "sys.stderr.close()"],
    "no standard streams": ["sys.stdout = None", "sys.stderr = None"],
    "descriptors": ["os.close(1)", "os.close(2)"],
    "folders and the environment": [
        "os.mkdir('gone'); os.chdir('gone'); os.rmdir('../gone')",
        "os.environ['TZ'] = 'Asia/Tokyo'; time.tzset()",
        "os.environ.clear()",
        "sys.path.clear()",
        "os.umask(0o777)",
    ],
    "logging": ["import logging.config; logging.config.dictConfig({'version': 1})", "logging.disable()"],
    "the interpreter": [
        "import signal; signal.signal(signal.SIGALRM, lambda *_: None); signal.alarm(1)",
        "import threading; threading.Thread(target=time.sleep, args=(0.2,)).start()",
        "import socket; socket.setdefaulttimeout(1e-6)",
        "import decimal; decimal.setcontext(decimal.Context(prec=1))",
        "sys.settrace(lambda *_: None)",
        "import warnings; warnings.simplefilter('error')",
        "sys.setrecursionlimit(100)",
    ],
}


@pytest.mark.parametrize("damages", BREAKING.values(), ids=BREAKING.keys())
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
