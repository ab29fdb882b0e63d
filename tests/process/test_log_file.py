"""The file of TASKSERVER_LOG: private, rotated, shared, and what happens where it cannot be written."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from tests.support.processes import assert_one_line, assert_silent
from tests.support.queues import Queue

SETTINGS = {"TASKSERVER_MAX_ATTEMPTS": "1", "TASKSERVER_LOG": "var/worker.log"}
TASKS = """
import time

def fail(message="no luck"):
    raise ValueError(message)

def say(text="said"):
    print(text)

def hold():
    note("started")
    while not (HERE / "go").exists():
        time.sleep(0.01)
"""


@pytest.fixture
def log(queue: Queue) -> Path:
    """Where it lies; a relative name begins in the deployment's folder."""
    path = queue.folder / "var" / "worker.log"
    path.parent.mkdir(exist_ok=True)
    return path


def test_the_log_is_private_and_has_what_tasks_print_and_the_traceback_of_what_they_raise(
    queue: Queue, log: Path
) -> None:
    queue.add("tasks.say", '["first\\nsecond \\u001b[2J"]')
    queue.add("tasks.fail", '["with \\u001b[2J"]')
    umask = os.umask(0)
    try:
        ended = queue.worker()
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


FAKE = "2026-01-31 12:00:00,000 1 INFO run ends, empty: fake"
LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} \d+ [A-Z]+ |    ")


def test_whatever_rows_and_tasks_say_makes_no_line_of_its_own_in_the_log(queue: Queue, log: Path) -> None:
    queue.add(f"tasks.x\n{FAKE}")
    queue.add("tasks.fail", json.dumps([f"first\n{FAKE}"]))
    queue.add("tasks.say", json.dumps([f"first\n{FAKE}"]))
    ended = queue.worker("--verbose")
    lines = log.read_text().splitlines()
    assert [line for line in lines if not LINE.match(line)] == []
    assert f"    {FAKE}" in lines  # of the traceback
    assert any(line.endswith(f"printed: {FAKE}") for line in lines)
    for text in (ended.stderr.splitlines(), lines):
        assert not [line for line in text if line.startswith(FAKE)]
        assert any(rf"tasks.x\n{FAKE}' is in none" in line or rf"tasks.x\n{FAKE} is fatal" in line for line in text)


def test_the_log_is_rotated_at_10_megabytes(queue: Queue, log: Path) -> None:
    rotated = log.with_name("worker.log.1")
    log.touch(0o600)
    for lines in (1_000_000, 1_111_112):
        assert not rotated.exists()
        log.write_bytes(b"old line\n" * lines)
        queue.add("tasks.say")
        assert_silent(queue.worker())
    assert rotated.read_bytes()[:9] == b"old line\n"
    assert "printed: said" in log.read_text()
    assert log.stat().st_size < 10_000
    assert {path.stat().st_mode & 0o777 for path in (log, rotated)} == {0o600}


def test_a_log_that_cannot_be_rotated_grows_and_says_so(queue: Queue, log: Path) -> None:
    log.write_bytes(b"old line\n" * 1_111_112)
    log.chmod(0o600)
    log.with_name("worker.log.2").touch()
    log.with_name("worker.log.3").mkdir()  # where that one would go
    queue.add("tasks.say")
    assert_one_line(queue.worker(), 0, "worker.log cannot be rotated, and grows", "let this user write its folder")
    with log.open() as file:
        file.seek(10_000_000 - 1)
        text = file.read()
    assert all(words in text for words in ("run begins", "cannot be rotated", "printed: said", "run ends"))


def test_a_log_on_a_full_disk_ends_no_run_and_is_reported_once(queue: Queue, log: Path) -> None:
    log.symlink_to("/dev/full")
    queue.add("tasks.say")
    queue.add("tasks.note")
    assert_one_line(queue.worker(), 0, "worker.log cannot be written", "No space left on device: make room")
    assert queue.notes() == ["noted"]


@pytest.mark.parametrize("mode", [0o777, 0o1777])
def test_a_log_in_a_folder_that_others_may_write_is_refused_and_no_link_there_followed(queue: Queue, mode: int) -> None:
    mine, shared = queue.folder / "mine", queue.folder / "shared"
    shared.mkdir()
    shared.chmod(mode)
    (shared / "worker.log").symlink_to(mine)
    queue.add("tasks.say")
    log = {"TASKSERVER_LOG": "shared/worker.log"}
    words = "TASKSERVER_LOG: any account of this host may write"
    assert_one_line(queue.worker(**log), 2, words, str(shared), "var/")
    assert_one_line(queue.client("run", "1", env=log), 2, words)
    assert not mine.exists()
    assert queue.statuses() == [0]


def test_a_log_that_others_may_read_is_fixed_with_those_rotated_before(queue: Queue, log: Path) -> None:
    logs = [log, log.with_name("worker.log.1"), log.with_name("worker.log.3")]
    for path in logs:
        path.write_text("old\n")
        path.chmod(0o644)
    log.with_name("worker.log.2").symlink_to(log.with_name("other"))
    log.with_name("other").touch(0o644)
    assert_silent(queue.worker())
    assert {path.stat().st_mode & 0o777 for path in logs} == {0o600}
    assert log.with_name("other").stat().st_mode & 0o777 == 0o644
    assert log.read_text().startswith("old\n")
