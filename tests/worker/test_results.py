"""What tasks return, as it is kept in their rows and told to pages and operators.

Workers are real processes, on every store; where a server's limits or a library's own code is meant, they run here.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pymysql
import pytest

from taskserver import Status, TaskServer, TaskState
from taskserver.model.results import MAX_RESULT_BYTES
from tests.support.documents import sections
from tests.support.processes import assert_one_line, end_of
from tests.support.queues import Queue
from tests.support.reader import Reader
from tests.support.servers import MariaDB, MySQLServer

RESULTS = "docs/kinds/results.md"

EACH_KEEPING_MODE = pytest.mark.parametrize("mode", ["move", "mark"])
SETTINGS = {"TASKSERVER_LEASE": "600", "TASKSERVER_MAX_ATTEMPTS": "3", "TASKSERVER_BACKOFF": "fixed:500"}
"""Nothing ends or comes back while a test looks, unless it says so."""

KEPT: dict[str, Any] = {
    "none": None,
    "false": False,
    "a fraction": 0.1,
    "a text": "größe 🎉 日本語",
    "odd text": "\0 \x1b\u2028 ' \" \\ % %s ? {ids} :x -- ;",
    "a tuple": (1, (2,)),
    "a dict": {"größe": {"k": [True, None]}},
    "as long as may be, of twelve bytes each": "😀" * 5461 + "xx",
    "as long as may be, all escaped": '"' * 32767,
}
"""What tasks return, by name."""

TASKS = (
    f"""
KEPT = {KEPT!r}
"""
    + """
import time

import taskserver

def wait(name="go"):
    while not (HERE / name).exists():
        time.sleep(0.005)

def give(value):
    return value

def give_kept(name):
    return KEPT[name]

def hold(value):
    note(f"hold {value}")
    wait(f"go-{value}")
    return value

def first(number):
    return {"number": number + 1}

def second(number):
    return {"number": number * 2}

def give_something_else(error, value):
    return "what nobody keeps"

@taskserver.task(max_attempts=1, on_fatal=give_something_else)
def fail_with_an_end(value):
    raise ValueError("as it was asked to")

@taskserver.task(batch=50)
def give_each(items):
    note("give_each")
    return [OUTCOMES[item["give"]]() for item in items]

OUTCOMES = {
    "a text": lambda: "text",
    "none": lambda: None,
    "a dict": lambda: {"größe": [1]},
    "an error": lambda: ValueError("as it was asked to"),
    "false": lambda: False,
    "a set": lambda: {1},
    "a fatal error": lambda: taskserver.Fatal("never"),
    "another set": lambda: {2},
}

class Raises(dict):
    def items(self):
        note("written")
        1 / 0

class Slow(dict):
    def items(self):
        note("being written")
        wait("what never comes")

def return_what_raises():
    return Raises(a=1)

@taskserver.task(timeout=1)
def return_what_never_ends():
    note("its effect")
    return [Slow(a=1)]

@taskserver.task(batch=10, timeout=1)
def return_what_never_ends_for_most(items):
    note("its effect")
    return ["before", *[Slow(a=1)] * 9]

def give_a_set():
    return {1}

def give_what_is_too_long():
    return "x" * 65535

def give_a_loud_error():
    class Loud(dict):
        def items(self):
            raise ValueError("\\x1b[2J\\nloud\\ud800" + "x" * 300_000)

    return Loud(a=1)

def give_no_utf_8():
    return ["\\ud800"]
"""
)


def state_of(server: TaskServer, task_id: int) -> TaskState:
    state = server.get(task_id)
    assert state is not None
    return state


def table_of(mode: str) -> str:
    return "jobs_queue_done" if mode == "move" else "jobs_queue"


# ---- what is kept


@EACH_KEEPING_MODE
def test_what_a_task_returned_can_be_asked_for(queue: Queue, mode: str) -> None:
    ids = queue.server.add_tasks([{"task": "tasks.give_kept", "args": [name]} for name in KEPT])
    queue.run_quietly(mode=mode)
    texts = [text for (text,) in queue.rows("result", table_of(mode))]
    for task_id, (name, value), text in zip(ids, KEPT.items(), texts, strict=True):
        as_json = json.dumps(value, separators=(",", ":"))
        assert text == (None if value is None else as_json), name
        assert queue.server.get(task_id) == TaskState(
            task_id, "tasks.give_kept", 2, 1, json.loads(as_json), None, None
        ), name
    assert max(len(text.encode()) for text in texts if text) == MAX_RESULT_BYTES
    assert (queue.rows() == []) is (mode == "move")


def test_in_mode_delete_nothing_is_kept_nor_looked_at(queue: Queue) -> None:
    ids = [queue.server.add_task("tasks.return_what_raises"), queue.server.add_task("tasks.give", [1])]
    ids += [queue.server.add_task("tasks.give_each", {"give": name}) for name in ("a text", "a set", "a dict")]
    queue.run_quietly()
    assert [queue.server.get(task_id) for task_id in ids] == [None] * 5
    assert queue.notes() == ["give_each"]
    assert queue.rows("*", "jobs_queue_done") == []


# ---- what cannot be kept


@EACH_KEEPING_MODE
def test_a_task_whose_result_cannot_be_kept_is_done_and_that_is_told(queue: Queue, mode: str) -> None:
    """Once a run and callable; of later runs within the hour only the log has it."""
    cannot = {
        "return_what_raises": "raises ZeroDivisionError as JSON",
        "give_a_set": "is of type set, which JSON cannot hold: write str(x)",
        "give_what_is_too_long": "takes 65537 bytes as JSON; allowed: 65536",
        "give_a_loud_error": r"cannot be written as JSON: \x1b[2J\nloud\ud800xxx",
        "give_no_utf_8": "surrogates not allowed",
    }
    for run in (0, 1):
        ids = queue.server.add_tasks([{"task": f"tasks.{name}"} for name in (*cannot, "give_a_set")])
        ended = queue.worker("--mode", mode)
        assert (ended.returncode, ended.stdout) == (0, "")
        for task_id, (name, words), line in zip(ids, cannot.items(), ended.stderr.splitlines(), strict=False):
            assert f"task {task_id} tasks.{name} is done, and its result is not kept: what it returned " in line
            assert words in line, name
            assert line.endswith(" (said once an hour)"), name
            assert len(line) < 500, name
        assert len(ended.stderr.splitlines()) == (0 if run else len(cannot))
        assert queue.notes() == ["written"] * (run + 1)
        done = queue.rows("status, attempts, result, error_text", table_of(mode))
        assert done == [(2, 1, None, None)] * len(ids) * (run + 1)


# ---- kinds of tasks


@EACH_KEEPING_MODE
def test_of_a_pipeline_the_result_of_the_last_stage_is_kept(queue: Queue, mode: str) -> None:
    task_id = queue.server.add_pipeline(["tasks.first", "tasks.second"], [3])
    queue.run_quietly(1, mode=mode)
    assert queue.server.get(task_id) == TaskState(task_id, "tasks.second", 0, 0, None, None, None)
    assert queue.rows("result") == [(None,)]
    queue.run_quietly(mode=mode)
    assert queue.server.get(task_id) == TaskState(task_id, "tasks.second", 2, 1, {"number": 8}, None, None)


@EACH_KEEPING_MODE
def test_of_a_call_of_several_each_element_is_the_result_of_its_task(queue: Queue, mode: str) -> None:
    names = ["a text", "none", "a dict", "an error", "false", "a set", "a fatal error", "another set"]
    ids = queue.server.add_tasks([{"task": "tasks.give_each", "args": {"give": name}} for name in names])
    ended = queue.worker("--mode", mode)
    assert ended.returncode == 0
    not_kept, fatal = ended.stderr.splitlines()
    assert f"task {ids[5]} tasks.give_each is done, and its result is not kept" in not_kept
    assert f"task {ids[6]} tasks.give_each is fatal: Fatal: never" in fatal
    assert queue.notes() == ["give_each"]
    states = [state_of(queue.server, task_id) for task_id in ids]
    assert [state.result for state in states] == ["text", None, {"größe": [1]}, None, False, None, None, None]
    assert [state.status for state in states] == [2, 2, 2, 3, 2, 2, 4, 2]
    assert [line for line in queue.first_lines() if line] == ["ValueError: as it was asked to", "Fatal: never"]


@pytest.mark.parametrize("mode", ["delete", "move", "mark"])
def test_a_task_that_others_wait_for_keeps_its_result_too(queue: Queue, mode: str) -> None:
    parents = [
        queue.server.add_task("tasks.give", [{"of": "a parent"}]),
        *queue.server.add_tasks([{"task": "tasks.give_each", "args": {"give": "a text"}}] * 2),
    ]
    child = queue.server.add_task("tasks.give", ["of the child"], depends_on=parents)
    queue.run_quietly(3, mode=mode)
    while queue.sql("SELECT 1 FROM jobs_queue WHERE id = ? AND status <> 2", child):
        queue.run_quietly(mode=mode)
    if mode == "delete":
        assert [queue.server.get(task_id) for task_id in (*parents, child)] == [None] * 4
        return
    results = [state_of(queue.server, task_id).result for task_id in (*parents, child)]
    assert results == [{"of": "a parent"}, "text", "text", "of the child"]
    assert queue.rows("id, status", table_of(mode)) == [(task_id, 2) for task_id in (*parents, child)]


# ---- what happens to a task besides


def test_a_rerun_of_what_is_done_takes_its_result_away_but_an_older_version_does_not(queue: Queue) -> None:
    def add(value: str, version: int, **more: Any) -> int:
        return queue.server.add_task("tasks.give", [value], unique_key="one", rerun=True, version=version, **more)

    task_id = add("first", 2)
    queue.run_quietly(mode="mark")
    assert add("older", 1) == task_id
    assert add("the same", 2, delay=60) == task_id
    assert state_of(queue.server, task_id).result == "first"
    assert state_of(queue.server, task_id).status is Status.DONE
    assert add("second", 3) == task_id
    assert queue.server.get(task_id) == TaskState(task_id, "tasks.give", 0, 0, None, None, None)
    # Nor does a start leave one, as a row has it that a statement of a page put back to new.
    several = queue.server.add_tasks([{"task": "tasks.give_each", "args": {"give": "an error"}}] * 2)
    queue.sql("UPDATE jobs_queue SET task = 'tasks.nothing', result = '\"old\"' WHERE id = ?", task_id)
    queue.sql("UPDATE jobs_queue SET result = '\"old\"'")
    assert [state_of(queue.server, one).result for one in (task_id, *several)] == [None] * 3
    assert queue.worker("--mode", "mark").returncode == 0
    assert queue.rows("status, result") == [(4, None), (3, None), (3, None)]


# ---- what asks


def test_a_task_can_be_asked_for_all_its_life(queue: Queue) -> None:
    waiting = queue.server.add_task("tasks.give", [1], delay=600)
    running = queue.server.add_task("tasks.hold", ["x"])
    assert queue.server.get(waiting) == TaskState(waiting, "tasks.give", 5, 0, None, None, None)
    assert queue.server.get(running) == TaskState(running, "tasks.hold", 0, 0, None, None, None)
    process = queue.start_task("--mode", "move")
    state = state_of(queue.server, running)
    assert (state.status, state.attempts, state.is_over) == (Status.IN_PROGRESS, 1, False)
    queue.go("go-x")
    assert end_of(process) == (0, "", "")
    state = state_of(queue.server, running)
    assert (state.status, state.result, state.is_over) == (Status.DONE, "x", True)
    assert all(type(state_of(queue.server, task_id).status) is Status for task_id in (waiting, running))
    assert queue.server.get(10**6) is None


def test_what_is_no_json_counts_as_not_there_and_is_shown_harmlessly(queue: Queue) -> None:
    texts = ["beach.jpg", "", "[" * 60_000, '\x1b[2J\n\x07{"a"']
    for task_id, text in enumerate(texts, start=1):
        queue.sql("INSERT INTO jobs_queue (task, status, result) VALUES ('tasks.give', 2, ?)", text)
        assert queue.server.get(task_id) == TaskState(task_id, "tasks.give", 2, 0, None, None, None)
        shown = queue.here("show", task_id)
        assert all(line.isprintable() for line in shown.stdout.splitlines())
        assert f"  result       {text[:4]}".rstrip().replace("\x1b", r"\x1b") in shown.stdout
        assert json.loads(queue.here("show", task_id, "--json").stdout)["result"] == text


@EACH_KEEPING_MODE
def test_show_prints_the_result(queue: Queue, mode: str) -> None:
    task_id = queue.server.add_task("tasks.give", [{"größe": "two\nlines"}])
    assert "result" not in queue.client("show", task_id).stdout
    assert json.loads(queue.client("show", task_id, "--json").stdout)["result"] is None
    queue.run_quietly(mode=mode)
    assert '\n  result       {"größe":"two\\nlines"}\n' in queue.client("show", task_id).stdout
    report = json.loads(queue.client("show", task_id, "--json").stdout)
    assert (report["result"], report["archived"]) == ('{"gr\\u00f6\\u00dfe":"two\\nlines"}', mode == "move")


# ---- pages: their rights, PHP, and what the documents say


@pytest.fixture
def reader(tmp_path: Path, mysql_server: MySQLServer, php: str) -> Iterator[Reader]:
    reader = Reader(tmp_path, mysql_server, php)
    try:
        reader.install()
        for block in dict(sections("docs/security.md"))["Least rights"]:
            reader.follow(block)
        yield reader
    finally:
        reader.close()


def test_the_rights_of_a_page_that_asks_are_enough_and_no_more(reader: Reader) -> None:
    with TaskServer(reader.dsn("you_page", "page-password"), folder=reader.folder) as page:
        done, new = page.add_tasks([{"task": "tasks.greet", "args": ["Ada"]}] * 2)
        with TaskServer(reader.dsn("you_worker", "worker-password"), folder=reader.folder, mode="move") as worker:
            assert worker.run(1).done == 1
        assert (state_of(page, done).status, state_of(page, new).status) == (Status.DONE, Status.NEW)
        assert page.get(10**6) is None
    refused = ["INSERT INTO jobs_queue (task, result) VALUES ('tasks.greet', '1')"]
    for rows in ("jobs_queue", "jobs_queue_done"):
        refused += [f"SELECT {column} FROM {rows}" for column in ("args", "claim")]
        refused += [f"UPDATE {rows} SET result = '1'", f"DELETE FROM {rows}"]
    with reader.connect("you_page", "page-password") as connection, connection.cursor() as cursor:
        for statement in refused:
            with pytest.raises(pymysql.MySQLError, match="denied"):
                cursor.execute(statement)


ASK_FOR_ALL = r"""
for ($id = 1; $id < 8; $id++) {
    $places = "(SELECT id, created_at FROM jobs_queue UNION SELECT id, created_at FROM jobs_queue_done) AS places";
    $added = $pdo->query("SELECT UNIX_TIMESTAMP(created_at) FROM $places WHERE id = $id")->fetchColumn();
    echo "\n", json_encode([false, task_state($pdo, [$id, $added])]);
    echo "\n", json_encode([true, task_state($pdo, [$id, (string) ($added - 86400)])]);
}
"""


@pytest.mark.parametrize("mode", ["delete", "move", "mark"])
def test_a_php_page_finds_out_what_the_document_says(reader: Reader, mode: str) -> None:
    (block,) = dict(sections(RESULTS))["From SQL"]
    assert block.kind == "php"
    (reader.folder / "tasks.py").write_text(
        "def give(value): return value\ndef fail(): raise ValueError\ndef once(): 1 / 0\n"
    )
    with TaskServer(reader.dsn("you_worker", "worker-password"), folder=reader.folder) as server:
        values = [{"größe": [1, None]}, False, None]
        server.add_tasks(
            [{"task": "tasks.give", "args": [value]} for value in values]
            + [{"task": "tasks.fail"}, {"task": "tasks.once", "max_attempts": 1}, {"task": "tasks.give", "delay": 600}]
        )
    subprocess.run(
        [sys.executable, str(reader.folder / "worker.py"), "--mode", mode], check=True, capture_output=True, timeout=60
    )
    reader.execute("UPDATE jobs_queue SET result = '\"old\"' WHERE status <> 2")
    reader.follow(block._replace(text="$pdo->exec('SET NAMES utf8mb4');\n" + block.text + ASK_FOR_ALL))
    first, *answers = reader._printed.splitlines()
    assert first == "The report is being made."
    told = [json.loads(line) for line in answers]
    assert [row for id_came_again, row in told if id_came_again] == [None] * 7
    told = [row for id_came_again, row in told if not id_came_again]
    assert told[:3] == (
        [None] * 3 if mode == "delete" else [{"result": value, "status": 2, "error_text": None} for value in values]
    )
    assert [(row["status"], row["result"]) for row in told[3:6]] == [(3, None), (4, None), (5, None)]
    assert told[4]["error_text"].startswith("ZeroDivisionError: division by zero\n")
    assert told[6]["status"] == 0  # the one that the page added


# ---- a server's limits, and connections that break

LONG = """
import taskserver

LONG = '"' * 30 * 1024  # each is two bytes of JSON

def alone():
    return LONG

@taskserver.task(batch=40)
def together(items):
    return [LONG] * len(items)

def short():
    return "short"
"""
EACH_WAY = pytest.mark.parametrize("name", ["alone", "together"])


def run_with_packet(mariadb: MariaDB, folder: Path, size: int, add: Callable[[TaskServer], list[int]]) -> Any:
    """Adds and runs tasks of LONG in mode mark on a server that takes statements of so many bytes.

    What the run did, and the results of those that were added.
    """
    (folder / "long_results.py").write_text(LONG)
    [[packet]] = mariadb.execute("SELECT @@GLOBAL.max_allowed_packet")
    with mariadb.database() as name:
        try:
            mariadb.execute(f"SET GLOBAL max_allowed_packet = {size}")
            dsn = mariadb.dsn(name)
            with TaskServer(dsn, modules="long_results", folder=folder, mode="mark") as server:
                server.create_tables()
                ids = add(server)
                result = server.run()
        finally:
            mariadb.execute(f"SET GLOBAL max_allowed_packet = {packet}")
        with TaskServer(dsn) as server:
            return result, [state_of(server, task_id) for task_id in ids]


@EACH_WAY
def test_a_result_longer_than_the_server_takes_is_dropped_and_its_task_is_done(
    mariadb: MariaDB, tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    def add(server: TaskServer) -> list[int]:
        first = server.add_task("long_results.short")
        long = [server.add_task(f"long_results.{name}") for _ in range(3)]
        return [first, *long, server.add_task("long_results.short")]

    ran, states = run_with_packet(mariadb, tmp_path, 48 * 1024, add)
    assert (ran.done, ran.failed, ran.fatal, ran.lost) == (5, 0, 0, 0)
    assert [(state.status, state.attempts) for state in states] == [(Status.DONE, 1)] * 5
    assert [state.result for state in states] == ["short", None, None, None, "short"]
    [told] = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert told.startswith(f"task {states[1].id} long_results.{name} is done, and its result is not kept")
    assert "longer than the server takes (max_allowed_packet)" in told


@EACH_KEEPING_MODE
def test_a_timeout_that_strikes_while_a_result_is_written_costs_the_result_alone(queue: Queue, mode: str) -> None:
    task_id = queue.server.add_task("tasks.return_what_never_ends")
    next_id = queue.server.add_task("tasks.give", ["the next one"])
    words = ("tasks.return_what_never_ends is done, and its result is not kept", "raises TaskInterrupted as JSON")
    assert_one_line(queue.worker("--mode", mode), 0, *words)
    queue.run_quietly(mode=mode)
    assert queue.notes() == ["its effect", "being written"]
    assert queue.server.get(task_id) == TaskState(task_id, "tasks.return_what_never_ends", 2, 1, None, None, None)
    assert state_of(queue.server, next_id).result == "the next one"
