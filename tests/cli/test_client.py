"""client.py as a person or a script starts it: a process, with the rows that it made read back by SQL alone."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import sqlite3
import subprocess
import termios
from array import array
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from taskserver.cli.client import main
from taskserver.model.task import MAX_ID
from taskserver.stores.database.tables import SCHEMA_VERSION
from tests.support.deployment import Deployment
from tests.support.processes import (
    WAIT_SECONDS,
    assert_one_line,
    assert_silent,
    end_of,
    needs_peak,
    run_here,
    run_on_terminal,
    run_telling_peak,
    wait_until,
)
from tests.support.queues import Queue

FIRST_LINE = '{"task": "tasks.note", "args": ["first"], "group_id": 3, "priority": -7}\n'
HOSTILE = "\x1b[2J\x1b]0;title\x07\r\n\x9b31m\u202e\u2028 'end' \\x1b ü🎉"


def rows_of(queue: Queue) -> list[tuple[Any, ...]]:
    return queue.rows("task, args, group_id, priority")


def json_of(queue: Queue, *args: object) -> Any:
    """What a reading command prints with --json, which must be JSON alone."""
    ended = queue.client(*args, "--json")
    assert (ended.returncode, ended.stderr) == (0, "")
    return json.loads(ended.stdout)


def text_of(queue: Queue, *args: object) -> str:
    """What a command prints for a person: never a character that a terminal would obey."""
    ended = queue.client(*args)
    assert ended.returncode == 0, ended.stderr
    both = ended.stdout + ended.stderr
    assert not [character for character in both if not character.isprintable() and character != "\n"]
    return ended.stdout


# ---- init


def test_init_writes_settings_for_the_embedded_database_where_nothing_is_set(deployment: Deployment) -> None:
    umask = os.umask(0)
    try:
        ended = deployment.client("init")
    finally:
        os.umask(umask)
    assert (ended.returncode, ended.stderr) == (0, "")
    env_file, var = deployment.folder / ".env", deployment.folder / "var"
    assert "TASKSERVER_DSN=sqlite:///var/taskserver.db" in env_file.read_text().splitlines()
    assert env_file.stat().st_mode & 0o777 == 0o600
    assert var.stat().st_mode & 0o777 == 0o700
    assert (var / "taskserver.db").stat().st_mode & 0o777 == 0o600
    assert "denied" in (var / ".htaccess").read_text()
    assert not list(deployment.home.iterdir())
    assert_silent(deployment.worker(100, "3,5,6"))


def test_init_is_safe_to_repeat(deployment: Deployment) -> None:
    assert deployment.client("init").returncode == 0
    assert deployment.client("add", "tasks.note").stdout == "1\n"
    before = (deployment.folder / ".env").read_text()
    again = deployment.client("init")
    assert (again.returncode, again.stderr) == (0, "")
    assert (deployment.folder / ".env").read_text() == before
    assert deployment.client("add", "tasks.note").stdout == "2\n"


def test_init_keeps_the_tasks_that_are_there(queue: Queue) -> None:
    queue.add("tasks.note", None, 3)
    before = queue.rows()
    assert queue.client("init").returncode == 0
    assert queue.rows() == before


def test_init_writes_no_settings_where_the_environment_names_a_database(deployment: Deployment, dsn: str) -> None:
    ended = deployment.client("init", env={"TASKSERVER_DSN": dsn})
    assert (ended.returncode, ended.stderr) == (0, "")
    assert not (deployment.folder / ".env").exists()


def test_init_leaves_an_env_file_without_a_database_alone(deployment: Deployment) -> None:
    path = deployment.write_env("# nothing yet\n")
    assert_one_line(deployment.client("init"), 2, "TASKSERVER_DSN")
    assert path.read_text() == "# nothing yet\n"
    assert not (deployment.folder / "var").exists()


def test_init_makes_tables_of_the_configured_name(make_queue: Callable[..., Queue], dsn: str) -> None:
    queue = make_queue(dsn, tables=False)
    name = "Ünïcode"
    assert_one_line(queue.client("init", env={"TASKSERVER_TABLE": name}), 2, "TASKSERVER_TABLE")
    name = "_" + "x" * 39
    assert queue.client("init", env={"TASKSERVER_TABLE": name}).returncode == 0
    assert queue.client("add", "tasks.note", env={"TASKSERVER_TABLE": name}).stdout == "1\n"
    assert queue.sql(f"SELECT task FROM {name}") == [("tasks.note",)]
    assert_silent(queue.worker(TASKSERVER_TABLE=name))
    assert queue.notes() == ["noted"]


def test_init_over_a_table_of_another_program_says_so_with_code_1(make_queue: Callable[..., Queue], dsn: str) -> None:
    queue = make_queue(dsn, tables=False)
    if queue.is_sqlite:
        sqlite3.connect(queue.path).close()
    queue.sql("CREATE TABLE jobs_queue (id INTEGER PRIMARY KEY, payload TEXT)")
    assert_one_line(queue.client("init"), 1, "jobs_queue")
    assert queue.sql("SELECT COUNT(payload) FROM jobs_queue") == [(0,)]


# ---- add


def test_add_prints_the_id_of_the_task_and_nothing_else(queue: Queue) -> None:
    for task_id in (1, 2):
        ended = queue.client("add", "tasks.note", '{"text": "grün 🎉"}', "--group", 3, "--priority", -7)
        assert (ended.returncode, ended.stdout, ended.stderr) == (0, f"{task_id}\n", "")
    assert rows_of(queue) == [("tasks.note", '{"text":"grün 🎉"}', 3, -7)] * 2
    assert_silent(queue.worker())
    assert queue.notes() == ["grün 🎉"] * 2


def test_add_has_defaults_and_takes_the_limits(queue: Queue) -> None:
    client = queue.client
    assert client("add", "tasks.note").returncode == 0
    assert client("add", "tasks:Letter.send", "[]", "--group", 4294967295, "--priority", 2147483647).returncode == 0
    assert client("add", "tasks.Letter.send", "{}", "--priority", -2147483648).returncode == 0
    assert rows_of(queue) == [
        ("tasks.note", None, 0, 0),
        ("tasks:Letter.send", "[]", 4294967295, 2147483647),
        ("tasks.Letter.send", "{}", 0, -2147483648),
    ]


WRONG_TASKS = [
    ["tasks.note", "{"],
    ["tasks.note", "{'text': 1}"],
    ["tasks.note", "5"],
    ["tasks.note", '"text"'],
    ["tasks.note", "[NaN]"],
    ["tasks.note", "[1e999]"],
    ["tasks.note", "[" * 3000],
    ["tasks.note", '["\udcff"]'],
    ["note"],
    [""],
    ["tasks.note()"],
    ["tasks note"],
    ["x." + "y" * 254],
    ["tasks.note", "--group", "-1"],
    ["tasks.note", "--group", "4294967296"],
    ["tasks.note", "--group", "three"],
    ["tasks.note", "--priority", "2147483648"],
    ["tasks.note", "--priority", "-2147483649"],
    ["tasks.note", "--priority", "1.5"],
    ["tasks.note", "[]", "[]"],
    ["tasks.note", "--bulk", "-"],
    ["--then", "tasks.note", "--bulk", "-"],
    ["--depends-on", "1", "--bulk", "-"],
    ["--then", "tasks.note"],
    [],
]


def test_a_wrong_task_is_one_line_and_code_2_and_adds_nothing(
    sqlite_queue: Queue, capsys: pytest.CaptureFixture[str]
) -> None:
    assert_one_line(sqlite_queue.client("add", "tasks.note", "{"), 2, "client.py")
    for arguments in WRONG_TASKS:
        ended = run_here(main, capsys, sqlite_queue.folder, "add", *arguments)
        assert_one_line(ended, 2, "client.py")
        assert len(ended.stderr) < 600
    assert rows_of(sqlite_queue) == []


def test_add_takes_when_how_often_and_of_what_kind(queue: Queue) -> None:
    client = queue.client
    assert client("add", "tasks.note", "--delay", "3600.5").stdout == "1\n"
    assert client("add", "tasks.note", "--at", "2037-01-31T12:00:00+01:00").stdout == "2\n"
    assert client("add", "tasks.note", "--max-attempts", 1, "--unique", "ä ").stdout == "3\n"
    columns = "status, max_attempts, unique_key"
    assert queue.rows(columns)[:2] == [(5, None, None)] * 2
    key = "ä " if queue.is_sqlite else "ä ".encode()
    assert queue.rows(columns)[2] == (0, 1, key)
    assert "2037-01-31 11:00:00" in str(queue.rows("due_at")[1][0])


def test_add_of_a_key_that_stands_prints_its_id_and_with_rerun_changes_it(queue: Queue) -> None:
    def add(text: str, *options: object) -> str:
        ended = queue.client("add", "tasks.note", json.dumps([text]), "--unique", "one", *options)
        assert (ended.returncode, ended.stderr) == (0, "")
        return ended.stdout

    assert add("first") == add("second") == "1\n"
    assert queue.rows("args") == [('["first"]',)]
    assert add("third", "--rerun", "--version", 8) == "1\n"
    assert add("fourth", "--rerun", "--version", 8) == "1\n"
    assert add("fifth", "--rerun", "--version", 0) == "1\n"
    assert queue.rows("args, version") == [('["third"]', 8)]
    assert add("sixth", "--rerun", "--group", 3) == "1\n"
    assert queue.rows("args, version, group_id") == [('["sixth"]', 8, 3)]


def test_add_takes_what_runs_then(queue: Queue) -> None:
    second = '{"task": "tasks.note", "group_id": 5, "max_attempts": 2}'
    ended = queue.client("add", "tasks.note", '["x"]', "--then", second, "--then", "tasks.fail", "--priority", -1)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "1\n", "")
    ((task, args, group_id, priority),) = rows_of(queue)
    assert (task, json.loads(args), group_id, priority) == ("tasks.note", ["x"], 0, -1)
    ((stages, stage),) = queue.rows("stages, stage")
    assert (json.loads(stages), stage) == (
        [
            {"task": "tasks.note", "group_id": 0, "priority": -1},
            {"task": "tasks.note", "group_id": 5, "priority": -1, "max_attempts": 2},
            {"task": "tasks.fail", "group_id": 0, "priority": -1},
        ],
        0,
    )


def test_add_takes_what_is_waited_for(queue: Queue) -> None:
    for _ in range(3):
        queue.client("add", "tasks.note")
    ended = queue.client("add", "tasks.note", "--depends-on", "1,3", "--depends-on", 2, "--then", "tasks.note")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "4\n", "")
    assert sorted(queue.sql("SELECT parent_id, child_id FROM jobs_queue_dependencies")) == [(1, 4), (2, 4), (3, 4)]
    assert queue.statuses() == [0, 0, 0, 5]


def test_add_refuses_by_name_what_cannot_be_waited_for(queue: Queue) -> None:
    queue.client("add", "tasks.note")
    for wrong in (10**6, f"1,{10**6}"):
        ended = queue.client("add", "tasks.note", "--depends-on", wrong)
        assert_one_line(ended, 2, f"depends_on names {10**6}, and this task would be ", "nothing was added")
        assert len(queue.rows()) == 1
        assert queue.sql("SELECT * FROM jobs_queue_dependencies") == []


def test_bulk_takes_pipelines_and_what_is_waited_for_and_refuses_all_for_one(queue: Queue) -> None:
    lines = [
        {"task": "tasks.note", "args": ["first"]},
        {"stages": ["tasks.note", {"task": "tasks.note", "priority": 3}], "args": ["second"], "group_id": 4},
        {"stages": ["tasks.note"], "task": None, "depends_on": [1, 1], "delay": 60},
        {"task": "tasks.note", "depends_on": [], "unique_key": "k", "stages": None},
    ]
    text = "\n".join(map(json.dumps, lines))
    assert queue.client("add", "--bulk", "-", stdin=text).returncode == 0
    assert queue.rows("status, stages IS NULL, group_id") == [(0, 1, 0), (0, 0, 4), (5, 0, 0), (0, 1, 0)]
    assert queue.sql("SELECT parent_id, child_id FROM jobs_queue_dependencies") == [(1, 3)]
    for wrong, words in (
        ({"stages": []}, "line 5: stages is []"),
        ({"stages": ["tasks.note", "note"]}, "line 5: stage 2: "),
        ({"task": "tasks.note", "stages": ["tasks.note"]}, "line 5: it has task and stages"),
        ({"task": "tasks.note", "depends_on": 1}, "line 5: depends_on is 1"),
        ({"task": "tasks.note", "depends_on": [1], "unique_key": "k"}, "line 5: it has depends_on and a unique_key"),
        ({"task": "tasks.note", "depends_on": [10**6]}, "depends_on names 1000000"),
    ):
        before = queue.rows()
        assert_one_line(queue.client("add", "--bulk", "-", stdin=f"{text}\n{json.dumps(wrong)}\n"), 2, words)
        assert queue.rows() == before


WRONG_KINDS = [
    (["--rerun"], "it has rerun and no unique_key"),
    (["--version", "3"], "it has a version and no rerun"),
    (["--unique", "k", "--version", "3"], "it has a version and no rerun"),
    (["--delay", "5", "--at", "2037-01-31T12:00:00Z"], "it has delay and at; allowed: one of them"),
    (["--delay", "-1"], "'-1' is not a number of seconds from 0 on"),
    (["--delay", "soon"], "'soon' is not a number of seconds from 0 on"),
    (["--delay", "inf"], "'inf' is not a number of seconds from 0 on"),
    (["--delay", "nan"], "'nan' is not a number of seconds from 0 on"),
    (["--delay", "1e10"], "allowed: seconds or a timedelta, from 0 to 3660 days"),
    (["--at", "tomorrow"], "at is 'tomorrow'; allowed: a datetime, or its text as 2026-01-31T12:00:00+01:00"),
    (["--at", "2037-01-31T12:00:00"], "which has no time zone"),
    (["--at", "2039-01-31T12:00:00Z"], "allowed: from 1970-01-02 to 2038-01-19"),
    (["--max-attempts", "0"], "--max-attempts"),
    (["--max-attempts", "1000001"], "--max-attempts"),
    (["--unique", ""], "unique_key is ''; allowed: a text of 1 to 255 bytes"),
    (["--unique", "ä" * 128], "256 bytes long; allowed: a text of 1 to 255 bytes"),
    (["--unique", "k", "--rerun", "--version", "-1"], "--version"),
    (["--unique", "k", "--rerun", "--version", str(2**63)], "--version"),
    (["--unique", "k", "--rerun", "yes"], "yes"),
    (["--then", "note"], "stage 2: "),
    (["--then", ""], "stage 2: "),
    (["--then", "{"], "--then"),
    (["--then", "{}"], 'stage 2: it has no "task"'),
    (["--then", '{"task": "tasks.note", "args": [1]}'], "stage 2: it has 'args'"),
    (["--then", '{"task": "tasks.note", "priority": NaN}'], "NaN is no JSON number"),
    (["--then", '["tasks.note"]'], "stage 2: "),
    (["--then", "tasks.note"] * 100, "allowed: a list of 1 to 100"),
    (["--depends-on", ""], "with commas and no spaces, as 17,18"),
    (["--depends-on", "0"], f"write ids, each from 1 to {MAX_ID}"),
    (["--depends-on", "1,"], f"write ids, each from 1 to {MAX_ID}"),
    (["--depends-on", "1, 2"], f"write ids, each from 1 to {MAX_ID}"),
    (["--depends-on", "one"], f"write ids, each from 1 to {MAX_ID}"),
    (["--depends-on", str(2**63)], f"write ids, each from 1 to {MAX_ID}"),
    (["--depends-on", "1", "--unique", "k"], "it has depends_on and a unique_key"),
    (["--depends-on", "1"], "depends_on names 1, and this task would be 1"),
]


@pytest.mark.parametrize(("options", "words"), WRONG_KINDS)
def test_options_of_add_that_are_wrong_or_do_not_go_together_are_one_line_and_add_nothing(
    sqlite_queue: Queue, capsys: pytest.CaptureFixture[str], options: list[str], words: str
) -> None:
    ended = run_here(main, capsys, sqlite_queue.folder, "add", "tasks.note", "[1]", *options)
    assert_one_line(ended, 2, "client.py", words)
    assert rows_of(sqlite_queue) == []


# ---- add --bulk


def test_bulk_adds_the_lines_of_a_file_in_their_order(queue: Queue) -> None:
    path = queue.deployment.home / "tasks.jsonl"
    lines = [
        "\ufeff" + FIRST_LINE,
        "\n",
        "  \t\r\n",
        '{"task":"tasks.fail"}\r\n',
        '{"args": {"text": "grün 🎉 \\u00e4"}, "task": "tasks.note"}\n',
        '{"task": "tasks.note", "args": null, "group_id": 5}',
    ]
    path.write_bytes("".join(lines).encode())
    ended = queue.client("add", "--bulk", "tasks.jsonl")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "4 tasks added\n", "")
    assert rows_of(queue) == [
        ("tasks.note", '["first"]', 3, -7),
        ("tasks.fail", None, 0, 0),
        ("tasks.note", '{"text":"grün 🎉 ä"}', 0, 0),
        ("tasks.note", None, 5, 0),
    ]


def test_bulk_reads_a_pipe_with_more_than_is_kept_in_memory(queue: Queue, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    line = json.dumps({"task": "tasks.note", "args": ["x" * 1000], "unique_key": "k"})
    with ThreadPoolExecutor(1) as threads:
        threads.submit(pipe.write_text, f"{line}\n" * 2000)
        ended = queue.client("add", "--bulk", pipe)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout == "2000 tasks added, or there already: 2000 have a unique_key\n"
    assert len(queue.rows()) == 1


def test_bulk_reads_standard_input(queue: Queue) -> None:
    ended = queue.client("add", "--bulk", "-", stdin=FIRST_LINE * 3)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "3 tasks added\n", "")
    assert rows_of(queue) == [("tasks.note", '["first"]', 3, -7)] * 3


@pytest.mark.parametrize("text", ["", "\n\n \n"])
def test_bulk_without_lines_adds_nothing(sqlite_queue: Queue, text: str) -> None:
    ended = sqlite_queue.client("add", "--bulk", "-", stdin=text)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "0 tasks added\n", "")


def test_bulk_takes_lines_of_all_kinds(queue: Queue) -> None:
    lines = [
        {"task": "tasks.note", "args": [1]},
        {"task": "tasks.note", "args": [2], "delay": 3600},
        {"task": "tasks.note", "args": [3], "at": "2037-01-31T12:00:00+01:00", "max_attempts": 2},
        {"task": "tasks.note", "args": [4], "unique_key": "one"},
        {"task": "tasks.note", "args": [5], "unique_key": "one"},
        {"task": "tasks.note", "args": [6], "unique_key": "two", "rerun": True},
        {"task": "tasks.note", "args": [7], "unique_key": "two", "rerun": True, "version": 3},
        {"task": "tasks.note", "args": [8], "unique_key": "two", "rerun": True, "version": 2},
        {"task": "tasks.note", "args": [9], "unique_key": None, "rerun": False, "delay": None, "version": None},
    ]
    ended = queue.client("add", "--bulk", "-", stdin="\n".join(map(json.dumps, lines)))
    assert (ended.returncode, ended.stderr) == (0, "")
    found = queue.rows("args, status, max_attempts, version")
    assert sorted(found) == [
        *(("[1]", 0, None, None), ("[2]", 5, None, None), ("[3]", 5, 2, None), ("[4]", 0, None, None)),
        *(("[7]", 0, None, 3), ("[9]", 0, None, None)),
    ]


BAD_LINES: list[tuple[bytes, str]] = [
    (b'{"task": "tasks.note"', "JSON"),
    (b'["tasks.note"]', "an object"),
    (b'"tasks.note"', "an object"),
    (b"5", "an object"),
    (b"null", "an object"),
    (b"{}", '"task"'),
    (b'{"task": null}', "task"),
    (b'{"task": 5}', "task"),
    (b'{"task": ["tasks.note"]}', "task"),
    (b'{"task": "tasks.note", "arguments": []}', "'arguments'"),
    (b'{"task": "tasks.note", "\\u001b[2J": []}', "allowed: task, args"),
    (b'{"task": "tasks.note", "args": 5}', "args"),
    (b'{"task": "tasks.note", "args": "text"}', "args"),
    (b'{"task": "tasks.note", "args": [NaN]}', "NaN"),
    (b'{"task": "tasks.note", "args": [1e999]}', "too large"),
    (b'{"task": "tasks.note", "args": ["\\ud800"]}', "args"),
    (b'{"task": "tasks.note", "args": %s}' % (b"[" * 3000), "nested"),
    (b'{"task": "tasks.note", "args": ["%s"]}' % (b"x" * 1024 * 1024), "1048576"),
    (b'{"task": "tasks.note", "group_id": "3"}', "group_id"),
    (b'{"task": "tasks.note", "group_id": -1}', "group_id"),
    (b'{"task": "tasks.note", "group_id": 1.0}', "group_id"),
    (b'{"task": "tasks.note", "group_id": true}', "group_id"),
    (b'{"task": "tasks.note", "priority": null}', "priority"),
    (b'{"task": "tasks.note", "priority": 2147483648}', "priority"),
    (b'{"task": "tasks.note", "rerun": true}', "it has rerun and no unique_key"),
    (b'{"task": "tasks.note", "unique_key": "k", "version": 1}', "it has a version and no rerun"),
    (b'{"task": "tasks.note", "unique_key": "k", "rerun": "yes"}', "rerun is 'yes'; allowed: true or false"),
    (b'{"task": "tasks.note", "unique_key": 5}', "unique_key is 5"),
    (b'{"task": "tasks.note", "unique_key": "\\ud800"}', "unique_key"),
    (b'{"task": "tasks.note", "delay": "60"}', "delay is '60'"),
    (b'{"task": "tasks.note", "delay": 1, "at": "2037-01-31T12:00:00Z"}', "it has delay and at"),
    (b'{"task": "tasks.note", "at": 1900000000}', "at is 1900000000"),
    (b'{"task": "tasks.note", "max_attempts": 0}', "max_attempts is 0"),
    (b'{"task": "tasks.note", "args": ["\xff\xfe"]}', "UTF-8"),
    ('{"task": "tasks.note"}'.encode("utf-16"), "UTF-8"),
    (b'{"task": "tasks.note"} {"task": "tasks.note"}', "JSON"),
]


def test_a_bad_line_is_named_by_its_number_and_nothing_is_added(
    sqlite_queue: Queue, capsys: pytest.CaptureFixture[str]
) -> None:
    path = sqlite_queue.deployment.home / "tasks.jsonl"
    for line, words in BAD_LINES:
        path.write_bytes(FIRST_LINE.encode() + b"\n" + line + b"\n" + FIRST_LINE.encode())
        ended = run_here(main, capsys, sqlite_queue.folder, "add", "--bulk", path)
        assert_one_line(ended, 2, "client.py", "line 3:", words, "nothing was added")
        assert "\x1b" not in ended.stderr
        assert len(ended.stderr) < 600
    assert rows_of(sqlite_queue) == []


def test_a_bad_line_after_many_good_ones_leaves_nothing_behind(queue: Queue) -> None:
    ended = queue.client("add", "--bulk", "-", stdin=FIRST_LINE * 3000 + "oops\n")
    assert_one_line(ended, 2, "line 3001:")
    assert rows_of(queue) == []


def test_bulk_from_a_file_that_cannot_be_read_is_one_line_and_code_2(sqlite_queue: Queue) -> None:
    assert_one_line(sqlite_queue.client("add", "--bulk", "not-there.jsonl"), 2, "not-there.jsonl")
    assert_one_line(
        sqlite_queue.client("add", "--bulk", sqlite_queue.deployment.home), 2, str(sqlite_queue.deployment.home)
    )


def test_bulk_and_a_task_exclude_each_other(sqlite_queue: Queue) -> None:
    for others in (
        ["tasks.note"],
        ["--group", "3"],
        ["--priority", "1"],
        ["--delay", "0"],
        ["--unique", "k"],
        ["--rerun"],
    ):
        assert_one_line(sqlite_queue.client("add", "--bulk", "-", *others, stdin=FIRST_LINE), 2, "--bulk")
    assert rows_of(sqlite_queue) == []


@pytest.mark.parametrize("character", ["x", "\\u00e4"])
def test_a_line_may_hold_arguments_of_one_mebibyte_however_they_are_written(
    sqlite_queue: Queue, character: str
) -> None:
    bytes_each = {"x": 1, "\\u00e4": 2}[character]
    text = character * ((1024 * 1024 - 4) // bytes_each)
    ended = sqlite_queue.client("add", "--bulk", "-", stdin=f'{{"task": "tasks.note", "args": ["{text}"]}}\n')
    assert (ended.returncode, ended.stderr) == (0, "")
    assert sqlite_queue.rows("length(CAST(args AS BLOB))") == [(1024 * 1024,)]


def peak_kilobytes(queue: Queue, lines: int) -> int:
    """The most memory that adding so many lines of 400 bytes took."""
    path = queue.deployment.home / f"{lines}.jsonl"
    path.write_text(f'{{"task": "tasks.note", "args": ["{"x" * 350}"]}}\n' * lines)
    ended = run_telling_peak(queue.deployment, "client.py", "add", "--bulk", path)
    assert (ended.returncode, ended.stdout) == (0, f"{lines} tasks added\n")
    return int(ended.stderr)


@pytest.mark.long
@needs_peak
def test_100000_lines_take_no_more_memory_than_1000(queue: Queue) -> None:
    few, many = peak_kilobytes(queue, 1000), peak_kilobytes(queue, 100_000)
    # The lines alone are 40 MB; what is left is the size of a statement and the cache of SQLite.
    assert many - few < 10_000, (few, many)
    assert queue.sql("SELECT COUNT(*) FROM jobs_queue") == [(101_000,)]


def test_bulk_shows_a_bar_on_a_terminal(sqlite_queue: Queue) -> None:
    path = sqlite_queue.deployment.home / "tasks.jsonl"
    path.write_text(FIRST_LINE * 2000)
    code, screen = run_on_terminal(sqlite_queue.deployment, "client.py", "add", "--bulk", path)
    assert code == 0
    assert "\r\x1b[K[" in screen
    assert "%" in screen
    assert screen.endswith("\r\x1b[K2000 tasks added\r\n")


def test_ctrl_c_during_bulk_adds_nothing(sqlite_queue: Queue) -> None:
    process = sqlite_queue.deployment.popen("client.py", "add", "--bulk", "-")
    assert process.stdin is not None
    process.stdin.write(FIRST_LINE * 1000)
    process.stdin.flush()
    descriptor = process.stdin.fileno()
    wait_until(lambda: unread_bytes(descriptor) == 0)
    process.send_signal(signal.SIGINT)
    code, output, errors = end_of(process)
    assert (code, output) == (130, "")
    assert "Traceback" not in errors
    assert rows_of(sqlite_queue) == []


def unread_bytes(pipe: int) -> int:
    """How many were written into a pipe and not yet read from it."""
    count = array("i", [0])
    fcntl.ioctl(pipe, termios.FIONREAD, count)
    return count[0]


# ---- status


def test_status_counts_rows_by_group_and_status(queue: Queue) -> None:
    for group_id, status in [(3, 0), (3, 0), (3, 4), (5, 2), (5, 77), (6, 1), (6, 3), (6, 5)]:
        queue.add("tasks.note", None, group_id)
        queue.sql(
            "UPDATE jobs_queue SET status = ? WHERE id = (SELECT * FROM (SELECT MAX(id) FROM jobs_queue) AS last)",
            status,
        )
    report = json_of(queue, "status")
    none = dict.fromkeys(["new", "in_progress", "done", "error", "fatal", "waiting"], 0)
    ages = [group.pop("oldest_new_seconds") for group in report["groups"]]
    assert report["groups"] == [
        none | {"group_id": 3, "new": 2, "fatal": 1},
        none | {"group_id": 5, "done": 1, "status_77": 1},
        none | {"group_id": 6, "in_progress": 1, "error": 1, "waiting": 1},
    ]
    assert report["total"] == none | {
        "new": 2,
        "in_progress": 1,
        "done": 1,
        "error": 1,
        "fatal": 1,
        "waiting": 1,
        "status_77": 1,
    }
    assert ages[1:] == [None, None]
    assert 0 <= ages[0] == report["oldest_new_seconds"] < 60
    assert (report["table"], report["mode"], report["runs"]) == ("jobs_queue", "delete", [])
    text = text_of(queue, "status")
    assert "status 77" in text
    lines = [line.split() for line in text.splitlines()]
    assert ["5", "0", "0", "1", "0", "0", "0", "1"] in lines


def test_status_tells_the_age_of_the_oldest_waiting_task(queue: Queue) -> None:
    for group_id in (3, 3, 5):
        queue.add("tasks.note", None, group_id)
    three_hours_ago = "datetime('now', '-3 hours')" if queue.is_sqlite else "NOW(6) - INTERVAL 3 HOUR"
    queue.sql(f"UPDATE jobs_queue SET created_at = {three_hours_ago} WHERE id = 1")
    report = json_of(queue, "status")
    assert 3 * 3600 <= report["oldest_new_seconds"] < 3 * 3600 + 60
    assert [group["oldest_new_seconds"] == report["oldest_new_seconds"] for group in report["groups"]] == [True, False]
    assert "3 h" in text_of(queue, "status")


def test_status_tells_when_which_worker_ran_and_why_it_ended(queue: Queue) -> None:
    queue.add("tasks.note", None, 3)
    queue.add("os.system", None, 5)
    queue.worker(100, "3,5,6")
    (run,) = json_of(queue, "status")["runs"]
    assert (run["group_ids"], run["reason"]) == ("3,5,6", "empty")
    assert [run[key] for key in ("taken", "done", "fatal", "lost", "released")] == [2, 1, 1, 0, 0]
    assert run["started_at"] < run["ended_at"]
    assert 0 <= run["started_seconds_ago"] < 60
    text = text_of(queue, "status")
    for words in ("groups 3,5,6", "ended: empty", "2 taken up, 1 done, 1 fatal"):
        assert words in text


def test_status_of_an_empty_queue_asks_for_a_crontab(queue: Queue) -> None:
    ended = queue.client("status")
    assert ended.returncode == 0
    assert "no tasks" in ended.stdout
    assert "crontab" in ended.stdout + ended.stderr
    report = json_of(queue, "status")
    assert (report["groups"], report["oldest_new_seconds"], report["runs"]) == ([], None, [])


def test_status_tells_of_a_run_that_did_not_end(queue: Queue) -> None:
    queue.sql(f"INSERT INTO jobs_queue_workers (host, group_ids, pid, started_at) VALUES ('h', 'all', 7, {queue.now})")
    (run,) = json_of(queue, "status")["runs"]
    assert (run["ended_at"], run["reason"]) == (None, None)
    assert "not ended (pid 7 runs, or was killed)" in text_of(queue, "status")


# ---- list and show


def fill(queue: Queue) -> None:
    for number in range(30):
        queue.add("tasks.note", f"[{number}]", number % 3, number)
    queue.sql("UPDATE jobs_queue SET status = 4, error_text = 'ValueError: no\nsecond line' WHERE id IN (5, 10)")
    queue.sql("UPDATE jobs_queue SET status = 9 WHERE id = 7")


def test_list_shows_the_newest_tasks_of_the_named_statuses_and_groups(queue: Queue) -> None:
    fill(queue)

    def ids(*args: object) -> list[int]:
        return [task["id"] for task in json_of(queue, "list", *args)]

    assert ids() == list(range(30, 10, -1))
    assert ids("--limit", 3) == [30, 29, 28]
    assert ids("--limit", 1000) == list(range(30, 0, -1))
    assert ids("--status", "fatal") == [10, 5]
    assert ids("--status", "fatal", "--group", 1) == [5]
    assert ids("--status", "fatal", "new", "--limit", 2, "--group", "0,1") == [29, 28]
    assert ids("--task", "tasks.other") == []
    assert len(ids("--task", "tasks.note", "--limit", 3)) == 3
    assert ids("--status", "done") == []
    assert "no such tasks" in text_of(queue, "list", "--status", "done")


def test_list_and_show_print_tasks_as_json_alone(queue: Queue) -> None:
    fill(queue)
    (task,) = json_of(queue, "list", "--status", "fatal", "--limit", 1)
    assert json_of(queue, "show", 10) == task
    created_at, updated_at = task.pop("created_at"), task.pop("updated_at")
    assert task == {
        "id": 10, "task": "tasks.note", "args": "[9]", "group_id": 0, "priority": 9, "status": 4,
        "status_name": "fatal", "attempts": 0, "max_attempts": None, "due_at": None, "claim": None,
        "unique_key": None, "error_text": "ValueError: no\nsecond line", "started_at": None, "finished_at": None,
        "version": None, "stages": None, "stage": 0, "awaited": 0, "result": None, "progress": None, "archived": False,
        "waits_for": [], "awaited_by": [],
    }  # fmt: skip
    for instant in (created_at, updated_at):
        assert len(instant) == len("2026-01-31T12:00:00.000000Z")
        assert instant.endswith("Z")


def test_list_and_show_print_tasks_for_people(queue: Queue) -> None:
    fill(queue)
    lines = text_of(queue, "list", "--status", "fatal").splitlines()
    assert lines[0].split()[:3] == ["id", "status", "group"]
    assert [line.split()[:5] for line in lines[1:]] == [["10", "fatal", "0", "9", "0"], ["5", "fatal", "1", "4", "0"]]
    assert "ValueError: no" in lines[1]
    text = text_of(queue, "show", 10)
    for words in ("tasks.note", "fatal", "[9]", "ValueError: no\n               second line\n"):
        assert words in text
    assert "status_9" in text_of(queue, "show", 7)
    assert json_of(queue, "show", 7)["status_name"] == "status_9"


def test_show_prints_an_error_in_the_lines_that_it_has(sqlite_queue: Queue) -> None:
    text = 'E: \x1b[2J\n  File "tasks.py"\n\n    fail()'
    sqlite_queue.sql("INSERT INTO jobs_queue (task, status, error_text) VALUES ('tasks.note', 4, ?)", text)
    lines = text_of(sqlite_queue, "show", 1).splitlines()
    start = lines.index("  error_text   E: \\x1b[2J")
    assert lines[start + 1 : start + 4] == [" " * 17 + 'File "tasks.py"', "", " " * 19 + "fail()"]
    assert json_of(sqlite_queue, "show", 1)["error_text"] == text


def test_show_finds_a_completed_task_in_the_archive(queue: Queue) -> None:
    queue.add("tasks.note", "[]", 3)
    assert_silent(queue.worker("--mode", "move"))
    report = json_of(queue, "show", 1)
    assert (report["status_name"], report["archived"], report["attempts"]) == ("done", True, 1)
    assert report["created_at"] <= report["started_at"] <= report["finished_at"]
    assert "archive" in text_of(queue, "show", 1)


@pytest.mark.parametrize("task_id", [0, 99, 2**63, 2**64 - 1])
def test_show_of_a_task_that_is_not_there_is_one_line_and_code_2(queue: Queue, task_id: int) -> None:
    for json_too in ([], ["--json"]):
        assert_one_line(queue.client("show", task_id, *json_too), 2, str(task_id))


def test_hostile_rows_are_printed_with_control_characters_escaped(queue: Queue) -> None:
    text = HOSTILE
    queue.sql(
        "INSERT INTO jobs_queue (task, args, error_text, unique_key, status) VALUES (?, ?, ?, ?, 4)",
        f"tasks.{text}", json.dumps([text], ensure_ascii=False), f"Error: {text}", text,
    )  # fmt: skip
    queue.worker()
    for args in (["list"], ["show", 1], ["status"]):
        shown = text_of(queue, *args)
        if args != ["status"]:
            assert "\\x1b[2J" in shown
    (task,) = json_of(queue, "list")
    assert task == json_of(queue, "show", 1)
    assert (task["task"], task["error_text"]) == (f"tasks.{text}", f"Error: {text}")
    assert queue.client("list", "--json").stdout.isascii()


def test_a_hostile_record_of_a_run_is_printed_with_control_characters_escaped(queue: Queue) -> None:
    queue.sql(
        "INSERT INTO jobs_queue_workers (host, group_ids, pid, started_at, ended_at, reason) "
        f"VALUES (?, ?, 1, {queue.now}, {queue.now}, ?)",
        "host\x1b[2J", "3\x1b[2J", "why\x1b[2J",
    )  # fmt: skip
    assert "host\\x1b[2J" in text_of(queue, "status")
    assert json_of(queue, "status")["runs"][0]["host"] == "host\x1b[2J"


def test_sqlite_rows_with_values_of_other_types_can_be_read(sqlite_queue: Queue) -> None:
    sqlite_queue.add(b"tasks.\xff\x1b", b"\xff\x1b")
    sqlite_queue.sql("UPDATE jobs_queue SET error_text = x'ff1b', unique_key = x'ff1b'")
    sqlite_queue.sql("INSERT INTO jobs_queue (task) VALUES (CAST(x'7461736b732eff' AS TEXT))")
    for args in (["list"], ["show", 1], ["show", 2], ["status"]):
        text_of(sqlite_queue, *args)
        json_of(sqlite_queue, *args)


@pytest.mark.parametrize("encoding", ["ascii", "cp437:strict"])
def test_a_narrow_encoding_of_standard_output_is_survived(sqlite_queue: Queue, encoding: str) -> None:
    sqlite_queue.add("tasks.🎉")
    ended = sqlite_queue.deployment.run("client.py", "list", env={"PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"})
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "tasks.\\U0001f389" in ended.stdout


def test_a_reader_that_goes_away_is_no_traceback(sqlite_queue: Queue) -> None:
    fill(sqlite_queue)
    assert_silent(sqlite_queue.worker(1, 99))
    client = sqlite_queue.folder / "client.py"
    for command in ("list --limit 1000", "show 1", "status --json", "--help"):
        ended = subprocess.run(
            ["/bin/sh", "-c", f'"$0" "$1" {command} | :', sqlite_queue.deployment.python, client],
            cwd=sqlite_queue.deployment.home,
            env={"PATH": os.defpath},
            capture_output=True,
            text=True,
            timeout=WAIT_SECONDS,
        )
        assert ended.stderr == "", command


# ---- usage

COMMANDS = {
    "init": [],
    "add": ["TASK", "ARGS_JSON", "--group", "--priority", "--delay", "--max-attempts", "--unique", "--rerun", "--bulk"],
    "schedule": ["NAME", "TASK", "--every", "--cron", "--timezone"],
    "unschedule": ["NAME"],
    "retry": ["ID", "--group", "--task", "--error", "--limit", "--dry-run"],
    "cancel": ["ID", "--group", "--task", "--error", "--limit", "--dry-run"],
    "priority": ["ID", "--group", "--task", "--error", "--limit", "--dry-run"],
    "pause": ["GROUP"],
    "resume": ["GROUP"],
    "run": ["ID"],
    "errors": ["--json"],
    "stats": ["--since", "--json"],
    "prune": ["--older-than", "--done", "--fatal", "--archived", "--dry-run"],
    "reclaim": ["--force"],
    "status": ["--json"],
    "list": ["--status", "--limit", "--json"],
    "show": ["ID", "--json"],
}


def test_help_names_every_command_that_works_and_its_options(deployment: Deployment) -> None:
    ended = deployment.client("--help")
    assert (ended.returncode, ended.stderr) == (0, "")
    named = {words[0] for line in ended.stdout.splitlines() if line.startswith("    ") and (words := line.split())}
    assert named >= set(COMMANDS)
    assert "check" not in named  # a later one
    for command, options in COMMANDS.items():
        ended = deployment.client(command, "--help")
        assert (ended.returncode, ended.stderr) == (0, "")
        for option in options:
            assert option in ended.stdout, command


def test_status_of_tables_of_another_version_says_so(queue: Queue) -> None:
    queue.sql("ALTER TABLE jobs_queue_workers DROP COLUMN previous_started_at")
    queue.sql("UPDATE jobs_queue_schema SET version = 1")
    assert_one_line(
        queue.client("status"), 1, f"have version 1, this program needs {SCHEMA_VERSION}: run client.py init"
    )


def test_wrong_usage_is_one_line_and_code_2(deployment: Deployment, capsys: pytest.CaptureFixture[str]) -> None:
    assert_one_line(deployment.client("remove"), 2, "client.py")
    for arguments in (
        [],
        ["remove"],
        ["init", "now"],
        ["status", "3"],
        ["list", "--status", "gone"],
        ["list", "--limit", "0"],
        ["list", "--limit", "-1"],
        ["list", "--group", "x"],
        ["show"],
        ["show", "x"],
        ["show", "-1"],
        ["show", str(2**64)],
        ["show", "1", "2"],
        ["evil\x1b[2J"],
    ):
        ended = run_here(main, capsys, deployment.folder, *arguments)
        assert_one_line(ended, 2, "client.py")
        assert "\x1b" not in ended.stderr
    assert not (deployment.folder / ".env").exists()


def test_tasks_file_is_not_needed_to_add(sqlite_queue: Queue) -> None:
    sqlite_queue.define("raise SystemExit\n")
    assert sqlite_queue.client("add", "tasks.note").returncode == 0
