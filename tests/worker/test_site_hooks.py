"""TASKSERVER_SETUP, which a run calls before its first task, and TASKSERVER_BETWEEN, which it calls before each."""

from __future__ import annotations

import json
import signal
import time

import pytest

from taskserver import SettingError, TaskServer
from taskserver.worker import hooks
from tests.support.processes import assert_one_line, assert_silent, end_of, wait_until
from tests.support.queues import Queue

TASKS = """
import time

from taskserver import task

import site_of_tests

assert site_of_tests.is_ready, "imported before the setup"

def fail():
    note("fail")
    raise ValueError("no luck")

def nap():
    note("nap")
    time.sleep(60)

@task(on_fatal="tasks.rescue", max_attempts=1)
def rescued():
    note("rescued")
    raise ValueError("no luck")

def rescue(error):
    note("rescue")

@task(transactional=True)
def transfer():
    note("transfer")

@task(batch=5)
def index(items):
    note(f"index {len(items)}")

@task(commit_every=5)
def quick(number):
    note(f"quick {number}")

"""
SITE = """
from pathlib import Path

is_ready = False

def note(text):
    with open(Path(__file__).with_name("notes"), "a") as file:
        file.write(f"{text}\\n")

def setup():
    global is_ready
    note("setup")
    is_ready = True

def between():
    note("-")

def tell(failure):
    note(f"told {is_ready}")
"""
SETTINGS = {"TASKSERVER_SETUP": "site_of_tests:setup"}
BETWEEN = {"TASKSERVER_BETWEEN": "site_of_tests:between"}
LOST = "UPDATE jobs_queue SET status = 1, attempts = 2, claim = 1, started_at = created_at, due_at = created_at"


def site(queue: Queue, code: str = "") -> None:
    """Put this into the module of the site, too, which no row may name a function of."""
    (queue.folder / "site_of_tests.py").write_text(SITE + code)


def add(queue: Queue, *names: str) -> None:
    for name in names:
        queue.add(f"tasks.{name}", "[1]" if name in ("index", "quick") else None)


# ---- the setup


def test_it_is_called_once_in_a_run_before_any_module_of_tasks_is_imported(queue: Queue) -> None:
    site(queue)
    add(queue, "note", "note")
    assert_silent(queue.worker("--batch", 1))
    assert queue.notes() == ["setup", "noted", "noted"]


def test_an_empty_run_does_not_even_import_it(sqlite_queue: Queue) -> None:
    site(sqlite_queue, "raise SystemExit")
    assert_silent(sqlite_queue.worker())
    add(sqlite_queue, "note")
    sqlite_queue.sql(f"UPDATE jobs_queue SET status = 5, due_at = {sqlite_queue.ago(-3600)}")
    assert_silent(sqlite_queue.worker())


BROKEN = {
    "raises": ("raise ValueError('no\\nmail')", "failed: ValueError: no (site_of_tests.py, line 21)"),
    "exits": ("raise SystemExit(3)", "failed: SystemExit: 3 (site_of_tests.py, line 21)"),
    "raises a KeyboardInterrupt": ("raise KeyboardInterrupt", "failed: KeyboardInterrupt: "),
    "wants an argument": ("pass", "failed: TypeError: broken() missing 1 required positional argument: 'what'"),
}


@pytest.mark.parametrize("how", BROKEN)
def test_its_failure_is_one_line_and_costs_no_attempt(sqlite_queue: Queue, how: str) -> None:
    code, words = BROKEN[how]
    site(sqlite_queue, f"def broken({'what' if code == 'pass' else ''}):\n    {code}\n")
    add(sqlite_queue, "note", "note")
    broken = {"TASKSERVER_SETUP": "site_of_tests:broken", "TASKSERVER_LOG": "log"}
    line = f"worker.py: TASKSERVER_SETUP: site_of_tests:broken {words}"
    assert_one_line(sqlite_queue.worker(**broken), 2, line)
    assert sqlite_queue.rows("status, attempts, started_at, error_text") == [(0, 0, None, None)] * 2
    if how == "raises":
        assert 'site_of_tests.py", line 21, in broken\n' in (sqlite_queue.folder / "log").read_text()
    assert_silent(sqlite_queue.worker())
    assert sqlite_queue.notes() == ["setup", "noted", "noted"]


MISSING = {
    "no_site:setup": "cannot be had: ModuleNotFoundError: No module named 'no_site'",
    "site_of_tests:no": "cannot be had: AttributeError: module 'site_of_tests' has no attribute 'no'",
    "site_of_tests:is_ready": "cannot be had: it is no function, but of type bool",
    "site_of_tests:waits": "cannot be had: it is an async def function, which nobody awaits; name a plain one, which "
    "may asyncio.run it",
    "site_of_tests:made": "cannot be had: it returned a coroutine, which nobody awaits; name a plain one, which may "
    "asyncio.run it",
    "site_of_tests:yields": "cannot be had: it is a generator function, and calling it would run nothing; name a plain "
    "function that runs it",
}


@pytest.mark.parametrize("name", MISSING)
def test_where_it_cannot_be_had_that_is_one_line_too(sqlite_queue: Queue, name: str) -> None:
    site(sqlite_queue, "async def waits(): ...\ndef made(): return waits()\ndef yields(): yield\n")
    add(sqlite_queue, "note")
    ended = sqlite_queue.worker(TASKSERVER_SETUP=name)
    assert_one_line(ended, 2, f"worker.py: TASKSERVER_SETUP: {name} {MISSING[name]} (said once an hour)\n")
    assert sqlite_queue.rows("status, attempts") == [(0, 0)]


def test_a_person_who_runs_a_task_has_it_called_and_sees_its_failure_as_one_line(sqlite_queue: Queue) -> None:
    site(sqlite_queue, "def broken():\n    raise ValueError('no mail')\n")
    add(sqlite_queue, "note")
    ended = sqlite_queue.client("run", 1, env={"TASKSERVER_SETUP": "site_of_tests:broken"})
    assert_one_line(ended, 2, "client.py: TASKSERVER_SETUP: site_of_tests:broken failed: ValueError: no mail")
    assert sqlite_queue.rows("status, attempts") == [(0, 0)]
    assert sqlite_queue.client("run", 1).returncode == 0
    assert sqlite_queue.notes() == ["setup", "noted"]


def test_one_that_hangs_ends_and_others_have_the_tasks_meanwhile(
    sqlite_queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hooks, "MAX_SETUP_SECONDS", 1.5)
    seen: list[list[int]] = []

    def hang() -> None:
        wait_until(lambda: sqlite_queue.statuses() == [0, 0])  # given back before their lease of a second ends
        seen.append(sqlite_queue.statuses())
        time.sleep(60)

    add(sqlite_queue, "note", "note")
    with TaskServer(sqlite_queue.dsn, lease=1, setup=hang) as server, pytest.raises(SettingError) as caught:
        server.run()
    words = "failed: TaskInterrupted: it ran for longer than its timeout of 1.5 s"
    assert str(caught.value).startswith(f"TASKSERVER_SETUP: setup {words}")
    assert seen == [[0, 0]]
    assert sqlite_queue.rows("status, attempts") == [(0, 0)] * 2


SLOW = """
import time

def slow():
    note("begins")
    time.sleep(SECONDS)
    note("ends")
"""


@pytest.mark.parametrize("signals", [1, 2])
def test_a_signal_meanwhile_ends_the_run_quietly(sqlite_queue: Queue, signals: int) -> None:
    """The first one lets it end; a second one interrupts it, as it does a task."""
    site(sqlite_queue, SLOW.replace("SECONDS", "0.5" if signals == 1 else "60"))
    add(sqlite_queue, "note")
    worker = sqlite_queue.start(TASKSERVER_SETUP="site_of_tests:slow")
    wait_until(lambda: sqlite_queue.notes() == ["begins"])
    for number in (signal.SIGTERM, signal.SIGINT)[:signals]:
        worker.send_signal(number)
    assert end_of(worker) == (0, "", "")
    assert sqlite_queue.notes() == ["begins", "ends"][: 3 - signals]
    assert (sqlite_queue.rows("status, attempts"), sqlite_queue.reason()) == ([(0, 0)], "stopped")


# ---- between


def test_it_is_called_before_each_call_of_code_of_tasks(queue: Queue) -> None:
    site(queue)
    names = ("note", "fail", "rescued", "transfer", "index", "index", "quick", "quick")
    add(queue, *names)
    env = BETWEEN | {"TASKSERVER_ON_FAILURE": "site_of_tests:tell"}
    assert queue.worker(**env).returncode == 0
    calls = [
        *("setup", "-", "-", "noted", "-", "fail", "-", "told True", "-", "rescued", "-", "rescue", "-", "told True"),
        *("-", "transfer", "-", "index 2", "-", "quick 1", "-", "quick 1"),
    ]
    assert queue.notes() == calls
    assert queue.statuses() == [3]


STARTED = """
import sqlite3

def looks():
    queue = sqlite3.connect(PATH, timeout=10)
    note("- " + ",".join(str(status) for (status,) in queue.execute("SELECT status FROM jobs_queue ORDER BY id")))
    queue.close()
"""


def test_the_ends_of_the_tasks_before_are_written_by_then(sqlite_queue: Queue) -> None:
    site(sqlite_queue, STARTED.replace("PATH", repr(str(sqlite_queue.path))))
    add(sqlite_queue, "note", "note", "note")
    assert_silent(sqlite_queue.worker(TASKSERVER_BETWEEN="site_of_tests:looks", TASKSERVER_MODE="mark"))
    notes = sqlite_queue.notes()
    assert [note for note in notes if note[0] != "-"] == ["setup", "noted", "noted", "noted"]
    assert [note.count("2") for note in notes if note[0] == "-"] == [0, 0, 1, 2]


def test_it_is_called_once_before_a_worker_waits(sqlite_queue: Queue) -> None:
    site(sqlite_queue)
    add(sqlite_queue, "note")
    worker = sqlite_queue.start(0, "--linger", 60, **BETWEEN, TASKSERVER_PAUSES="0.02,0.05,1")
    wait_until(lambda: len(sqlite_queue.notes()) == 5)
    add(sqlite_queue, "note")
    wait_until(lambda: len(sqlite_queue.notes()) == 8)
    worker.send_signal(signal.SIGTERM)
    assert end_of(worker) == (0, "", "")
    assert sqlite_queue.notes() == ["setup", "-", "-", "noted", "-", "-", "noted", "-"]


ODD = {
    "raises": ("raise ValueError('gone away')", "failed: ValueError: gone away (site_of_tests.py, line {line})", 3),
    "exits": ("raise SystemExit(3)", "failed: SystemExit: 3 (site_of_tests.py, line {line})", 3),
    "hangs": (
        "import time; time.sleep(60)",
        "failed: TaskInterrupted: it ran for longer than its timeout of 0.5 s (site_of_tests.py, line {line}); "
        "it is not called again in this run",
        1,
    ),
}


@pytest.mark.parametrize("how", ODD)
def test_one_that_misbehaves_fails_no_task_and_is_told_once_a_run(sqlite_queue: Queue, how: str) -> None:
    code, words, calls = ODD[how]
    words = words.format(line=SITE.count("\n") + 3)
    site(sqlite_queue, f"def odd():\n    note('odd')\n    {code}\n")
    add(sqlite_queue, "note", "note")
    ended = sqlite_queue.worker(TASKSERVER_BETWEEN="site_of_tests:odd", TASKSERVER_LEASE="2")
    assert (ended.returncode, ended.stderr) == (
        0,
        f"TASKSERVER_BETWEEN: site_of_tests:odd {words} (said once an hour)\n",
    )
    assert [sqlite_queue.notes().count(note) for note in ("odd", "noted")] == [calls, 2]
    assert sqlite_queue.statuses() == []


def test_a_program_of_ones_own_gives_the_functions_themselves(sqlite_queue: Queue) -> None:
    calls: list[str] = []
    (sqlite_queue.folder / "program_with_hooks.py").write_text("def work(number):\n    pass\n")
    with TaskServer(
        sqlite_queue.dsn,
        modules="program_with_hooks",
        folder=sqlite_queue.folder,
        setup=lambda: calls.append("setup"),
        between=lambda: calls.append("between"),
    ) as server:
        server.add_tasks([{"task": "program_with_hooks.work", "args": [number]} for number in range(2)])
        assert server.run().done == 2
        assert server.run().done == 0
    assert calls == ["setup", "between", "between", "between"]


# ---- the doctor


def found(queue: Queue, **env: str) -> dict[str, tuple[str, str]]:
    report = json.loads(queue.client("doctor", "--json", env=env).stdout)
    return {one["name"]: (one["level"], one["words"]) for one in report["findings"]}


def test_the_doctor_calls_the_setup_before_it_imports_modules(sqlite_queue: Queue) -> None:
    site(sqlite_queue)
    checks = found(sqlite_queue, **BETWEEN)
    assert checks["setup"] == ("ok", "site_of_tests:setup was called, and went well")
    assert checks["modules"] == ("ok", "tasks can be imported")
    assert checks["between"] == ("ok", "site_of_tests:between can be imported")


def test_the_doctor_says_what_fails_in_the_setup_and_looks_at_no_module_then(sqlite_queue: Queue) -> None:
    site(sqlite_queue, "def broken():\n    raise ValueError('no mail\\nat all')\n")
    checks = found(sqlite_queue, TASKSERVER_SETUP="site_of_tests:broken")
    level, words = checks["setup"]
    assert level == "critical"
    assert "TASKSERVER_SETUP: site_of_tests:broken failed: ValueError: no mail (site_of_tests.py, line 21)" in words
    assert not {"modules", "callables"} & set(checks)
