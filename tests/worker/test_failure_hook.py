"""TASKSERVER_ON_FAILURE: called after each failed attempt, and able to fail no task and to hold up no run."""

from __future__ import annotations

import json
from typing import Any

import pytest

from taskserver import FailedAttempt, TaskServer
from tests.support.documents import blocks
from tests.support.processes import assert_one_line, assert_silent
from tests.support.queues import Queue

TASKS = """
import time

from taskserver import Fatal, Retry, task

def fail(message="no luck"):
    raise ValueError(message)

def later():
    raise Retry("not yet")

@task(on_fatal="tasks.rescue", max_attempts=1)
def rescued():
    raise KeyError("first")

def rescue(error):
    pass

@task(on_fatal="tasks.rescue_in_vain", max_attempts=1)
def in_vain():
    raise KeyError("first")

def rescue_in_vain(error):
    raise ValueError("second")

@task(transactional=True)
def transfer():
    raise ValueError("rolled back")

@task(batch=5)
def index(items):
    note(f"index {len(items)}")
    for item in items:
        if item.get("bad"):
            raise ValueError("bad item")

def nap():
    time.sleep(60)

"""
ALERTS = """
import json
from pathlib import Path

import taskserver

def tell(failure):
    assert type(failure) is taskserver.FailedAttempt
    error = f"{type(failure.error).__name__}: {failure.error}"
    with open(Path(__file__).with_name("told"), "a") as file:
        told = [failure.id, failure.task, failure.attempt, error, failure.is_fatal]
        file.write(json.dumps(told) + "\\n")
"""
SETTINGS = {"TASKSERVER_ON_FAILURE": "alerts:tell"}
LOST = "UPDATE jobs_queue SET status = 1, attempts = 2, claim = 1, started_at = created_at, due_at = created_at"


def alert(queue: Queue, code: str = ALERTS) -> None:
    """Put this into alerts.py, which no row may name a function of."""
    (queue.folder / "alerts.py").write_text(code)


def told(queue: Queue) -> list[list[Any]]:
    path = queue.folder / "told"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_it_is_called_with_each_attempt_that_failed(queue: Queue) -> None:
    alert(queue)
    for name in ("fail", "later", "rescued", "in_vain", "transfer", "nap", "fail"):
        queue.add(f"tasks.{name}")
    queue.sql("UPDATE jobs_queue SET attempts = 1, max_attempts = 2 WHERE id = 7")
    assert queue.worker(TASKSERVER_TIMEOUT="1").returncode == 0
    assert told(queue) == [
        [1, "tasks.fail", 1, "ValueError: no luck", False],
        [2, "tasks.later", 1, "Retry: not yet", False],
        [3, "tasks.rescued", 1, "KeyError: 'first'", False],
        [4, "tasks.in_vain", 1, "KeyError: 'first'", True],
        [5, "tasks.transfer", 1, "ValueError: rolled back", False],
        [6, "tasks.nap", 1, "TaskInterrupted: it ran for longer than its timeout of 1 s", False],
        [7, "tasks.fail", 2, "ValueError: no luck", True],
    ]


def test_it_is_called_for_rows_that_can_never_run_and_for_lost_tasks(queue: Queue) -> None:
    alert(queue)
    queue.add("os.system", '["true"]')
    queue.add("tasks.fail")
    queue.add("tasks.fail")
    queue.sql(f"{LOST} WHERE id > 1")
    queue.sql("UPDATE jobs_queue SET max_attempts = 2 WHERE id = 3")
    assert queue.worker(1).returncode == 0
    found = {one[0]: one for one in told(queue)}
    assert found[1][1:3] == ["os.system", 0]
    assert found[1][3].startswith("BadTask: 'os.system' is in none of the modules")
    assert [found[2][1:3], found[3][1:3]] == [["tasks.fail", 2]] * 2
    assert found[2][3].startswith("TaskServerError: lost: its worker vanished")
    assert [found[number][4] for number in (1, 2, 3)] == [True, False, True]


def test_it_is_not_called_for_what_goes_well_or_was_cancelled(sqlite_queue: Queue) -> None:
    alert(sqlite_queue)
    sqlite_queue.add("tasks.rescue", '[""]')
    sqlite_queue.add("tasks.fail")
    assert sqlite_queue.client("cancel", "2").returncode == 0
    sqlite_queue.add("tasks.fail")
    sqlite_queue.sql(f"{LOST}, error_text = 'cancelled' WHERE id = 3")
    assert sqlite_queue.worker().returncode == 0
    assert told(sqlite_queue) == []


def test_a_person_who_runs_or_reclaims_a_task_has_it_called_too(sqlite_queue: Queue) -> None:
    alert(sqlite_queue)
    sqlite_queue.add("tasks.fail")
    assert sqlite_queue.client("run", "1").returncode == 0
    sqlite_queue.sql(LOST)
    assert sqlite_queue.client("reclaim").returncode == 0
    assert [one[2] for one in told(sqlite_queue)] == [1, 2]


# ---- it does whatever it likes

ODD_HOOKS = {
    "raises": ("raise ValueError('no mail')", "failed: ValueError: no mail (alerts.py, line 2)"),
    "raises a KeyboardInterrupt": ("raise KeyboardInterrupt", "failed: KeyboardInterrupt:  (alerts.py, line 2)"),
    "raises a MemoryError": ("raise MemoryError", "failed: MemoryError:  (alerts.py, line 2)"),
    "exits": ("import sys; sys.exit(3)", "failed: SystemExit: 3 (alerts.py, line 2)"),
    "hangs": (
        "import time; time.sleep(60)",
        "failed: TaskInterrupted: it ran for longer than its timeout of 1 s (alerts.py, line 2)",
    ),
    "forks": ("import os; os.fork()", ""),
    "takes no argument": ("", "failed: TypeError: tell() takes 0 positional arguments but 1 was given"),
}


@pytest.mark.parametrize("hook", ODD_HOOKS)
def test_a_hook_that_misbehaves_fails_no_task_and_is_told_once_a_run(sqlite_queue: Queue, hook: str) -> None:
    code, words = ODD_HOOKS[hook]
    alert(sqlite_queue, f"def tell({'failure' if code else ''}):\n    {code or 'pass'}\n")
    for _ in range(2):
        sqlite_queue.add("tasks.fail")
    sqlite_queue.add("tasks.note")
    ended = sqlite_queue.worker(TASKSERVER_LEASE="4")
    assert (ended.returncode, ended.stdout, sqlite_queue.notes()) == (0, "", ["noted"])
    assert ended.stderr == (f"TASKSERVER_ON_FAILURE: alerts:tell {words} (said once an hour)\n" if words else "")
    assert sqlite_queue.rows("status, attempts") == [(3, 1), (3, 1)]


def test_a_hook_that_hangs_three_times_is_left_alone_for_the_rest_of_the_run(sqlite_queue: Queue) -> None:
    alert(sqlite_queue, f"import time\n{ALERTS.replace('    assert', '    time.sleep(60 if failure.id < 4 else 0)#')}")
    for _ in range(5):
        sqlite_queue.add("tasks.fail")
    ended = sqlite_queue.worker(TASKSERVER_LEASE="2", TASKSERVER_LOG="log")
    assert (ended.returncode, told(sqlite_queue)) == (0, [])
    assert sqlite_queue.rows("status, attempts") == [(3, 1)] * 5
    log = (sqlite_queue.folder / "log").read_text()
    assert log.count("TASKSERVER_ON_FAILURE") == 3
    assert log.count("it is not called again in this run") == 1


# ---- while it is called, no task waits for it


WRONG_HOOKS = {
    "a missing module": (None, "ModuleNotFoundError: No module named 'alerts'"),
    "a missing function": ("", "AttributeError: module 'alerts' has no attribute 'tell'"),
    "a broken module": ("1 / 0", "ZeroDivisionError: division by zero"),
    "no function": ("tell = 5", "it is no function, but of type int"),
}


@pytest.mark.parametrize("wrong", WRONG_HOOKS)
def test_a_hook_that_cannot_be_had_is_told_once_a_run_and_fails_no_task(sqlite_queue: Queue, wrong: str) -> None:
    code, words = WRONG_HOOKS[wrong]
    if code is not None:
        alert(sqlite_queue, code)
    for _ in range(2):
        sqlite_queue.add("tasks.fail")
    ended = sqlite_queue.worker()
    end = f"cannot be had: {words}; it is not called again in this run"
    assert (ended.returncode, ended.stderr) == (0, f"TASKSERVER_ON_FAILURE: alerts:tell {end} (said once an hour)\n")
    assert sqlite_queue.rows("status, attempts") == [(3, 1), (3, 1)]


def test_a_value_that_names_no_function_is_refused_before_a_task_runs(sqlite_queue: Queue) -> None:
    sqlite_queue.add("tasks.fail")
    assert_one_line(sqlite_queue.worker(TASKSERVER_ON_FAILURE="alerts"), 2, "TASKSERVER_ON_FAILURE", "alerts:tell")
    assert sqlite_queue.statuses() == [0]


def test_a_program_of_ones_own_gives_the_function_itself(sqlite_queue: Queue) -> None:
    found: list[FailedAttempt] = []
    (sqlite_queue.folder / "of_program.py").write_text("def fail():\n    raise ValueError('here')\n")
    dsn, folder = sqlite_queue.dsn, sqlite_queue.folder
    with TaskServer(dsn, modules="of_program", folder=folder, on_failure=found.append) as server:
        task_id = server.add_task("of_program.fail", max_attempts=1)
        server.run()
    (failed,) = found
    assert (failed.id, failed.task, failed.attempt, failed.is_fatal) == (task_id, "of_program.fail", 1, True)
    assert str(failed.error) == "here"


def test_the_hook_of_the_documentation_mails_a_fatal_task_by_sendmail(sqlite_queue: Queue) -> None:
    sendmail, mail = sqlite_queue.folder / "sendmail", sqlite_queue.folder / "mail"
    sendmail.write_text(f'#!/bin/sh\necho "$@" >"{mail}"; cat >>"{mail}"\n')
    sendmail.chmod(0o755)
    (code,) = [block.text for block in blocks("docs/logging.md") if "/usr/sbin/sendmail" in block.text]
    alert(sqlite_queue, code.replace("/usr/sbin/sendmail", str(sendmail)))
    sqlite_queue.add("tasks.fail")
    sqlite_queue.add("tasks.no\nBcc: someone@example.org")
    assert len(sqlite_queue.worker().stderr.splitlines()) == 1
    text = mail.read_text()
    assert text.startswith(
        "-t -i\nTo: you@example.org\nSubject: task 2 'tasks.no\\nBcc: someone@example.org' is fatal\n"
    )
    assert "BadTask: 'tasks.no\\nBcc: someone@example.org' is in none of the modules" in text.replace("=\n", "")


HOLDS = """
import sqlite3

def hold(path):
    held = sqlite3.connect(path, timeout=60)
    held.execute("INSERT INTO jobs_queue (task) VALUES ('tasks.fail')")
    raise ValueError("with a transaction that is open")

"""


@pytest.mark.parametrize("has_hook", [False, True])
def test_what_a_failed_task_holds_is_let_go_before_its_failure_is_written(sqlite_queue: Queue, has_hook: bool) -> None:
    alert(sqlite_queue)
    if not has_hook:
        sqlite_queue.deployment.write_env(TASKSERVER_DSN=sqlite_queue.dsn)
    sqlite_queue.define(HOLDS)
    sqlite_queue.add("tasks.hold", json.dumps([str(sqlite_queue.path)]))
    sqlite_queue.add("tasks.note")
    assert_silent(sqlite_queue.worker(TASKSERVER_DB_PATIENCE="1"))
    assert (sqlite_queue.statuses(), sqlite_queue.notes()) == ([3], ["noted"])
    assert len(told(sqlite_queue)) == has_hook


LOOKS = """
import sqlite3

@task(commit_every=10)
def quick(number):
    fail()

@task(batch=10)
def several(items):
    return [ValueError("no luck") for item in items]
"""


TELLS_STARTED = """
import sqlite3
from pathlib import Path

def tell(failure):
    queue = sqlite3.connect(PATH, timeout=10)
    started = queue.execute("SELECT group_concat(id) FROM jobs_queue WHERE status = 1 AND started_at IS NOT NULL")
    with open(Path(__file__).with_name("told"), "a") as file:
        file.write(f"[{failure.id}, {(started.fetchone()[0] or '')!r}]\\n".replace("'", '"'))
    queue.close()
"""


@pytest.mark.parametrize("name", ["tasks.fail", "tasks.transfer", "tasks.quick"])
def test_no_other_task_is_started_while_it_is_called(sqlite_queue: Queue, name: str) -> None:
    alert(sqlite_queue, TELLS_STARTED.replace("PATH", repr(str(sqlite_queue.path))))
    sqlite_queue.define(LOOKS)
    for _ in range(4):
        sqlite_queue.add(name, "[1]" if name in ("tasks.quick", "tasks.several") else None)
    sqlite_queue.add("tasks.fail")
    sqlite_queue.add("tasks.note")
    sqlite_queue.worker()
    assert sorted(told(sqlite_queue)) == [[number, ""] for number in range(1, 6)]
    assert sqlite_queue.notes() == ["noted"]
