"""client.py as a process: pipes, Ctrl-C, several at once, and what is imported from where."""

from __future__ import annotations

import os
import signal
import subprocess

import pytest

from tests.support.printed import Report, made_healthy
from tests.support.processes import (
    WAIT_SECONDS,
    assert_silent,
    end_of,
    wait_until,
)
from tests.support.queues import LONG_AGO, Queue


def shell(queue: Queue, line: str) -> subprocess.CompletedProcess[str]:
    """A line of a shell, in which "$@" is client.py."""
    return subprocess.run(
        ["/bin/sh", "-c", line, "sh", queue.deployment.python, str(queue.folder / "client.py")],
        cwd=queue.deployment.home,
        env={"PATH": os.defpath},
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
    )


def test_bulk_reads_standard_input(queue: Queue) -> None:
    line = '{"task": "tasks.note", "args": ["first"], "group_id": 3, "priority": -7}\n'
    assert queue.client("add", "--bulk", "-", stdin=line * 2).stdout == "2 tasks added\n"
    assert queue.rows("task, args, group_id, priority") == [("tasks.note", '["first"]', 3, -7)] * 2


def test_ctrl_c_during_bulk_adds_nothing(queue: Queue) -> None:
    process = queue.deployment.popen("client.py", "add", "--bulk", "-")
    assert process.stdin is not None
    process.stdin.write('{"task": "tasks.note"}\n' * 10_000)  # more than a pipe holds: the program reads
    process.stdin.flush()
    process.send_signal(signal.SIGINT)
    code, output, errors = end_of(process)
    assert (code, output, "Traceback" in errors) == (130, "", False)
    assert queue.rows() == []


def test_a_narrow_encoding_of_standard_output_is_survived(queue: Queue) -> None:
    queue.add("tasks.🎉")
    ended = queue.client("list", env={"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"})
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "tasks.\\U0001f389" in ended.stdout


def test_a_reader_that_goes_away_is_no_traceback(queue: Queue) -> None:
    queue.add_many([(0, 0)] * 500)
    for command in ("list --limit 1000", "--help"):
        assert shell(queue, f'"$@" {command} | :').stderr == "", command


def test_a_letter_that_nobody_could_read_is_written_again(queue: Queue) -> None:
    queue.add_many([(3, 4)])
    assert shell(queue, '"$@" check --mail >/dev/full').returncode == 3
    assert "1 fatal" in queue.here("check", "--mail").stdout
    assert queue.here("check", "--mail").stdout == ""


WAITING = """
import os, sys, time
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
from taskserver.stores.queue.notes import Notes

find = Notes.find

def find_and_wait(self, name):
    note = find(self, name)
    (HERE / f"read-{os.getpid()}").touch()
    while not (HERE / "go").exists():
        time.sleep(0.01)
    return note

Notes.find = find_and_wait
"""


@pytest.mark.parametrize("is_known", [False, True])
def test_of_checks_at_once_one_mails(queue: Queue, is_known: bool) -> None:
    """Several hosts, or a slow one that cron starts again: all have read the same note before one writes it."""
    queue.run_quietly()
    (queue.folder / "var").mkdir(mode=0o700)
    if is_known:
        queue.sql(f"INSERT INTO jobs_queue (task, status, due_at, claim) VALUES ('tasks.note', 1, '{LONG_AGO}', 5)")
        assert queue.here("check", "--mail").stdout
    queue.add_many([(3, 4)])
    queue.deployment.write_tasks(WAITING, "sitecustomize.py")
    env = {"PYTHONPATH": str(queue.folder)}
    several = [queue.deployment.popen("client.py", "check", "--mail", env=env) for _ in range(3)]
    wait_until(lambda: len(list(queue.folder.glob("read-*"))) == 3)
    assert all(one.poll() is None for one in several)
    queue.go()
    ends = [end_of(one) for one in several]
    assert [(code, errors) for code, _, errors in ends] == [(0, "")] * 3
    assert len([said for _, said, _ in ends if said]) == 1


def test_no_code_comes_from_the_folder_in_which_a_person_stands(queue: Queue) -> None:
    made_healthy(queue)
    home = queue.deployment.home
    for name in ("json", "os", "random", "socket", "subprocess", "taskserver", "pymysql", "tasks", "sitecustomize"):
        (home / f"{name}.py").write_text(f"open({str(home / 'ran')!r}, 'a').write('{name} ')\n")
    assert Report(queue, by_process=True).worse() == {}
    assert_silent(queue.worker())
    assert not (home / "ran").exists(), (home / "ran").read_text()
