"""The word to whoever adds a task whose name the modules beside the program lack; the task is added all the same."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable

import pytest

from taskserver.cli.client import main
from taskserver.cli.terminal import misnamed
from tests.support.processes import assert_one_line, run_here
from tests.support.queues import Queue

TASKS = """
import os
from pathlib import Path
(Path(__file__).parent / "imported").write_text(str(os.getpid()))
print("noise")

def send_letter(to): ...
async def fetch(): ...
wait = lambda: None
def _hidden(): ...

class Mail:
    @staticmethod
    def send(to): ...
"""
RIGHT = ["tasks.send_letter", "tasks.fetch", "tasks.Mail.send", "tasks:Mail.send"]
WRONG = {
    "tasks.send_leter": "module tasks has no 'send_leter'; did you mean 'send_letter'? It was added all the same",
    "task.send_letter": "in none of the modules that may run: tasks (TASKSERVER_MODULES); did you mean",
    "tasks.Mail.sent": "class Mail has no method 'sent'",
    "tasks.wait": "a lambda",
    "tasks._hidden": "is private",
    "tasks.Mail": "is a class",
}

Add = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def client(sqlite_queue: Queue, capsys: pytest.CaptureFixture[str]) -> Add:
    """A command of client.py, inside this process, beside these tasks."""
    sqlite_queue.deployment.write_tasks(TASKS)
    return lambda *args: run_here(main, capsys, sqlite_queue.folder, *args)


def imported_by(queue: Queue) -> str | None:
    """The process that imported the tasks."""
    path = queue.folder / "imported"
    return path.read_text() if path.exists() else None


@pytest.mark.parametrize("name", WRONG)
def test_a_name_that_the_modules_lack_is_told_and_added(sqlite_queue: Queue, client: Add, name: str) -> None:
    ended = client("add", name)
    assert (ended.returncode, ended.stdout) == (0, "1\n")
    assert ended.stderr.startswith(f"client.py: warning: '{name}'")
    assert WRONG[name] in ended.stderr
    assert ended.stderr.count("\n") == 1
    assert sqlite_queue.sql("SELECT task, status FROM jobs_queue") == [(name, 0)]
    assert imported_by(sqlite_queue) != str(os.getpid())
    assert not (sqlite_queue.folder / "__pycache__").exists()


@pytest.mark.parametrize("name", RIGHT)
def test_a_name_that_stands_in_the_source_costs_no_import(sqlite_queue: Queue, client: Add, name: str) -> None:
    ended = client("add", name)
    assert (ended.stdout, ended.stderr) == ("1\n", "")
    assert imported_by(sqlite_queue) is None


def test_each_name_of_a_file_of_a_pipeline_and_of_a_schedule_is_told_once(sqlite_queue: Queue, client: Add) -> None:
    lines = sqlite_queue.folder / "lines"
    lines.write_text(
        "".join(f"{json.dumps({'task': f'tasks.{name}'})}\n" for name in ("a", "send_letter", "b", "a", "b"))
    )
    ended = client("add", "--bulk", lines)
    assert ended.stdout == "5 tasks added\n"
    assert [line.split(":")[2] for line in ended.stderr.splitlines()] == [" 'tasks.a'", " 'tasks.b'"]
    ended = client("add", "tasks.send_letter", "--then", "tasks.a", "--then", '{"task": "tasks.b", "group_id": 5}')
    assert [line.split(":")[2] for line in ended.stderr.splitlines()] == [" 'tasks.a'", " 'tasks.b'"]
    ended = client("schedule", "nightly", "tasks.a", "--every", "1d")
    assert ended.stdout.startswith("nightly: next at ")
    assert_one_line(subprocess.CompletedProcess([], 0, "", ended.stderr), 0, "'tasks.a'", "The schedule stands")
    assert client("schedule", "nightly", "tasks.send_letter", "--every", "1d").stderr == ""
    sqlite_queue.sql("UPDATE jobs_queue SET status = 4")
    assert "is it the right one?" in client("retry", 1, "--as", "tasks.c").stderr
    assert client("retry", 2, "--as", "tasks.send_letter").stderr == ""


@pytest.mark.parametrize("line", [("add",), ("schedule", "nightly")], ids=" ".join)
def test_names_are_told_of_modules_too_that_need_a_setup(
    sqlite_queue: Queue, client: Add, line: tuple[str, ...]
) -> None:
    sqlite_queue.deployment.write_tasks("import site_of_tests\n\nsite_of_tests.is_ready\ndef send_letter(): ...\n")
    setup = "def setup():\n    global is_ready\n    is_ready = True\n"
    sqlite_queue.deployment.write_tasks(setup, "site_of_tests.py")
    with open(sqlite_queue.folder / ".env", "a") as file:
        file.write("TASKSERVER_SETUP=site_of_tests:setup\n")
    every = () if line == ("add",) else ("--every", "1d")
    assert "module tasks has no 'send_leter'" in client(*line, "tasks.send_leter", *every).stderr


def test_a_group_that_no_recent_run_serves_is_told(sqlite_queue: Queue, client: Add) -> None:
    add = ("add", "tasks.send_letter", "--group")
    run = "INSERT INTO jobs_queue_workers (pid, host, group_ids, started_at) VALUES (1, 'h', '{}', {})"
    sqlite_queue.sql(run.format("0", "'2020-01-01 00:00:00.000000'"))
    assert client(*add, "7").stderr == ""  # cron has stopped, whatever the groups are
    sqlite_queue.sql(run.format("3,5", "strftime('%Y-%m-%d %H:%M:%f000', 'now')"))
    assert client(*add, "3").stderr == ""
    warning = (
        "client.py: warning: no worker takes tasks of {}: they serve 3, 5; have a crontab line name it, or no groups"
    )
    warning += "\n"
    assert client(*add, "7").stderr == warning.format("group 7")
    stage = '{"task": "tasks.fetch", "group_id": 8}'
    assert client(*add, "7", "--then", stage).stderr == warning.format("groups 7, 8")
    assert client("schedule", "nightly", "tasks.send_letter", "--every", "1d").stderr == warning.format("group 0")


def test_names_by_the_thousand_make_a_few_lines(sqlite_queue: Queue, client: Add) -> None:
    lines = sqlite_queue.folder / "lines"
    lines.write_text("".join(f'{{"task": "tasks.made_up_{number}"}}\n' for number in range(3000)))
    *told, last = client("add", "--bulk", lines).stderr.splitlines()
    assert len(told) == misnamed.MAX_SHOWN
    assert last.startswith("client.py: warning: and 95 more names")


@pytest.mark.parametrize(
    "source",
    {
        "none": None,
        "broken": "def send_letter(:",
        "of another host": "import a_package_of_another_host",
        "that ends": "import os; os._exit(0)",
        "that hangs": "import time; time.sleep(600)",
    }.items(),
    ids=lambda source: source[0],
)
def test_where_names_cannot_be_told_nothing_is_said(
    sqlite_queue: Queue, client: Add, monkeypatch: pytest.MonkeyPatch, source: tuple[str, str | None]
) -> None:
    monkeypatch.setattr(misnamed, "MAX_SECONDS", 1.0)
    if source[1] is None:
        (sqlite_queue.folder / "tasks.py").unlink()
    else:
        sqlite_queue.deployment.write_tasks(source[1])
    ended = client("add", "tasks.send_leter")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "1\n", "")


def test_a_host_that_lets_no_process_be_started_says_nothing(client: Add, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **more: object) -> None:
        raise OSError("Resource temporarily unavailable")

    monkeypatch.setattr("subprocess.run", refuse)
    ended = client("add", "tasks.send_leter")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "1\n", "")


def test_a_package_is_looked_into_as_a_worker_does(
    sqlite_queue: Queue, client: Add, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TASKSERVER_MODULES", "shop.jobs.*")
    sqlite_queue.deployment.write_tasks("def send(to): ...\n", "shop/jobs/mail.py")
    with monkeypatch.context() as patch:
        patch.setattr("subprocess.run", None)  # no process is needed
        assert client("add", "shop.jobs.mail.send").stderr == ""
    assert "did you mean 'send'?" in client("add", "shop.jobs.mail.sent").stderr
    sqlite_queue.deployment.write_tasks("def send(to): ...\n", "shop/jobs_of_others.py")
    said = client("add", "shop.jobs_of_others.send").stderr
    assert "in none of the modules that may run" in said
    assert said.endswith(f". {misnamed.UNLISTED}\n")
    monkeypatch.setenv("TASKSERVER_MODULES", "shop.job")
    said = client("add", "shop.jobs.mail.send").stderr
    assert f"; did you mean 'shop.job.send'? {misnamed.UNLISTED}\n" in said
