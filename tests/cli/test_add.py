"""client.py add; its rows are read back by plain SQL."""

from __future__ import annotations

import json
import shlex
from subprocess import CompletedProcess
from typing import Any

import pytest

from taskserver.cli.terminal.warnings import MAX_WARNINGS
from tests.support.printed import text_of
from tests.support.processes import Run, assert_one_line
from tests.support.queues import Queue


def rows_of(queue: Queue) -> list[tuple[Any, ...]]:
    return queue.rows("task, args, group_id, priority")


def add(queue: Queue, *args: object) -> str:
    """What `client.py add` prints."""
    return text_of(queue, "add", *args)


def bulk(queue: Queue, text: str) -> CompletedProcess[str]:
    """`client.py add --bulk` of a file with this text."""
    path = queue.deployment.home / "tasks.jsonl"
    path.write_text(text, encoding="utf-8", newline="")
    return queue.here("add", "--bulk", path)


def parents_of(queue: Queue) -> list[tuple[int, int]]:
    return sorted(queue.sql("SELECT parent_id, child_id FROM jobs_queue_dependencies"))


# ---- one task


def test_add_prints_the_id_of_the_task_and_nothing_else(queue: Queue) -> None:
    for task_id in (1, 2):
        args = ("tasks.note", '{"text": "grün 🎉"}', "--group", 3, "--priority", -7)
        assert add(queue, *args) == f"{task_id}\n"
    assert rows_of(queue) == [("tasks.note", r'{"text":"gr\u00fcn \ud83c\udf89"}', 3, -7)] * 2


def test_add_takes_delay_time_attempts_and_key(queue: Queue) -> None:
    queue.define("raise SystemExit\n")  # it needs no tasks file
    assert add(queue, "tasks.note", "--delay", "3600.5") == "1\n"
    assert add(queue, "tasks:Letter.send", "--at", "2037-01-31T12:00:00+01:00") == "2\n"
    assert add(queue, "tasks.note", "--max-attempts", 1, "--unique", "ä ") == "3\n"
    columns = "status, max_attempts, unique_key"
    key = "ä ".encode() if queue.kind == "mysql" else "ä "
    assert queue.rows(columns) == [(5, None, None), (5, None, None), (0, 1, key)]
    assert "2037-01-31 11:00:00" in str(queue.rows("due_at")[1][0])


def test_add_of_an_existing_key_prints_its_id_and_rerun_changes_it(queue: Queue) -> None:
    def add_one(text: str, *options: object) -> str:
        return add(queue, "tasks.note", json.dumps([text]), "--unique", "one", *options)

    assert add_one("first") == add_one("second") == "1\n"
    assert queue.rows("args") == [('["first"]',)]
    for text, version in (("third", 8), ("fourth", 8), ("fifth", 0)):
        assert add_one(text, "--rerun", "--version", version) == "1\n"
    assert queue.rows("args, version") == [('["third"]', 8)]
    queue.sql("UPDATE jobs_queue SET status = 2")
    ended = queue.here("add", "tasks.note", "--unique", "one")
    assert (ended.returncode, ended.stdout) == (0, "1\n")
    assert ended.stderr == "client.py: warning: task 1 is done and holds this key, so nothing runs; see --rerun\n"
    assert queue.here("add", "tasks.note", "--unique", "one", "--rerun").stderr == ""


def test_add_takes_later_stages(queue: Queue) -> None:
    second = '{"task": "tasks.note", "group_id": 5, "max_attempts": 2}'
    assert add(queue, "tasks.note", '["x"]', "--then", second, "--then", "tasks.note", "--priority", -1) == "1\n"
    assert rows_of(queue) == [("tasks.note", '["x"]', 0, -1)]
    ((stages,),) = queue.rows("stages")
    found = [(stage["group_id"], stage["priority"], stage.get("max_attempts")) for stage in json.loads(stages)]
    assert found == [(0, -1, None), (5, -1, 2), (0, -1, None)]


def test_add_takes_parents_and_refuses_missing_ones(queue: Queue) -> None:
    for _ in range(3):
        add(queue, "tasks.note")
    assert add(queue, "tasks.note", "--depends-on", "1,3", "--depends-on", 2, "--then", "tasks.note") == "4\n"
    assert parents_of(queue) == [(1, 4), (2, 4), (3, 4)]
    assert queue.statuses() == [0, 0, 0, 5]
    ended = queue.here("add", "tasks.note", "--depends-on", f"1,{10**6}")
    assert_one_line(ended, 2, f"depends_on names {10**6}, and this task would be ", "nothing was added")
    assert (len(queue.rows()), len(parents_of(queue))) == (4, 3)


# ---- --bulk


def test_bulk_adds_the_lines_of_a_file_in_their_order_or_none_of_them(queue: Queue) -> None:
    first = '{"task": "tasks.note", "args": ["first"], "group_id": 3, "priority": -7}\n'
    lines = ["\ufeff" + first, "  \t\r\n", '{"args": {"text": "grün 🎉 \\u00e4"}, "task": "tasks.note"}']
    assert_one_line(bulk(queue, first * 3000 + "oops\n"), 2, "line 3001: ", "nothing was added")
    assert (bulk(queue, "\n\n \n").stdout, rows_of(queue)) == ("0 tasks added\n", [])
    assert bulk(queue, "".join(lines)).stdout == "2 tasks added\n"
    assert rows_of(queue) == [
        ("tasks.note", '["first"]', 3, -7),
        ("tasks.note", r'{"text":"gr\u00fcn \ud83c\udf89 \u00e4"}', 0, 0),
    ]


def test_bulk_takes_lines_of_all_kinds(queue: Queue) -> None:
    note = {"task": "tasks.note"}
    lines = [
        {**note, "args": [1]},
        {**note, "args": [2], "at": "2037-01-31T12:00:00+01:00", "max_attempts": 2},
        *({**note, "args": [number], "unique_key": "one"} for number in (3, 4)),
        {**note, "args": [5], "unique_key": "two", "rerun": True},
        {**note, "args": [6], "unique_key": "two", "rerun": True, "version": 3},
        {"stages": ["tasks.note", {**note, "priority": 3}], "args": [7], "group_id": 4},
        {"stages": ["tasks.note"], "args": [8], "task": None, "depends_on": [1, 1], "delay": 60},
    ]
    text = "\n".join(map(json.dumps, lines))
    said = bulk(queue, text)
    assert (said.stdout, said.stderr) == ("8 tasks added, or there already: 4 have a unique_key\n", "")
    found = {json.loads(args)[0]: rest for args, *rest in queue.rows("args, status, max_attempts, version")}
    new = [0, None, None]
    assert found == {1: new, 3: new, 7: new, 2: [5, 2, None], 6: [0, None, 3], 8: [5, None, None]}
    assert [parent for parent, _ in parents_of(queue)] == [1]
    before = queue.rows()
    wrong = json.dumps({"task": "tasks.note", "depends_on": [10**6]})
    assert_one_line(bulk(queue, f"{text}\n\n{wrong}"), 2, "line 10: depends_on names 1000000")
    assert queue.rows() == before


# ---- warnings: a name that the modules lack, a group that no run serves

TASKS = """
def send_letter(to): ...
async def fetch(to, depth=1): ...

class Mail:
    @staticmethod
    def send(to): ...
"""
TASKS_OF_SHOP = "def send(to): ...\n@app.task\ndef foreign(to): ...\n"
NOT_FOUND = "; a worker that does not find it either makes the task fatal (client.py retry ID --as NAME renames it)"
FETCH = "tasks.fetch(to, depth=…) does not take these arguments: "
FOREIGN = "@app.task makes shop.mail.foreign a task of another queue: remove it, see docs/django.md#coming-from-celery"
REFUSED = "; as it is, a worker makes the task fatal"
WARNINGS = {
    **{f"{name} [1]": "" for name in ("tasks:Mail.send", "shop.mail.send")},
    "tasks.send_leter": f"'tasks.send_leter': module tasks has no function 'send_leter'{NOT_FOUND}; "
    "did you mean 'send_letter'?",
    "task.fetch": f"'task.fetch' is not in TASKSERVER_MODULES (tasks){NOT_FOUND}; did you mean 'tasks.fetch'?",
    "tasks.fetch": f"{FETCH}missing a required argument: 'to'{REFUSED}",
    "tasks.fetch [1] --then shop.mail.foreign": f"{FOREIGN}{REFUSED}",
    "tasks.fetch [1] --then tasks.a": f"'tasks.a': module tasks has no function 'a'{NOT_FOUND}",
}


@pytest.fixture
def client(sqlite_queue: Queue, monkeypatch: pytest.MonkeyPatch) -> Run:
    """client.py in this process, beside these modules."""
    monkeypatch.setenv("TASKSERVER_MODULES", "tasks,shop.*")
    sqlite_queue.deployment.write_tasks(TASKS)
    sqlite_queue.deployment.write_tasks(TASKS_OF_SHOP, "shop/mail.py")
    return sqlite_queue.here


def test_a_task_that_no_worker_would_run_is_added_with_a_warning(client: Run) -> None:
    for number, (line, words) in enumerate(WARNINGS.items(), 1):
        ended = client("add", *shlex.split(line))
        assert (ended.returncode, ended.stdout) == (0, f"{number}\n")
        assert ended.stderr == (f"client.py: warning: {words}\n" if words else ""), line


def test_bulk_files_schedules_and_retries_get_the_same_warnings(sqlite_queue: Queue, client: Run) -> None:
    lines = sqlite_queue.folder / "lines"
    lines.write_text("".join(f'{{"task": "tasks.made_up_{number}"}}\n' for number in [*range(3000), 0]))
    *warnings, last = client("add", "--bulk", lines).stderr.splitlines()
    assert (len(warnings), last) == (MAX_WARNINGS, "client.py: warning: and 95 more names like these")
    for line in (("schedule", "nightly", "tasks.a", "--every", "1d"), ("retry", "--all", "--as", "tasks.a")):
        assert client(*line).stderr == f"client.py: warning: 'tasks.a': module tasks has no function 'a'{NOT_FOUND}\n"


def test_a_group_that_no_recent_run_serves_gets_a_warning(sqlite_queue: Queue, client: Run) -> None:
    run = "INSERT INTO jobs_queue_workers (pid, host, group_ids, started_at) VALUES (1, 'h', '{}', {})"
    sqlite_queue.sql(run.format("0", "'2020-01-01 00:00:00.000000'"))
    assert client("add", "tasks.fetch", '["a"]', "--group", "7").stderr == ""  # cron has stopped
    sqlite_queue.sql(run.format("3,5", "strftime('%Y-%m-%d %H:%M:%f000', 'now')"))
    assert client("add", "tasks.fetch", '["a"]', "--group", "3").stderr == ""
    words = (
        "client.py: warning: no worker takes tasks of {}: they serve 3, 5; have a crontab line name it, or no groups\n"
    )
    stage = '{"task": "tasks.fetch", "group_id": 8}'
    ended = client("add", "tasks.fetch", '["a"]', "--group", "7", "--then", stage)
    assert ended.stderr == words.format("groups 7, 8")
    ended = client("schedule", "nightly", "tasks.fetch", '["a"]', "--every", "1d")
    assert ended.stderr == words.format("group 0")
