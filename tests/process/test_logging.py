"""The log: what tasks log and print goes there, with their ids, whatever they do to `logging`; its file, and none."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import assert_one_line, assert_silent
from tests.support.queues import Queue

SETTINGS = {"TASKSERVER_BACKOFF": "fixed:100", "TASKSERVER_LOG": "worker.log"}
TASKS = """
import asyncio
import logging
import logging.config
import threading
import time

from taskserver import Retry, task

def say(text="said"):
    print(text)

def half():
    print("half", end="")

def dots():
    for _ in range(3):
        print("." * 60_000, end="")

def fail(message="no luck"):
    raise ValueError(message)

def log(level="info", message="connected", name="shop.mail"):
    logging.getLogger(name).log(getattr(logging, level.upper()), message)

def wrong():
    logging.getLogger("shop").warning("%d of %d", 1)

def in_a_thread():
    thread = threading.Thread(target=log)
    thread.start()
    thread.join()

def in_an_event_loop():
    asyncio.run(asyncio.wait_for(asyncio.to_thread(print, "x"), 9))

def chained():
    try:
        fail('inner')
    except ValueError as error:
        raise KeyError('outer') from error

@task(timeout=0.2)
def long():
    time.sleep(60)

def later():
    raise Retry('not yet', delay=60)

def endless():
    raise ValueError('begins' + '\\x1b' * 5_000_000 + 'ends')
"""


@pytest.fixture
def log(queue: Queue) -> Path:
    return queue.folder / "worker.log"


def log_of(queue: Queue) -> list[str]:
    """The lines of the log, without their dates and process ids."""
    lines = (queue.folder / "worker.log").read_text().splitlines()
    return [re.sub(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} \d+ ", "", line) for line in lines]


def said_of(queue: Queue) -> list[str]:
    """Of these, those that tasks printed or logged."""
    return [line for line in log_of(queue) if re.match(r"[A-Z]+ task \d+ \S+.*, attempt \d+, \S+: ", line)]


def run(queue: Queue, **env: str) -> str:
    """What a run wrote on standard error."""
    ended = queue.worker(**env)
    assert (ended.returncode, ended.stdout) == (0, "")
    return ended.stderr


# ---- what tasks log


def test_what_a_task_logs_and_prints_goes_to_the_log_with_its_id_name_and_attempt(queue: Queue) -> None:
    queue.add("tasks.log")
    queue.add("tasks.log", '["error", "first\\nsecond"]')
    queue.sql("UPDATE jobs_queue SET attempts = 2 WHERE id = 2")
    for task in ("half", "say", "wrong", "in_a_thread", "in_an_event_loop", "dots"):
        queue.add(f"tasks.{task}")
    assert run(queue) == ""
    *lines, first_dots, more_dots = said_of(queue)
    assert first_dots.startswith("INFO task 8 tasks.dots, attempt 1, printed: ...")
    assert len(first_dots) < 13_000
    assert more_dots.startswith("INFO task 8")
    assert lines == [
        "INFO task 1 tasks.log, attempt 1, shop.mail: connected",
        "ERROR task 2 tasks.log, attempt 3, shop.mail: first",
        "INFO task 3 tasks.half, attempt 1, printed: half",
        "INFO task 4 tasks.say, attempt 1, printed: said",
        "WARNING task 5 tasks.wrong, attempt 1, shop: '%d of %d' (TypeError while it was formatted)",
        "INFO task 6 tasks.in_a_thread, attempt 1, shop.mail: connected",
        "INFO task 7 tasks.in_an_event_loop, attempt 1, printed: x",
    ]
    assert "    second" in log_of(queue)


def test_the_log_has_what_is_at_least_of_its_level(queue: Queue) -> None:
    for one in ("debug", "info", "warning", "error"):
        queue.add("tasks.log", json.dumps([one]))
    queue.add("tasks.say")
    assert run(queue, TASKSERVER_LOG_LEVEL="warning") == ""
    assert [line.partition(" ")[0] for line in log_of(queue)] == ["WARNING", "ERROR"]


# ---- what modules do to `logging`

FILE_OF_ITS_OWN = "{'h': {'class': 'logging.FileHandler', 'filename': str(HERE / 'theirs')}}"
SET_UPS = {
    "basicConfig": ("logging.basicConfig(filename=HERE / 'theirs', force=True)", "WARNING:shop.mail:w\n"),
    "dictConfig": (
        f"logging.config.dictConfig({{'version': 1, 'handlers': {FILE_OF_ITS_OWN}, "
        "'root': {'handlers': ['h'], 'level': 'INFO'}})",
        "i\nw\n",
    ),
    "dictConfig of a logger that does not propagate": (
        f"logging.config.dictConfig({{'version': 1, 'handlers': {FILE_OF_ITS_OWN}, "
        "'loggers': {'shop': {'handlers': ['h'], 'propagate': False}}})",
        "w\n",
    ),
}


@pytest.mark.parametrize(("code", "theirs"), SET_UPS.values(), ids=SET_UPS)
def test_a_module_that_sets_up_logging_has_its_own_and_the_log_has_each_record_once(
    queue: Queue, code: str, theirs: str
) -> None:
    queue.define(f"\n{code}\n")
    queue.add("tasks.log", '["info", "i"]')
    queue.add("tasks.log", '["warning", "w"]')
    assert run(queue) == ""
    assert said_of(queue) == [
        "INFO task 1 tasks.log, attempt 1, shop.mail: i",
        "WARNING task 2 tasks.log, attempt 1, shop.mail: w",
    ]
    assert (queue.folder / "theirs").read_text() == theirs


def test_a_level_that_a_module_sets_is_that_of_the_log_for_tasks_and_not_for_our_words(queue: Queue) -> None:
    queue.define("\nlogging.basicConfig(level='WARNING')\n")
    queue.add("tasks.log", '["info", "i"]')
    queue.add("tasks.log", '["warning", "w"]')
    run(queue)
    assert [line.partition("shop.mail: ")[2] for line in said_of(queue)] == ["w"]
    assert any("task 2 tasks.log is done" in line for line in log_of(queue))


# ---- without a log


def test_without_a_log_the_warnings_of_tasks_are_twenty_lines_of_standard_error(queue: Queue) -> None:
    queue.define(
        "def warn():\n    for n in range(25):\n        logging.warning('number %d\\nmore', n)\n    logging.info('x')\n"
    )
    queue.deployment.write_env(TASKSERVER_DSN=queue.dsn)
    queue.add("tasks.warn")
    first, *others, last = run(queue).splitlines()
    assert first == "task 1 tasks.warn, attempt 1, root: number 0"
    assert last == "and 5 more warnings of tasks: set TASKSERVER_LOG to log them all to a file"
    assert len(others) == 19


def test_a_person_at_the_shell_sees_what_tasks_log(queue: Queue) -> None:
    queue.deployment.write_env(TASKSERVER_DSN=queue.dsn)
    for number, command in ((1, ["worker.py", "--verbose"]), (2, ["client.py", "run", "2"])):
        queue.add("tasks.log")
        said = queue.deployment.run(*command).stderr
        assert f"task {number} tasks.log, attempt 1, shop.mail: connected\n" in said


# ---- failures


def test_a_failed_attempt_is_one_record_with_its_traceback_and_no_frame_of_ours(queue: Queue) -> None:
    (queue.folder / "broken.py").write_text("1 / 0\n")
    for task in ("tasks.chained", "tasks.long", "broken.task", "tasks.later", "os.system", "tasks.endless"):
        queue.add(task)
    queue.add("tasks.lost")
    lost = "status = 1, attempts = 1, claim = 1, started_at = created_at, due_at = created_at"
    queue.sql(f"UPDATE jobs_queue SET {lost} WHERE id = 7")
    assert [line.partition(":")[0] for line in run(queue, TASKSERVER_MODULES="tasks,broken").splitlines()] == [
        "module broken cannot be imported",
        "task 5 os.system is fatal",
    ]
    lines = log_of(queue)
    at = lines.index("ERROR task 1 tasks.chained failed, attempt 1 of 10: KeyError: 'outer'")
    assert lines[at + 1] == "    Traceback (most recent call last):"
    assert lines[at + 2].startswith(f'      File "{queue.folder}/tasks.py", line ')
    assert "    ValueError: inner" in lines
    assert any(line.startswith("INFO task 1 tasks.chained will be retried in 1") for line in lines)
    assert "    taskserver.interrupts.stop.TaskInterrupted: it ran for longer than its timeout of 0.2 s" in lines
    assert "    ZeroDivisionError: division by zero" in lines
    assert "INFO task 4 tasks.later failed, attempt 1 of 10: Retry: not yet" in lines
    assert not [line for line in lines if f"{queue.folder}/taskserver/" in line]
    assert any(line.startswith("ERROR task 7 tasks.lost failed, and will be retried: lost") for line in lines)
    assert sum(map(len, lines)) < 10**6


def test_as_json_each_line_of_the_log_is_an_object(queue: Queue, log: Path) -> None:
    queue.add("tasks.say", '["a \\u001b[2J"]')
    queue.add("tasks.log", '["warning", "x\\ny"]')
    queue.add("tasks.fail", '["\\ud800"]')
    queue.add("os.system")
    assert run(queue, TASKSERVER_LOG_FORMAT="json").startswith("task 4 os.system is fatal: BadTask")
    found: list[dict[str, Any]] = [json.loads(line) for line in log.read_text().splitlines()]
    begin, *_, end = found
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", begin.pop("time"))
    pid = begin.pop("pid")
    assert begin == {"level": "info", "logger": "taskserver", "message": "run begins: groups all"}
    assert end["message"].startswith("run ends")
    of_task = {number: [one for one in found if one.get("task_id") == number] for number in (1, 2, 3, 4)}
    printed, logged = of_task[1][0], of_task[2][0]
    names = ("logger", "message", "task", "attempt")
    assert [printed[name] for name in names] == ["printed", "a \x1b[2J", "tasks.say", 1]
    assert (logged["logger"], logged["level"], logged["message"]) == ("shop.mail", "warning", "x\ny")
    failed, retried = of_task[3]
    assert (failed["level"], failed["attempt"], failed["pid"]) == ("error", 1, pid)
    assert failed["error"].startswith("ValueError: ")
    assert failed["traceback"].startswith("Traceback (most recent call last):\n")
    assert retried["message"].startswith("task 3 tasks.fail will be retried in ")
    (bad,) = of_task[4]
    assert (bad["level"], bad["is_fatal"], bad["attempt"], "traceback" in bad) == ("error", True, 0, False)


# ---- its file

FAKE = "2026-01-31 12:00:00,000 1 INFO run ends, empty: fake"
LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} \d+ [A-Z]+ |    ")


def test_whatever_rows_and_tasks_say_makes_no_line_of_its_own_in_the_log(queue: Queue, log: Path) -> None:
    queue.add(f"tasks.x\n{FAKE}")
    queue.add("tasks.fail", json.dumps([f"first\n{FAKE}"]))
    queue.add("tasks.say", json.dumps([f"first \x1b[2J\n{FAKE}"]))
    ended = queue.worker("--verbose")
    lines = log.read_text().splitlines()
    assert [line for line in lines if not LINE.match(line)] == []
    assert f"    {FAKE}" in lines  # of the traceback
    assert any(line.endswith(f"printed: {FAKE}") for line in lines)
    assert any(line.endswith("printed: first \\x1b[2J") for line in lines)
    for text in (ended.stderr.splitlines(), lines):
        assert not [line for line in text if line.startswith(FAKE)]
        assert any(rf"tasks.x\n{FAKE}" in line for line in text)


def test_the_log_is_rotated_at_10_megabytes_and_only_its_owner_may_read_it(queue: Queue, log: Path) -> None:
    rotated = log.with_name("worker.log.1")
    log.touch()
    log.chmod(0o644)  # fixed by the first run
    for lines in (1_000_000, 1_111_112):
        assert not rotated.exists()
        log.write_bytes(b"old line\n" * lines)
        queue.add("tasks.say")
        umask = os.umask(0)
        try:
            assert_silent(queue.worker())
        finally:
            os.umask(umask)
        assert log.stat().st_mode & 0o777 == 0o600
    assert rotated.read_bytes()[:9] == b"old line\n"
    assert "printed: said" in log.read_text()
    assert log.stat().st_size < 10_000
    assert rotated.stat().st_mode & 0o777 == 0o600


def test_a_log_on_a_full_disk_ends_no_run_and_is_reported_once(queue: Queue, log: Path) -> None:
    log.symlink_to("/dev/full")
    for task in ("say", "note"):
        queue.add(f"tasks.{task}")
    assert_one_line(queue.worker(), 0, "worker.log cannot be written", "No space left on device: make room")
    assert queue.notes() == ["noted"]


def test_a_log_in_a_folder_that_others_may_write_is_refused_and_no_link_there_followed(queue: Queue) -> None:
    mine, shared = queue.folder / "mine", queue.folder / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    (shared / "worker.log").symlink_to(mine)
    queue.add("tasks.say")
    words = "TASKSERVER_LOG: any account of this host may write"
    assert_one_line(queue.worker(TASKSERVER_LOG="shared/worker.log"), 2, words, str(shared), "var/")
    assert not mine.exists()
    assert queue.statuses() == [0]
