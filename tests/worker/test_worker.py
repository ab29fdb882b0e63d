"""worker.py as cron starts it: a process, real rows written by SQL alone, real signals and a real terminal."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from taskserver import Reason
from tests.support.deployment import Deployment
from tests.support.processes import (
    WAIT_SECONDS,
    assert_one_line,
    assert_silent,
    end_of,
    needs_peak,
    run_on_terminal,
    run_telling_peak,
    wait_until,
)
from tests.support.queues import Queue

# One attempt: what fails is fatal at once. Tests of retries have more.
SETTINGS = {"TASKSERVER_MAX_ATTEMPTS": "1"}
TASKS = """
import os
import sys
import time


def fail(message="no luck"):
    raise ValueError(message)


def say(text="said"):
    print(text)


def sleep(seconds):
    time.sleep(seconds)


def note_claimed(path):
    import sqlite3

    # How many rows are claimed while this one runs.
    note(sqlite3.connect(path).execute("SELECT COUNT(*) FROM jobs_queue WHERE status = 1").fetchone()[0])


def wait_for_go():
    note("started")
    while not (HERE / "go").exists():
        time.sleep(0.01)
    note("finished")


"""


# ---- order and limits


def test_tasks_of_the_named_groups_run_in_order_of_priority_then_id_across_them(queue: Queue) -> None:
    rows = [(3, 10), (5, -1), (6, 10), (4, -9), (3, 0), (5, 10), (6, -1), (3, -2_000_000_000), (5, 0), (6, 0)]
    for number, (group_id, priority) in enumerate(rows):
        queue.add("tasks.note", f'["{number}"]', group_id, priority)
    assert queue.run_here(groups=[3, 5, 6], batch=4).done == 9
    named = [(priority, number) for number, (group_id, priority) in enumerate(rows) if group_id != 4]
    assert queue.notes() == [str(number) for _, number in sorted(named)]
    assert queue.rows("group_id, status, attempts") == [(4, 0, 0)]


def test_a_worker_without_groups_takes_from_all(queue: Queue) -> None:
    for group_id, priority in [(0, 5), (7, -5), (4_294_967_294, 0)]:
        queue.add("tasks.note", f'["{group_id}"]', group_id, priority)
    assert queue.run_here().done == 3
    assert queue.notes() == ["7", "4294967294", "0"]


def test_max_tasks_counts_bad_rows_and_failing_tasks_too(queue: Queue) -> None:
    for task in ["os.system", "tasks.note", "tasks.fail", "tasks.note", "tasks.note"]:
        queue.add(task)
    result = queue.run_here(4)
    assert (result.taken, result.reason) == (4, Reason.MAX_TASKS)
    assert queue.rows("id, status, attempts") == [(1, 4, 0), (3, 4, 1), (5, 0, 0)]
    assert queue.notes() == ["noted"] * 2


def test_batch_is_the_most_that_is_claimed_at_once(sqlite_queue: Queue) -> None:
    for _ in range(5):
        sqlite_queue.add("tasks.note_claimed", f'["{sqlite_queue.path}"]')
    sqlite_queue.run_here(batch=2)
    # The finish of one task and the start of the next share a commit, so a finished one is never seen.
    notes = sqlite_queue.notes()
    assert len(notes) == 5
    assert set(notes) <= {"1", "2"}


def test_an_empty_queue_ends_a_run_at_once_and_quietly(queue: Queue) -> None:
    assert_silent(queue.worker(100, "3,5,6"))
    assert queue.reason() == "empty"


def test_verbose_says_on_standard_error_what_it_does(sqlite_queue: Queue) -> None:
    sqlite_queue.add("tasks.note")
    sqlite_queue.add("tasks.fail")
    ended = sqlite_queue.worker("--verbose")
    assert (ended.returncode, ended.stdout) == (0, "")
    assert "task 1 tasks.note is done" in ended.stderr
    assert "task 2 tasks.fail is fatal: ValueError: no luck" in ended.stderr
    assert "empty" in ended.stderr
    last = ended.stderr.partition("task 2 tasks.fail failed, attempt 1 of 1: ValueError: no luck\n")[2]
    assert last.startswith("    Traceback (most recent call last):\n")
    assert "\n    ValueError: no luck\n" in last


# ---- modes


@pytest.mark.parametrize("mode", ["delete", "move", "mark"])
def test_a_completed_task_goes_where_the_option_says_whatever_the_setting(queue: Queue, mode: str) -> None:
    queue.add("tasks.note", '{"text": "grün 🎉"}', 3, -7)
    queue.add("tasks.fail")
    ended = queue.worker("--mode", mode, TASKSERVER_MODE="move" if mode == "delete" else "delete")
    assert ended.returncode == 0
    assert queue.notes() == ["grün 🎉"]
    # What failed stays, whatever the mode.
    assert queue.sql("SELECT status, attempts FROM jobs_queue WHERE id = 2") == [(4, 1)]
    places = {"move": "jobs_queue_done", "mark": "jobs_queue"}
    for table in ("jobs_queue", "jobs_queue_done"):
        rows = queue.sql(
            "SELECT task, args, group_id, priority, status, attempts, max_attempts, due_at, claim, unique_key, "
            "error_text, created_at <= started_at, started_at <= finished_at, finished_at <= updated_at "
            f"FROM {table} WHERE id = 1"
        )
        completed = ("tasks.note", '{"text": "grün 🎉"}', 3, -7, 2, 1, 1, None, None, None, None, 1, 1, 1)
        assert rows == ([completed] if table == places.get(mode) else [])


# ---- exit codes


@pytest.mark.parametrize(("key", "value"), [("TASKSERVER_MODE", "keep"), ("TASKSERVER_LOG", "not/there/log")])
def test_with_a_wrong_setting_no_task_runs(sqlite_queue: Queue, key: str, value: str) -> None:
    sqlite_queue.add("tasks.note")
    assert_one_line(sqlite_queue.worker(**{key: value}), 2, "worker.py", key)
    assert sqlite_queue.statuses() == [0]


@pytest.mark.parametrize("arguments", [["worker.py"], ["client.py", "status"]])
def test_a_package_that_is_not_installed_is_one_line(deployment: Deployment, arguments: list[str]) -> None:
    bare_python = deployment.home / "python"
    bare_python.write_text(f'#!/bin/sh\nexec "{deployment.python}" -S "$@"\n')
    bare_python.chmod(0o700)
    deployment.python = str(bare_python)
    dsn = {"TASKSERVER_DSN": "mysql://someone@127.0.0.1/db"}
    assert_one_line(deployment.run(*arguments, env=dsn), 1, "PyMySQL", "pip install")
    deployment.write_env(**dsn)
    assert_one_line(deployment.run(*arguments), 2, "python-dotenv", "pip install")


# ---- what it says


def test_a_worker_prints_nothing_on_standard_output_even_if_tasks_print(sqlite_queue: Queue) -> None:
    sqlite_queue.define(
        "def say_in_bytes():\n"
        "    sys.stdout.write('half a line')\n"
        "    sys.stdout.flush()\n"
        "    print('lines', 'of text', sep='\\n')\n"
        "    print('no end', end='')\n"
        "    print('unencodable \\udcff')\n"
        "\ndef say_past_print():\n"
        "    sys.stdout.buffer.write(b'bytes')\n"
        "    import subprocess; subprocess.run(['echo', 'from a child'])\n"
    )
    for task in ("say", "say_in_bytes", "say_past_print"):
        sqlite_queue.add(f"tasks.{task}")
    assert_silent(sqlite_queue.worker())
    assert sqlite_queue.statuses() == []


@pytest.mark.parametrize(("fatal", "lines"), [(20, 20), (45, 21)])
def test_a_run_shows_twenty_fatal_tasks_and_counts_the_rest(sqlite_queue: Queue, fatal: int, lines: int) -> None:
    for number in range(fatal):
        sqlite_queue.add("tasks.fail" if number % 2 else "os.system")
    ended = sqlite_queue.worker()
    shown = ended.stderr.splitlines()
    assert (ended.returncode, len(shown)) == (0, lines)
    assert all("is fatal" in line for line in shown[:20])
    if fatal > 20:
        assert f" {fatal - 20} more" in shown[20]


def test_what_rows_and_tasks_say_reaches_standard_error_with_control_characters_escaped(queue: Queue) -> None:
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


# ---- the environment


TELLS_PASSWORD = """
import os, subprocess
from taskserver import TaskServer

def tell():
    started = subprocess.run(["env"], capture_output=True, text=True).stdout
    server = TaskServer.from_env()
    server.add_task("tasks.told", [started.count("hunter2"), str(os.environ).count("hunter2")])

def told(*counts):
    print(*counts)
"""


@pytest.mark.parametrize("program", ["worker", "client"])
def test_a_password_in_the_environment_reaches_no_program_that_a_task_starts(sqlite_queue: Queue, program: str) -> None:
    run = {
        "worker": lambda env: sqlite_queue.worker("1", **env),
        "client": lambda env: sqlite_queue.client("run", "1", env=env),
    }
    sqlite_queue.define(TELLS_PASSWORD)
    sqlite_queue.add("tasks.tell")
    env = {"TASKSERVER_PASSWORD": "hunter2", "TASKSERVER_DSN": sqlite_queue.dsn}
    ended = run[program](env)
    assert ended.returncode == 0, ended.stderr
    assert sqlite_queue.sql("SELECT task, args FROM jobs_queue") == [("tasks.told", "[0,0]")]


# ---- the log


@pytest.fixture
def log(sqlite_queue: Queue) -> Path:
    """Where TASKSERVER_LOG="var/worker.log" lies; a relative one begins in the deployment's folder."""
    path = sqlite_queue.folder / "var" / "worker.log"
    path.parent.mkdir(exist_ok=True)
    return path


def test_what_a_task_makes_is_not_for_others_to_write_whatever_cron_allows(sqlite_queue: Queue) -> None:
    sqlite_queue.add("tasks.note")
    umask = os.umask(0)
    try:
        sqlite_queue.worker()
    finally:
        os.umask(umask)
    assert (sqlite_queue.folder / "notes").stat().st_mode & 0o777 == 0o644


def test_the_log_is_private_and_has_what_tasks_print_and_the_traceback_of_what_they_raise(
    sqlite_queue: Queue, log: Path
) -> None:
    sqlite_queue.add("tasks.say", '["first\\nsecond \\u001b[2J"]')
    sqlite_queue.add("tasks.fail", '["with \\u001b[2J"]')
    umask = os.umask(0)
    try:
        ended = sqlite_queue.worker(TASKSERVER_LOG="var/worker.log")
    finally:
        os.umask(umask)
    assert (ended.returncode, ended.stdout) == (0, "")
    assert log.stat().st_mode & 0o777 == 0o600
    text = log.read_text()
    assert "printed: first\n" in text
    assert "printed: second \\x1b[2J\n" in text
    assert "Traceback" in text
    assert "        raise ValueError(message)\n" in text
    assert "\x1b" not in text
    assert "Traceback" not in ended.stderr


FORGED = "2026-01-31 12:00:00,000 1 INFO run ends, empty: forged"
LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} \d+ [A-Z]+ |    ")


def test_whatever_rows_and_tasks_say_makes_no_line_of_its_own_in_the_log(sqlite_queue: Queue, log: Path) -> None:
    sqlite_queue.add(f"tasks.x\n{FORGED}")
    sqlite_queue.add("tasks.fail", json.dumps([f"first\n{FORGED}"]))
    sqlite_queue.add("tasks.say", json.dumps([f"first\n{FORGED}"]))
    ended = sqlite_queue.worker("--verbose", TASKSERVER_LOG="var/worker.log")
    lines = log.read_text().splitlines()
    assert [line for line in lines if not LINE.match(line)] == []
    assert f"    {FORGED}" in lines  # of the traceback
    assert any(line.endswith(f"printed: {FORGED}") for line in lines)
    for text in (ended.stderr.splitlines(), lines):
        assert not [line for line in text if line.startswith(FORGED)]
        assert any(rf"tasks.x\n{FORGED}' is in none" in line or rf"tasks.x\n{FORGED} is fatal" in line for line in text)


SILENCERS = {
    "dictConfig": "logging.config.dictConfig({'version': 1})",
    "disable": "logging.disable()",
    "handlers": "OURS.handlers.clear(); OURS.setLevel(100); OURS.propagate = False; OURS.disabled = True",
    "filter": "OURS.addFilter(lambda record: 1 / 0); OURS.addHandler(logging.NullHandler())",
    "shutdown": "logging.shutdown()",
}


@pytest.mark.parametrize("silencer", SILENCERS)
def test_our_words_come_whatever_a_task_does_to_logging(sqlite_queue: Queue, log: Path, silencer: str) -> None:
    code = "\nimport logging.config\n\nOURS = logging.getLogger('taskserver')\n\ndef silence():\n    "
    sqlite_queue.define(code + SILENCERS[silencer] + "\n")
    for task in ("silence", "fail", "say"):
        sqlite_queue.add(f"tasks.{task}")
    ended = sqlite_queue.worker(TASKSERVER_LOG="var/worker.log")
    assert ended.stderr == "task 2 tasks.fail is fatal: ValueError: no luck\n"
    text = log.read_text()
    assert all(words in text for words in ("run begins", "task 2 tasks.fail is fatal", "printed: said", "run ends"))


def test_the_log_is_rotated_at_10_megabytes(sqlite_queue: Queue, log: Path) -> None:
    os.close(os.open(log, os.O_CREAT | os.O_WRONLY, 0o600))
    rotated = log.with_name("worker.log.1")
    for lines in (1_000_000, 1_111_112):
        assert not rotated.exists()
        log.write_bytes(b"old line\n" * lines)
        sqlite_queue.add("tasks.say")
        assert_silent(sqlite_queue.worker(TASKSERVER_LOG="var/worker.log"))
    assert rotated.read_bytes()[:9] == b"old line\n"
    assert "printed: said" in log.read_text()
    assert log.stat().st_size < 10_000
    assert {path.stat().st_mode & 0o777 for path in (log, rotated)} == {0o600}


def test_a_log_that_cannot_be_rotated_grows_and_says_so(sqlite_queue: Queue, log: Path) -> None:
    log.write_bytes(b"old line\n" * 1_111_112)
    log.chmod(0o600)
    log.with_name("worker.log.2").touch()
    log.with_name("worker.log.3").mkdir()  # where that one would go
    sqlite_queue.add("tasks.say")
    ended = sqlite_queue.worker(TASKSERVER_LOG="var/worker.log")
    assert_one_line(ended, 0, "worker.log cannot be rotated, and grows", "let this user write its folder")
    with log.open() as file:
        file.seek(10_000_000 - 1)
        text = file.read()
    assert all(words in text for words in ("run begins", "cannot be rotated", "printed: said", "run ends"))


def test_a_log_on_a_full_disk_ends_no_run_and_is_told_once(sqlite_queue: Queue, log: Path) -> None:
    log.symlink_to("/dev/full")
    sqlite_queue.add("tasks.say")
    sqlite_queue.add("tasks.note")
    ended = sqlite_queue.worker(TASKSERVER_LOG="var/worker.log")
    assert_one_line(ended, 0, "worker.log cannot be written", "No space left on device: make room")
    assert sqlite_queue.notes() == ["noted"]


def test_a_worker_whose_log_another_one_rotates_goes_on_in_the_new_file(sqlite_queue: Queue, log: Path) -> None:
    sqlite_queue.add("tasks.wait_for_go")
    sqlite_queue.add("tasks.say", '["after the rotation"]')
    process = sqlite_queue.start_task(TASKSERVER_LOG="var/worker.log")
    rotated = log.rename(log.with_name("worker.log.1"))
    sqlite_queue.go()
    assert end_of(process) == (0, "", "")
    assert "after the rotation" not in rotated.read_text()
    assert "printed: after the rotation" in log.read_text()
    assert log.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("mode", [0o777, 0o1777])
def test_a_log_in_a_folder_that_others_may_write_is_refused_and_no_link_there_followed(
    sqlite_queue: Queue, mode: int
) -> None:
    mine, shared = sqlite_queue.folder / "mine", sqlite_queue.folder / "shared"
    shared.mkdir()
    shared.chmod(mode)
    (shared / "worker.log").symlink_to(mine)
    sqlite_queue.add("tasks.say")
    name = "shared/worker.log"
    ended = sqlite_queue.worker(TASKSERVER_LOG=name)
    assert_one_line(ended, 2, "TASKSERVER_LOG: any account of this host may write", str(shared), "var/")
    assert_one_line(sqlite_queue.client("run", "1", env={"TASKSERVER_LOG": name}), 2, "TASKSERVER_LOG: any account")
    assert not mine.exists()
    assert sqlite_queue.statuses() == [0]


def test_a_log_that_others_may_read_is_mended_with_those_rotated_before(sqlite_queue: Queue, log: Path) -> None:
    logs = [log, log.with_name("worker.log.1"), log.with_name("worker.log.3")]
    for path in logs:
        path.write_text("old\n")
        path.chmod(0o644)
    log.with_name("worker.log.2").symlink_to(log.with_name("other"))
    log.with_name("other").touch(0o644)
    assert_silent(sqlite_queue.worker(TASKSERVER_LOG="var/worker.log"))
    assert {path.stat().st_mode & 0o777 for path in logs} == {0o600}
    assert log.with_name("other").stat().st_mode & 0o777 == 0o644
    assert log.read_text().startswith("old\n")


@needs_peak
@pytest.mark.parametrize("log_file", ["", "var/worker.log"])
def test_what_a_task_prints_without_ending_a_line_is_not_gathered_in_memory(
    sqlite_queue: Queue, log: Path, log_file: str
) -> None:
    code = "def print_on():\n    for _ in range(40):\n        print('.' * 1_000_000, end='')\n"
    sqlite_queue.define(code)
    sqlite_queue.add("tasks.print_on")
    ended = run_telling_peak(sqlite_queue.deployment, "worker.py", TASKSERVER_LOG=log_file)
    assert (ended.returncode, ended.stdout, sqlite_queue.statuses()) == (0, "", [])
    assert int(ended.stderr) < 60_000


# ---- a terminal


def test_a_terminal_has_a_summary(sqlite_queue: Queue) -> None:
    for _ in range(3):
        sqlite_queue.add("tasks.note")
    sqlite_queue.add("tasks.fail")
    code, screen = run_on_terminal(sqlite_queue.deployment, "worker.py")
    assert code == 0
    failure, summary = screen.splitlines()
    assert failure == "task 4 tasks.fail is fatal: ValueError: no luck"
    assert re.fullmatch(r"3 done, 1 fatal in \d+\.\d s; ended: empty", summary)


def test_on_a_terminal_tasks_print_to_it_and_one_that_closes_it_breaks_no_run(sqlite_queue: Queue) -> None:
    sqlite_queue.define("def close_stdout():\n    sys.stdout.close()\n")
    sqlite_queue.add("tasks.say", '["for a person"]')
    sqlite_queue.add("tasks.close_stdout")
    sqlite_queue.add("tasks.note")
    code, screen = run_on_terminal(sqlite_queue.deployment, "worker.py")
    assert (code, sqlite_queue.notes(), sqlite_queue.reason()) == (0, ["noted"], "empty")
    assert "for a person" in screen
    assert "Traceback" not in screen


# ---- signals


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_the_running_task_finish_and_gives_the_rest_back(queue: Queue, number: signal.Signals) -> None:
    queue.deployment.claim_at_once()
    queue.add("tasks.wait_for_go")
    for _ in range(4):
        queue.add("tasks.note")
    process = queue.start_task(100)
    assert queue.statuses() == [1] * 5
    process.send_signal(number)
    queue.go()
    assert end_of(process) == (0, "", "")
    assert queue.notes() == ["started", "finished"]
    assert set(queue.sql("SELECT status, attempts, claim, due_at, started_at, error_text FROM jobs_queue")) == {
        (0, 0, None, None, None, None)
    }
    assert len(queue.statuses()) == 4
    assert queue.sql("SELECT reason, taken, done, fatal, released FROM jobs_queue_workers") == [("stopped", 1, 1, 0, 4)]


def test_a_signal_ends_a_worker_that_waits_for_rows_which_others_hold(mysql_queue: Queue) -> None:
    mysql_queue.add("tasks.note")

    def updates() -> int:
        rows = mysql_queue.sql("SHOW GLOBAL STATUS WHERE Variable_name IN ('Com_update', 'Com_update_multi')")
        return sum(int(value) for _, value in rows)

    with mysql_queue.connect() as holder, holder.cursor() as cursor:
        cursor.execute("BEGIN")
        cursor.execute("SELECT * FROM jobs_queue FOR UPDATE")
        before = updates()
        process = mysql_queue.start()
        # It records its begin, and each claim that gets nothing is one more.
        wait_until(lambda: updates() > before + 4)
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert end_of(process) == (0, "", "")
    assert mysql_queue.rows("status, attempts") == [(0, 0)]
    assert mysql_queue.reason() == "stopped"


# ---- what tasks raise, and do to the process

RETURNED = """
import contextlib

def body():
    yield note("ran")

async def async_body():
    yield note("ran")

async def sleep_not():
    note("ran")

def entered():
    manager = contextlib.contextmanager(body)()
    manager.__enter__()
    return manager
"""
NEVER_RAN = {"coroutine": "sleep_not()", "generator": "body()", "async_generator": "async_body()"}
HAS_RUN = ["entered()", "open(__file__)"]


def test_a_task_that_returns_work_which_nobody_runs_is_not_done(sqlite_queue: Queue, whole_claims: None) -> None:
    returned = [*NEVER_RAN.values(), *HAS_RUN]
    code = RETURNED + "".join(f"\ndef task_{number}():\n    return {made}\n" for number, made in enumerate(returned))
    code += "\nfrom taskserver import task\n\n@task(batch=2)\ndef each(items):\n    return [body(), None]\n"
    sqlite_queue.define(code)
    for number in range(len(returned)):
        sqlite_queue.add(f"tasks.task_{number}")
    for _ in range(2):
        sqlite_queue.add("tasks.each")
    sqlite_queue.run_here()
    mend = "which nobody runs: call plain functions, or those of async def"
    assert sqlite_queue.first_lines() == [
        f"TypeError: it returned a value of type {name}, {mend}" for name in (*NEVER_RAN, "generator")
    ]
    assert sqlite_queue.notes() == ["ran"]  # by the one that has run


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
def test_what_a_task_does_to_the_process_breaks_no_run(make_queue: Callable[..., Queue], damages: list[str]) -> None:
    queue = make_queue("sqlite:///var/q.db")
    queue.define("import logging\n" + "".join(f"\ndef do_{n}():\n    {code}\n" for n, code in enumerate(damages)))
    after = ["tasks.say", "tasks.fail", "tasks.note"]
    for number in range(len(damages)):
        for task in (f"tasks.do_{number}", *after):
            queue.add(task)
    ended = queue.worker("--mode", "mark")
    assert (ended.returncode, ended.stdout) == (0, ""), ended.stderr
    assert "Traceback" not in ended.stderr
    assert queue.statuses() == [2, 2, 4, 2] * len(damages)
    assert queue.reason() == "empty"


# ---- the record of runs


def test_each_host_and_groups_have_one_row_that_tells_of_the_last_run(queue: Queue) -> None:
    queue.add("tasks.note", None, 3)
    queue.add("tasks.fail", None, 5)
    queue.add("os.system", None, 6)
    queue.add("tasks.note", None, 7)
    queue.run_here(2, [6, 3, 5])
    queue.run_here(0, [3, 5, 6])
    queue.run_here()
    rows = queue.sql(
        "SELECT host, group_ids, reason, taken, done, fatal, lost, released, started_at <= ended_at, pid > 0 "
        "FROM jobs_queue_workers ORDER BY group_ids"
    )
    host = socket.gethostname()
    assert rows == [
        (host, "3,5,6", "empty", 1, 0, 1, 0, 0, 1, 1),
        (host, "all", "empty", 1, 1, 0, 0, 0, 1, 1),
    ]


def test_instants_of_a_run_are_utc(queue: Queue) -> None:
    queue.add("tasks.note")
    queue.worker("--mode", "mark", TZ="Asia/Tokyo")
    instants = ["created_at", "started_at", "finished_at", "updated_at"]
    for table, columns in {"jobs_queue": instants, "jobs_queue_workers": ["started_at", "ended_at"]}.items():
        for column in columns:
            ((seconds,),) = queue.sql(f"SELECT {queue.seconds_between(column, queue.now)} FROM {table}")
            assert abs(seconds) < 60, column


# ---- how it is started


def test_the_worker_is_found_through_a_symlink_from_any_current_folder(sqlite_queue: Queue) -> None:
    sqlite_queue.add("tasks.note")
    link = sqlite_queue.deployment.home / "bin" / "run-tasks"
    link.parent.mkdir()
    link.symlink_to(sqlite_queue.folder / "worker.py")
    # What lies in the current folder is none of its business.
    for name, text in {".env": "TASKSERVER_MODE=nonsense\n", "tasks.py": "raise SystemExit\n"}.items():
        (sqlite_queue.deployment.home / name).write_text(text)
    assert_silent(sqlite_queue.deployment.run(str(link)))
    assert sqlite_queue.notes() == ["noted"]


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&- <&-"])
def test_a_worker_without_one_of_the_standard_streams_runs_all_the_same(sqlite_queue: Queue, closed: str) -> None:
    for task in ("say", "fail", "note"):
        sqlite_queue.add(f"tasks.{task}")
    command = ["/bin/sh", "-c", f'exec "$@" {closed}', "sh", sqlite_queue.deployment.python]
    ended = subprocess.run(
        [*command, str(sqlite_queue.folder / "worker.py")],
        cwd=sqlite_queue.deployment.home,
        env={"PATH": os.defpath},
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
    )
    assert "Traceback" not in ended.stderr
    assert (ended.returncode, ended.stdout) == (0, "")
    assert sqlite_queue.notes() == ["noted"]
    assert sqlite_queue.statuses() == [4]


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
