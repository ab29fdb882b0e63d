"""Pipelines as their producers and operators see them: one row that becomes new for one callable after the other.

Workers are real processes, on every store. A race shows that it raced: several workers ran stages of one pipeline.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from taskserver import TaskServer
from taskserver.cli.client import main
from taskserver.errors import BadTask
from taskserver.model.attempt import Finish, NextStage, Outcome, Start
from taskserver.model.pipeline import MAX_STAGES, MAX_STAGES_BYTES, next_stage
from taskserver.model.task import ClaimedTask
from tests.support.deployment import ROOT
from tests.support.processes import assert_silent, end_of, freeze, kill, run_here, thaw, wait_until
from tests.support.proxy import Proxy, contains
from tests.support.queues import LONG_AGO, Queue
from tests.support.servers import MySQLServer
from tests.support.websites import EXAMPLES, WEB_PASSWORD, Page, shown_in_comment, web_user

MODES = ("delete", "move", "mark")
EACH_MODE = pytest.mark.parametrize("mode", MODES)
ONE_MODE = pytest.mark.parametrize(
    "mode", ["mark", *(pytest.param(mode, marks=pytest.mark.long) for mode in ("delete", "move"))]
)
"""Where the mode should change nothing."""


def each_stage(*quick: int, count: int = 3) -> pytest.MarkDecorator:
    """Of a pipeline; those that are not quick in `make test-long`."""
    stages = [pytest.param(stage, marks=[] if stage in quick else [pytest.mark.long]) for stage in range(count)]
    return pytest.mark.parametrize("stage", stages)


OTHER_GROUP = 4294967295
"""Without a task: whoever works for it takes back what is due, and runs nothing."""
SETTINGS = {"TASKSERVER_LEASE": "600", "TASKSERVER_MAX_ATTEMPTS": "3", "TASKSERVER_BACKOFF": "fixed:500"}
"""Nothing ends or comes back while a test looks, unless it says so."""

TASKS = """
import json
import os
import sys
import time
from collections import namedtuple

import taskserver

note_text = note


def note(*args, **kwargs):
    note_text(json.dumps([args, kwargs], sort_keys=True))


def first(*args, **kwargs):
    note_text("first")
    return {"by": "first"}


def second(by):
    note_text(f"second, by {by}")
    return ["second", 2]


def third(name, number):
    note_text(f"third, by {name} {number}")


@taskserver.task(max_attempts=2)
def twice_at_most(**kwargs):
    note_text("twice_at_most")
    raise ValueError("as it was asked to")


def fail(*args, **kwargs):
    note_text("fail")
    raise ValueError("as it was asked to")


def fail_until(*args, **kwargs):
    note_text("fail_until")
    if not (HERE / "mended").exists():
        raise ValueError("not yet")
    return kwargs or list(args)


def end_instead(error, **kwargs):
    note_text(f"end_instead: {error}")


@taskserver.task(max_attempts=1, on_fatal=end_instead)
def fail_with_an_end(**kwargs):
    note_text("fail_with_an_end")
    raise ValueError("as it was asked to")


def wait(name="go"):
    while not (HERE / name).exists():
        time.sleep(0.005)


def hold_1(*args):
    note_text(f"hold_1 {json.dumps(args)}")
    wait("go")
    return list(args)


def hold_2(*args):
    note_text(f"hold_2 {json.dumps(args)}")
    wait("go2")
    return list(args)


def hold_3(*args):
    note_text(f"hold_3 {json.dumps(args)}")
    wait("go3")


def passes(pipeline, stage):
    with open(HERE / "passes", "a") as file:
        file.write(f"{pipeline} {stage} {os.getpid()}\\n")
    return [pipeline, stage + 1]


def passes_on(pipeline, stage):
    return passes(pipeline, stage)


def passes_together(pipeline, stage):
    passed = passes(pipeline, stage)
    wait(f"go{stage}")
    return passed


@taskserver.task(timeout=1)
def too_long(*args):
    note_text("too_long")
    wait("what never comes")


def _hidden(*args):
    note_text("hidden")


class Slow(dict):
    def items(self):
        wait("what never comes")


@taskserver.task(timeout=1)
def return_what_never_ends():
    return Slow(a=1)


class Hostile:
    def __repr__(self):
        raise RuntimeError("no text")


class Loud:
    def __repr__(self):
        return "\\x1b[2J" + "loud " * 1000


class Own(dict):
    pass


class Raises(dict):
    def items(self):
        1 / 0

    keys = __iter__ = items


Point = namedtuple("Point", "x y")


def nested(depth):
    value = []
    for _ in range(depth):
        value = [value]
    return value


async def coroutine():
    note_text("body")


def generator():
    note_text("body")
    yield 1


GIFTS = {
    # what can be arguments, and
    "dict": lambda: {"größe 🎉": [1, -2.5, True, None, {"k": "v"}]},
    "list": lambda: [1, "two", [3]],
    "tuple": lambda: (1, 2),
    "None": lambda: None,
    "an empty dict": lambda: {},
    "an empty list": lambda: [],
    "a dict's subclass": lambda: Own(a=1),
    "a named tuple": lambda: Point(1, 2),
    "a megabyte": lambda: ["x" * (1024 * 1024 - 4)],
    "odd text": lambda: ["\\x00 \\x1b \\u2028 ' \\" \\\\ %s ?"],
    "nested as deep as may be": lambda: nested(499),
    # what cannot
    "a text": lambda: "",
    "a number": lambda: 0,
    "false": lambda: False,
    "a set": lambda: {1},
    "bytes": lambda: b"{}",
    "an object without text": Hostile,
    "an object with a loud text": Loud,
    "keys that are numbers": lambda: {1: 2},
    "not a number": lambda: [float("nan")],
    "infinite": lambda: {"a": float("inf")},
    "too large": lambda: ["x" * (1024 * 1024 - 3)],
    "too deep": lambda: nested(500),
    "much too deep": lambda: nested(100_000),
    "a circle": lambda: (lambda made: made.append(made) or made)([]),
    "an object within": lambda: {"a": [Hostile()]},
    "no UTF-8": lambda: ["\\ud800"],
    "what raises as it is written": lambda: Raises(a=1),
    "a class": lambda: dict,
    # what did not run
    "a generator": generator,
    "a coroutine": coroutine,
}


def give(name):
    return GIFTS[name]()
"""


@pytest.fixture
def server(queue: Queue) -> Iterator[TaskServer]:
    """A producer's, in mode mark."""
    with TaskServer(queue.dsn, folder=queue.folder, mode="mark", lease=600, max_attempts=3) as server:
        yield server


@pytest.fixture
def one_server(one_queue: Queue) -> Iterator[TaskServer]:
    with TaskServer(one_queue.dsn, folder=one_queue.folder, mode="mark", lease=600, max_attempts=3) as server:
        yield server


STATE = "status, stage, task, attempts"
THREE = ["tasks.first", "tasks.second", "tasks.third"]
THREE_RAN = ["first", "second, by first", "third, by second 2"]
HOLDS = ["tasks.hold_1", "tasks.hold_2", "tasks.hold_3"]
GO = ("go", "go2", "go3")


def hold_at(queue: Queue, stage: int, *args: object, **env: str) -> Any:
    """A worker in the midst of this stage of the one pipeline of HOLDS."""
    for name in GO[:stage]:
        queue.go(name)
    process = queue.start(*args, **env)
    wait_until(lambda: any(line.startswith(f"hold_{stage + 1}") for line in queue.notes()))
    return process


def go_on(queue: Queue) -> None:
    for name in GO:
        queue.go(name)


def assert_ends_well(process: Any) -> None:
    assert end_of(process) == (0, "", "")


# ---- the way of one row


@EACH_MODE
def test_one_row_moves_through_its_stages_and_then_ends_as_the_mode_says(
    queue: Queue, server: TaskServer, mode: str
) -> None:
    task_id = server.add_pipeline(THREE, {"a": 1})
    assert_silent(queue.worker("--mode", mode))
    assert queue.notes() == THREE_RAN
    ends = {"delete": [], "move": queue.rows(f"id, {STATE}", "jobs_queue_done"), "mark": queue.rows(f"id, {STATE}")}
    assert ends[mode] == ([] if mode == "delete" else [(task_id, 2, 2, "tasks.third", 1)])
    assert mode == "mark" or queue.rows() == []
    assert queue.sql("SELECT taken, done FROM jobs_queue_workers") == [(3, 3)]


def test_between_two_stages_the_row_is_new_as_if_it_had_been_added_for_the_next_one(
    queue: Queue, server: TaskServer
) -> None:
    second = {"task": "tasks.second", "group_id": 5, "priority": -3, "max_attempts": 7}
    server.add_pipeline(["tasks.first", second, "tasks.third"], group_id=2, priority=9, max_attempts=4)
    columns = f"{STATE}, args, group_id, priority, max_attempts, due_at, claim, error_text, started_at, finished_at"
    nothing = (None,) * 5
    assert queue.rows(columns) == [(0, 0, "tasks.first", 0, None, 2, 9, 4, *nothing)]
    ((created, before),) = queue.rows("created_at, updated_at")
    assert_silent(queue.worker(1))
    assert queue.rows(columns) == [(0, 1, "tasks.second", 0, '{"by":"first"}', 5, -3, 7, *nothing)]
    ((created_still, after),) = queue.rows("created_at, updated_at")
    assert created_still == created
    assert after > before
    assert_silent(queue.worker(1))
    assert queue.rows(columns) == [(0, 2, "tasks.third", 0, '["second",2]', 2, 9, 4, *nothing)]
    assert_silent(queue.worker(1))
    assert queue.rows() == []


def test_what_a_stage_leaves_out_by_sql_stays_as_the_row_has_it(queue: Queue) -> None:
    queue.sql(
        "INSERT INTO jobs_queue (task, args, group_id, priority, max_attempts, stages) VALUES (?, ?, ?, ?, ?, ?)",
        *("tasks.first", None, 3, 10, 7, '["tasks.first", {"task": "tasks.second", "group_id": 4}, "tasks.third"]'),
    )
    assert_silent(queue.worker(1))
    columns = "task, group_id, priority, max_attempts"
    assert queue.rows(columns) == [("tasks.second", 4, 10, None)]
    assert_silent(queue.worker(1))
    assert queue.rows(columns) == [("tasks.third", 4, 10, None)]
    assert_silent(queue.worker(1))
    assert queue.notes() == THREE_RAN


def test_each_stage_belongs_to_the_workers_of_its_group(one_queue: Queue, one_server: TaskServer) -> None:
    stages = [{"task": task, "group_id": group} for task, group in zip(THREE, (1, 2, 1), strict=True)]
    one_server.add_pipeline(stages)
    for groups, stage in [(2, 0), (1, 1), (1, 1), ("3,4", 1), (2, 2), (2, 2)]:
        assert_silent(one_queue.worker(0, groups))
        assert one_queue.rows("stage") == [(stage,)]
    assert_silent(one_queue.worker(0, "1,2"))
    assert (one_queue.notes(), one_queue.rows()) == (THREE_RAN, [])


def test_each_stage_has_attempts_and_limits_of_its_own(one_queue: Queue, one_server: TaskServer) -> None:
    """That of its description, else that of its callable, else that of the settings."""
    one_server.add_pipeline(["tasks.first", "tasks.twice_at_most"])
    one_server.add_pipeline([{"task": "tasks.first", "max_attempts": 1}, "tasks.fail"])
    one_server.add_pipeline(["tasks.first", {"task": "tasks.twice_at_most", "max_attempts": 1}])
    for _ in range(4):
        one_queue.worker()
        one_queue.end_backoffs()
    assert one_queue.rows("status, stage, attempts, max_attempts") == [(4, 1, 2, 2), (4, 1, 3, 3), (4, 1, 1, 1)]
    assert sorted(one_queue.notes()) == ["fail"] * 3 + ["first"] * 3 + ["twice_at_most"] * 3


def test_a_pipeline_of_one_stage_is_a_task(one_queue: Queue, one_server: TaskServer) -> None:
    one_server.add_pipeline(["tasks.note"], [1])
    assert_silent(one_queue.worker())
    assert (one_queue.notes(), one_queue.rows()) == (["[[1], {}]"], [])


def test_as_many_stages_as_may_be_run_in_their_order(one_queue: Queue, one_server: TaskServer) -> None:
    one_server.add_pipeline(["tasks.passes", "tasks.passes_on"] * (MAX_STAGES // 2), [7, 0])
    assert_silent(one_queue.worker())
    assert [one[:2] for one in passes(one_queue)] == [(7, stage) for stage in range(MAX_STAGES)]
    assert one_queue.rows() == []


def test_many_pipelines_and_tasks_are_added_at_once_and_all_run(queue: Queue, server: TaskServer) -> None:
    pipelines = [{"stages": ["tasks.passes", "tasks.passes_on"], "args": [number, 0]} for number in range(300)]
    ids = server.add_tasks([*pipelines, {"task": "tasks.passes", "args": [300, 0]}])
    assert len(set(ids)) == 301
    assert_silent(queue.worker())
    assert sorted(one[:2] for one in passes(queue)) == sorted(
        [(number, stage) for number in range(300) for stage in (0, 1)] + [(300, 0)]
    )


def passes(queue: Queue) -> list[tuple[int, ...]]:
    """The pipeline, the stage and the process of each call that began."""
    path = queue.folder / "passes"
    return [tuple(map(int, line.split())) for line in path.read_text().splitlines()] if path.exists() else []


def pids_in(queue: Queue, stage: int) -> set[int]:
    return {pid for _, at, pid in passes(queue) if at == stage}


# ---- what a stage returns

ARRIVES = {
    "dict": [[], {"größe 🎉": [1, -2.5, True, None, {"k": "v"}]}],
    "list": [[1, "two", [3]], {}],
    "tuple": [[1, 2], {}],
    "None": [[], {}],
    "an empty dict": [[], {}],
    "an empty list": [[], {}],
    "a dict's subclass": [[], {"a": 1}],
    "a named tuple": [[1, 2], {}],
    "a megabyte": [["x" * (1024 * 1024 - 4)], {}],
    "odd text": [["\x00 \x1b \u2028 ' \" \\ %s ?"], {}],
}
CANNOT = {
    "a text": "''",
    "a number": "0",
    "false": "False",
    "a set": "{1}",
    "bytes": "b'{}'",
    "an object without text": "a Hostile that cannot be shown",
    "an object with a loud text": "\x1b[2Jloud",
    "keys that are numbers": "has keys that are no text",
    "not a number": "cannot be written as JSON",
    "infinite": "cannot be written as JSON",
    "too large": "takes 1048577 bytes as JSON; allowed: 1048576",
    "too deep": "is nested more than 500 deep",
    "much too deep": "what it returned",
    "a circle": "cannot be written as JSON",
    "an object within": "cannot be written as JSON",
    "no UTF-8": "cannot be written as JSON",
    "what raises as it is written": "raises ZeroDivisionError as JSON",
    "a class": "<class 'dict'>",
}
DID_NOT_RUN = {"a generator": "it returned a generator", "a coroutine": "it returned a coroutine"}


def test_what_a_stage_returns_arrives_as_the_arguments_of_the_next_one(queue: Queue, server: TaskServer) -> None:
    server.add_tasks([{"stages": ["tasks.give", "tasks.note"], "args": [name]} for name in ARRIVES])
    assert_silent(queue.worker())
    assert [json.loads(line) for line in queue.notes()] == list(ARRIVES.values())
    assert queue.rows() == []


def test_what_is_nested_as_deep_as_may_be_arrives(one_queue: Queue, one_server: TaskServer) -> None:
    one_server.add_pipeline(["tasks.give", "tasks.note"], ["nested as deep as may be"])
    assert_silent(one_queue.worker())
    assert one_queue.notes() == [f"[{'[' * 500}{']' * 500}, {{}}]"]


def test_what_can_be_no_arguments_is_fatal_in_a_sentence_that_says_what_can(
    one_queue: Queue, one_server: TaskServer
) -> None:
    one_server.add_tasks([{"stages": ["tasks.give", "tasks.note"], "args": [name]} for name in CANNOT])
    one_server.add_task("tasks.note", ["the next one"])
    assert one_queue.worker().returncode == 0
    assert one_queue.rows(STATE) == [(4, 0, "tasks.give", 1)] * len(CANNOT)
    for (name, words), line in zip(CANNOT.items(), one_queue.first_lines(), strict=True):
        assert line.startswith("Fatal: what it returned"), name
        assert words in line, name
        assert "the next stage, tasks.note, gets an object as keywords" in line, name
    assert one_queue.notes() == ['[["the next one"], {}]']


def test_the_last_stage_may_return_anything(one_queue: Queue, one_server: TaskServer) -> None:
    one_server.add_tasks([{"stages": ["tasks.note", "tasks.give"], "args": []} for _ in CANNOT])
    for number, name in enumerate(CANNOT, start=1):
        one_queue.sql(
            "UPDATE jobs_queue SET task = 'tasks.give', stage = 1, args = ? WHERE id = ?", f'["{name}"]', number
        )
    assert_silent(one_queue.worker())
    assert one_queue.rows() == []


def test_a_stage_whose_body_did_not_run_is_fatal(one_queue: Queue, one_server: TaskServer) -> None:
    one_server.add_tasks([{"stages": ["tasks.give", "tasks.note"], "args": [name]} for name in DID_NOT_RUN])
    assert one_queue.worker().returncode == 0
    assert one_queue.rows(STATE) == [(4, 0, "tasks.give", 1)] * len(DID_NOT_RUN)
    for words, line in zip(DID_NOT_RUN.values(), one_queue.first_lines(), strict=True):
        assert line.startswith(f"Fatal: {words}")
    assert one_queue.notes() == []


def test_what_cannot_be_passed_to_the_next_stage_is_its_fatal_error_and_not_the_first_one_s(
    one_queue: Queue, one_server: TaskServer
) -> None:
    one_server.add_pipeline(["tasks.give", "tasks.second"], ["list"])
    assert one_queue.worker().returncode == 0
    assert one_queue.rows(STATE) == [(4, 1, "tasks.second", 0)]
    assert "tasks.second(by) does not take these arguments" in one_queue.errors()[0]


def test_the_time_of_a_stage_includes_that_of_reading_what_it_returned(
    one_queue: Queue, one_server: TaskServer
) -> None:
    one_server.add_pipeline(["tasks.return_what_never_ends", "tasks.note"])
    one_server.add_task("tasks.note", ["the next one"])
    assert_silent(one_queue.worker())
    assert one_queue.rows(STATE) == [(3, 0, "tasks.return_what_never_ends", 1)]
    assert one_queue.first_lines() == [TOO_LONG]
    assert one_queue.notes() == ['[["the next one"], {}]']


# ---- what fails

TOO_LONG = "TaskInterrupted: it ran for longer than its timeout of 1 s"


BROKEN = "1 / 0"
WHOLE = "from tasks import note\n\n\ndef work(by):\n    note(by)\n"


NOT_ALLOWED = ["os.system", "tasks._hidden", "tasks.nothing", "tasks.json.dumps", "other.work", "tasks.Own.items"]


def test_each_stage_passes_the_allow_list_when_its_turn_comes(one_queue: Queue, one_server: TaskServer) -> None:
    one_queue.deployment.write_tasks("def work(by): raise SystemExit", "other.py")
    one_server.add_tasks([{"stages": ["tasks.first", name, "tasks.third"]} for name in NOT_ALLOWED])
    one_server.add_task("tasks.note", ["the next one"])
    errors = one_queue.worker().stderr
    assert all(f"{name} is fatal: " in errors for name in NOT_ALLOWED)
    assert one_queue.rows(STATE) == [(4, 1, name, 0) for name in NOT_ALLOWED]
    assert sorted(one_queue.notes()) == ['[["the next one"], {}]', *["first"] * len(NOT_ALLOWED)]


def test_a_broken_module_of_a_later_stage_is_a_failed_attempt_of_that_one(
    one_queue: Queue, one_server: TaskServer
) -> None:
    one_queue.deployment.write_tasks(BROKEN, "later.py")
    one_server.add_pipeline(["tasks.first", "later.work", "tasks.note"])
    modules = {"TASKSERVER_MODULES": "tasks,later"}
    assert "later" in one_queue.worker(**modules).stderr
    assert one_queue.rows(STATE) == [(3, 1, "later.work", 1)]
    assert "ZeroDivisionError" in one_queue.errors()[0]
    one_queue.deployment.write_tasks(WHOLE, "later.py")
    one_queue.end_backoffs()
    assert_silent(one_queue.worker(**modules))
    assert one_queue.notes() == ["first", '[["first"], {}]', "[[], {}]"]


def test_a_failed_stage_is_retried_with_what_the_one_before_it_returned(
    one_queue: Queue, one_server: TaskServer
) -> None:
    one_server.add_pipeline(["tasks.first", "tasks.fail_until", "tasks.note"])
    assert_silent(one_queue.worker())
    assert one_queue.rows(f"{STATE}, args") == [(3, 1, "tasks.fail_until", 1, '{"by":"first"}')]
    one_queue.go("mended")
    one_queue.end_backoffs()
    assert_silent(one_queue.worker())
    assert one_queue.notes() == ["first", "fail_until", "fail_until", '[[], {"by": "first"}]']


def test_a_retry_by_hand_resumes_at_the_stage_that_failed(queue: Queue, server: TaskServer) -> None:
    task_id = server.add_pipeline(["tasks.first", {"task": "tasks.fail_until", "max_attempts": 1}, "tasks.note"])
    assert "is fatal: ValueError: not yet" in queue.worker().stderr
    assert queue.rows(STATE) == [(4, 1, "tasks.fail_until", 1)]
    queue.go("mended")
    assert server.retry(task_id) == 1
    assert queue.rows(STATE) == [(0, 1, "tasks.fail_until", 0)]
    assert_silent(queue.worker())
    assert queue.notes() == ["first", "fail_until", "fail_until", '[[], {"by": "first"}]']


@EACH_MODE
def test_what_is_called_when_a_stage_failed_for_good_ends_the_whole_pipeline(
    one_queue: Queue, one_server: TaskServer, mode: str
) -> None:
    one_server.add_pipeline(["tasks.first", "tasks.fail_with_an_end", "tasks.third"])
    ended = one_queue.worker("--mode", mode)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert one_queue.notes() == ["first", "fail_with_an_end", "end_instead: as it was asked to"]
    where = {"delete": "jobs_queue", "move": "jobs_queue_done", "mark": "jobs_queue"}[mode]
    assert one_queue.rows(STATE, where) == ([] if mode == "delete" else [(2, 1, "tasks.fail_with_an_end", 1)])


def test_a_stage_that_takes_too_long_fails_alone(one_queue: Queue, one_server: TaskServer) -> None:
    one_server.add_pipeline(["tasks.give", "tasks.too_long", "tasks.note"], ["list"])
    assert_silent(one_queue.worker())
    assert one_queue.rows(STATE) == [(3, 1, "tasks.too_long", 1)]
    assert one_queue.first_lines() == [TOO_LONG]


# ---- what is done to it meanwhile


@each_stage(0, 2)
@ONE_MODE
def test_a_rerun_while_a_stage_runs_begins_anew_when_that_one_has_ended(
    queue: Queue, server: TaskServer, mode: str, stage: int
) -> None:
    task_id = server.add_pipeline(HOLDS, ["old"], unique_key="one")
    process = hold_at(queue, stage, "--mode", mode)
    for number in range(3):
        assert server.add_pipeline(HOLDS, [f"new {number}"], unique_key="one", rerun=True) == task_id
    assert queue.rows("status, attempts, stage") == [(1, 0, 0)]
    go_on(queue)
    assert_ends_well(process)
    old = [f'hold_{number} ["old"]' for number in range(1, stage + 2)]
    assert queue.notes() == [*old, *(f'hold_{number} ["new 2"]' for number in (1, 2, 3))]
    assert queue.rows(STATE) == ([(2, 2, "tasks.hold_3", 1)] if mode == "mark" else [])


AT_THE_THIRD = {
    "between": "status = 0",
    "claimed": "status = 1, claim = 17, due_at = '2037-01-01 00:00:00.000000'",
    "waiting": "status = 5, due_at = '2037-01-01 00:00:00.000000'",
    "error": "status = 3, attempts = 1, due_at = '2037-01-01 00:00:00.000000', error_text = 'E: e'",
    "fatal": "status = 4, attempts = 3, error_text = 'E: e'",
    "cancelled": "status = 4, error_text = 'cancelled'",
    "done": "status = 2, attempts = 1",
}


def test_a_rerun_of_a_pipeline_that_does_not_run_begins_anew(queue: Queue, server: TaskServer) -> None:
    for state, change in AT_THE_THIRD.items():
        server.add_pipeline(THREE, unique_key=state)
        queue.sql(f"UPDATE jobs_queue SET stage = 2, task = 'tasks.third', {change} WHERE unique_key = ?", state)
    for state in AT_THE_THIRD:
        server.add_pipeline(["tasks.note", "tasks.first"], [state], unique_key=state, rerun=True)
    assert queue.rows(f"{STATE}, args") == [(0, 0, "tasks.note", 0, f'["{state}"]') for state in AT_THE_THIRD]
    assert_silent(queue.worker())
    assert sorted(queue.notes()) == sorted([f'[["{state}"], {{}}]' for state in AT_THE_THIRD] + ["first"] * 7)
    assert queue.rows() == []


@each_stage(1)
def test_a_rerun_as_a_plain_task_leaves_nothing_of_the_stages(queue: Queue, server: TaskServer, stage: int) -> None:
    server.add_pipeline(HOLDS, ["old"], unique_key="one")
    process = hold_at(queue, stage)
    server.add_task("tasks.note", ["plain"], unique_key="one", rerun=True)
    go_on(queue)
    assert_ends_well(process)
    assert queue.notes()[stage + 1 :] == ['[["plain"], {}]']
    assert queue.rows() == []


def test_a_plain_task_that_runs_again_as_a_pipeline_has_its_stages(queue: Queue, server: TaskServer) -> None:
    server.add_task("tasks.hold_1", ["plain"], unique_key="one")
    process = hold_at(queue, 0)
    server.add_pipeline(THREE, unique_key="one", rerun=True)
    go_on(queue)
    assert_ends_well(process)
    assert queue.notes()[1:] == THREE_RAN
    assert queue.rows() == []


BEGINS_ANEW = ("task", "args", "stages", "max_attempts")
RERUN_BY_SQL = {
    True: """
        ON CONFLICT (unique_key) DO UPDATE SET {given}, stage = 0, attempts = 0, error_text = NULL,
            status = CASE WHEN status = 1 AND started_at IS NOT NULL THEN 1 ELSE 0 END,
            due_at = CASE WHEN status = 1 AND started_at IS NOT NULL THEN due_at END
    """,
    False: """
        ON DUPLICATE KEY UPDATE {given}, stage = 0, attempts = 0, error_text = NULL,
            status = IF(status = 1 AND started_at IS NOT NULL, 1, 0),
            due_at = IF(status = 1 AND started_at IS NOT NULL, due_at, NULL)
    """,
}


@pytest.mark.parametrize("is_running", [True, False])
def test_a_rerun_by_sql_that_sets_the_stages_too_begins_anew(
    queue: Queue, server: TaskServer, is_running: bool
) -> None:
    """As docs/kinds/pipelines.md says, whether a stage runs or not."""
    server.add_pipeline(["tasks.note", {"task": "tasks.hold_1", "max_attempts": 1}], ["old"], unique_key="one")
    if is_running:
        process = hold_at(queue, 0)
    else:
        assert_silent(queue.worker(1))
    excluded = "excluded.{0}" if queue.is_sqlite else "VALUES({0})"
    given = ", ".join(f"{column} = {excluded.format(column)}" for column in BEGINS_ANEW)
    queue.sql(
        f"INSERT INTO jobs_queue (unique_key, {', '.join(BEGINS_ANEW)}) VALUES (?, ?, ?, ?, ?) "
        + RERUN_BY_SQL[queue.is_sqlite].format(given=given),
        *("one", "tasks.note", '["new"]', '["tasks.note", "tasks.first"]', None),
    )
    go_on(queue)
    if is_running:
        assert_ends_well(process)
    else:
        assert_silent(queue.worker())
    assert queue.notes()[-2:] == ['[["new"], {}]', "first"]
    assert queue.rows() == []


def test_an_older_version_leaves_a_pipeline_at_its_stage(one_queue: Queue, one_server: TaskServer) -> None:
    one_server.add_pipeline(THREE, unique_key="one", rerun=True, version=7)
    assert_silent(one_queue.worker(1))
    before = one_queue.rows()
    one_server.add_pipeline(["tasks.note"], unique_key="one", rerun=True, version=6)
    assert one_queue.rows() == before
    assert_silent(one_queue.worker())
    assert one_queue.notes() == THREE_RAN


def test_the_task_of_a_schedule_has_no_stages_of_whatever_held_its_key(queue: Queue, server: TaskServer) -> None:
    server.schedule("tidy", "tasks.note", ["tidied"], every=3600)
    server.add_pipeline(["tasks.first", "tasks.fail"], unique_key="schedule:tidy", max_attempts=1)
    assert queue.worker().returncode == 0
    assert queue.rows(STATE) == [(4, 1, "tasks.fail", 1)]
    queue.sql(f"UPDATE jobs_queue_schedules SET next_at = '{LONG_AGO}'")
    assert_silent(queue.worker(0, OTHER_GROUP))
    assert queue.rows(f"{STATE}, stages") == [(0, 0, "tasks.note", 0, None)]
    assert_silent(queue.worker())
    assert queue.notes()[2:] == ['[["tidied"], {}]']
    assert queue.rows() == []


@each_stage(1, count=2)
@ONE_MODE
def test_a_cancel_while_a_stage_runs_ends_the_pipeline_and_a_retry_resumes_there(
    queue: Queue, server: TaskServer, mode: str, stage: int
) -> None:
    """Also where that stage succeeds before its worker hears of it."""
    task_id = server.add_pipeline(HOLDS, ["x"])
    process = hold_at(queue, stage, "--mode", mode)
    assert server.cancel(task_id) == 1
    go_on(queue)
    assert end_of(process)[0] == 0
    assert queue.rows("status, stage, task, error_text, claim") == [(4, stage, HOLDS[stage], "cancelled", None)]
    assert_silent(queue.worker("--mode", mode))
    assert len(queue.notes()) == stage + 1
    assert server.retry(task_id) == 1
    assert_silent(queue.worker("--mode", mode))
    assert queue.notes()[stage + 1 :] == [f'hold_{number} ["x"]' for number in range(stage + 1, 4)]


def test_a_cancel_interrupts_the_running_stage(one_queue: Queue, one_server: TaskServer) -> None:
    task_id = one_server.add_pipeline(["tasks.first", "tasks.hold_1", "tasks.third"])
    one_queue.sql("UPDATE jobs_queue SET stage = 1, task = 'tasks.hold_1', args = NULL")
    process = hold_at(one_queue, 0, TASKSERVER_LEASE="1")
    assert one_server.cancel(task_id) == 1
    assert end_of(process)[2] == "task 1 tasks.hold_1 is fatal: cancelled\n"
    assert one_queue.rows("status, stage, error_text") == [(4, 1, "cancelled")]


def test_a_cancelled_last_stage_that_succeeds_first_is_done(one_queue: Queue, one_server: TaskServer) -> None:
    task_id = one_server.add_pipeline(HOLDS, ["x"])
    process = hold_at(one_queue, 2, "--mode", "mark")
    assert one_server.cancel(task_id) == 1
    go_on(one_queue)
    assert_ends_well(process)
    assert one_queue.rows("status, stage, error_text") == [(2, 2, None)]


def test_a_pipeline_is_cancelled_between_two_stages(one_queue: Queue, one_server: TaskServer) -> None:
    task_id = one_server.add_pipeline(THREE)
    assert_silent(one_queue.worker(1))
    assert one_server.cancel(task_id) == 1
    assert_silent(one_queue.worker())
    assert one_queue.rows("status, stage, error_text") == [(4, 1, "cancelled")]
    assert one_queue.notes() == ["first"]


# ---- workers that vanish, and connections that break


@each_stage(1)
@ONE_MODE
def test_a_worker_that_is_killed_in_a_stage_costs_an_attempt_of_that_one(
    queue: Queue, server: TaskServer, mode: str, stage: int
) -> None:
    server.add_pipeline(HOLDS, ["x"])
    kill(hold_at(queue, stage, "--mode", mode))
    go_on(queue)
    queue.end_leases()
    assert_silent(queue.worker("--mode", mode))
    assert queue.rows(STATE) == [(3, stage, HOLDS[stage], 1)]
    assert queue.errors()[0].startswith("lost: ")
    queue.end_backoffs()
    assert_silent(queue.worker("--mode", mode))
    ran = [*range(1, stage + 2), *range(stage + 1, 4)]
    assert queue.notes() == [f'hold_{number} ["x"]' for number in ran]
    assert queue.rows(STATE) == ([(2, 2, "tasks.hold_3", 2 if stage == 2 else 1)] if mode == "mark" else [])


def test_a_stage_that_may_start_once_is_fatal_when_its_worker_vanished(
    one_queue: Queue, one_server: TaskServer
) -> None:
    one_server.add_pipeline(["tasks.hold_1", {"task": "tasks.hold_2", "max_attempts": 1}, "tasks.note"], ["x"])
    kill(hold_at(one_queue, 1))
    one_queue.end_leases()
    assert "lost: " in one_queue.worker().stderr
    assert one_queue.rows(STATE) == [(4, 1, "tasks.hold_2", 1)]
    assert one_queue.notes() == ['hold_1 ["x"]', 'hold_2 ["x"]']


@each_stage(0, count=2)
@ONE_MODE
def test_a_worker_whose_stage_was_taken_over_moves_nothing_on(
    queue: Queue, server: TaskServer, mode: str, stage: int
) -> None:
    """It ends while another runs the same stage, and once more while the pipeline is at a later one already."""
    server.add_pipeline(HOLDS, ["x"])
    late = hold_at(queue, stage, "--mode", mode)
    freeze(late)
    queue.end_leases()
    assert_silent(queue.worker(0, OTHER_GROUP))
    queue.end_backoffs()
    after = len(queue.notes())
    other = queue.start("--mode", mode)
    wait_until(lambda: len(queue.notes()) > after)
    # The late one's code ends first: both wait for the same file.
    queue.go(GO[stage])
    wait_until(lambda: queue.rows("stage") == [(stage + 1,)])
    thaw(late)
    go_on(queue)
    code, _, errors = end_of(late)
    assert (code, "the lease was lost while it ran" in errors) == (0, True)
    assert_ends_well(other)
    assert_silent(queue.worker("--mode", mode))
    ran = [*range(1, stage + 2), *range(stage + 1, 4)]
    assert queue.notes() == [f'hold_{number} ["x"]' for number in ran]
    assert queue.rows(STATE) == ([(2, 2, "tasks.hold_3", 1)] if mode == "mark" else [])


@ONE_MODE
def test_a_late_end_of_a_stage_that_may_start_once_counts_and_the_next_one_follows(
    queue: Queue, server: TaskServer, mode: str
) -> None:
    server.add_pipeline([{"task": "tasks.hold_1", "max_attempts": 1}, "tasks.note"], ["x"])
    late = hold_at(queue, 0, 1, "--mode", mode)
    freeze(late)
    queue.end_leases()
    assert "lost: " in queue.worker(0, OTHER_GROUP).stderr
    assert queue.statuses() == [4]
    thaw(late)
    go_on(queue)
    assert_ends_well(late)
    assert queue.rows(f"{STATE}, args, error_text, max_attempts, claim") == [
        (0, 1, "tasks.note", 0, '["x"]', None, None, None)
    ]
    assert_silent(queue.worker("--mode", mode))
    assert queue.notes()[1:] == ['[["x"], {}]']


def test_a_worker_that_is_asked_to_stop_leaves_the_next_stage_to_another_run(
    one_queue: Queue, one_server: TaskServer
) -> None:
    one_server.add_pipeline(HOLDS, ["x"])
    process = hold_at(one_queue, 0)
    process.send_signal(signal.SIGTERM)
    go_on(one_queue)
    assert_ends_well(process)
    assert one_queue.rows("status, stage, attempts") == [(0, 1, 0)]
    assert_silent(one_queue.worker())
    assert one_queue.notes() == [f'hold_{number} ["x"]' for number in (1, 2, 3)]


@ONE_MODE
def test_workers_that_race_run_each_stage_of_each_pipeline_once_and_in_order(
    queue: Queue, server: TaskServer, mode: str
) -> None:
    pipelines = 30
    second = {"task": "tasks.passes_together", "group_id": 4, "priority": -1}
    third = {"task": "tasks.passes_together", "priority": -2}
    server.add_tasks(
        [{"stages": ["tasks.passes_together", second, third], "args": [number, 0]} for number in range(pipelines)]
    )
    workers = [queue.start("--batch", 2, "--mode", mode) for _ in range(3)]
    for stage in range(3):
        # Each worker is in this stage, so that they race in it once they may go on.
        wait_until(lambda: len(pids_in(queue, stage)) == len(workers))  # noqa: B023  # it is called in this turn alone
        queue.go(f"go{stage}")
    for worker in workers:
        assert_ends_well(worker)
    assert_silent(queue.worker("--mode", mode))
    ran = defaultdict(list)
    for pipeline, stage, _ in passes(queue):
        ran[pipeline].append(stage)
    assert ran == {number: [0, 1, 2] for number in range(pipelines)}
    assert queue.statuses() == ([2] * pipelines if mode == "mark" else [])


@pytest.mark.parametrize("is_done", [True, pytest.param(False, marks=pytest.mark.long)], ids=["done", "not-done"])
@pytest.mark.parametrize("is_alone", [True, False], ids=["alone", "with-a-start"])
def test_a_stage_whose_end_was_cut_off_is_over_once(
    mysql_queue: Queue, mysql_server: MySQLServer, is_done: bool, is_alone: bool
) -> None:
    others = 0 if is_alone else 2
    with TaskServer(mysql_queue.dsn, folder=mysql_queue.folder) as server:
        server.add_pipeline(THREE)
        for _ in range(others):
            server.add_task("tasks.note")
    with Proxy(mysql_server.host, mysql_server.port) as proxy:
        cut = (proxy.cut_after if is_done else proxy.cut_before)(contains(b"stage = stage + 1"))
        assert_silent(mysql_queue.worker(TASKSERVER_DSN=proxy.dsn(mysql_queue.dsn)))
        assert cut.has_struck
        assert len(proxy.links) == 2
    assert [line for line in mysql_queue.notes() if line != "[[], {}]"] == THREE_RAN
    assert mysql_queue.rows() == []
    assert mysql_queue.sql("SELECT done, lost FROM jobs_queue_workers") == [(3 + others, 0)]


FOLLOWING = NextStage("tasks.second", 0, 0, None, '{"by":"x"}')


def started(server: TaskServer) -> ClaimedTask:
    (task,) = server.store.claims.claim(1, ()).tasks
    assert server.store.finishes.advance([], Start(task, 3)) == ([], True)
    return task


SINCE: dict[str, Callable[[TaskServer, ClaimedTask], object]] = {
    "new for the next stage": lambda server, task: None,
    "claimed for it": lambda server, task: server.store.claims.claim(1, ()),
    "started": lambda server, task: started(server),
    "at the third": lambda server, task: server.store.finishes.advance(
        [Finish(started(server), next_stage=NextStage("tasks.third"))], None
    ),
    "failed": lambda server, task: server.store.finishes.advance([Finish(started(server), "E: e", 60.0)], None),
    "done": lambda server, task: server.store.finishes.advance([Finish(started(server))], None),
    "cancelled": lambda server, task: server.cancel(task.id),
}


@pytest.mark.parametrize("since", SINCE)
@ONE_MODE
def test_the_end_of_a_stage_that_may_have_been_written_is_known_by_the_row(queue: Queue, mode: str, since: str) -> None:
    """Whatever became of it since; and nothing is written twice."""
    with TaskServer(queue.dsn, folder=queue.folder, mode=mode, lease=600) as server:
        server.add_pipeline(THREE)
        task = started(server)
        finish = Finish(task, next_stage=FOLLOWING)
        assert server.store.finishes.advance([finish], None) == ([Outcome.AS_ASKED], False)
        SINCE[since](server, task)
        before = queue.rows()
        assert server.store.finishes.advance([finish], None, is_repeated=True) == ([Outcome.AS_ASKED], False)
        assert queue.rows() == before
        assert server.store.finishes.advance([finish], None) == ([Outcome.LOST], False)
        assert queue.rows() == before


def test_the_end_of_a_stage_that_was_not_written_is_not_taken_for_one_that_was(queue: Queue) -> None:
    with TaskServer(queue.dsn, folder=queue.folder, lease=600) as server:
        server.add_pipeline(THREE)
        task = started(server)
        queue.sql("UPDATE jobs_queue SET claim = 17")
        before = queue.rows()
        finish = Finish(task, next_stage=FOLLOWING)
        assert server.store.finishes.advance([finish], None, is_repeated=True) == ([Outcome.LOST], False)
        assert queue.rows() == before


# ---- together with the other kinds


def test_a_key_is_held_through_all_stages(one_queue: Queue, one_server: TaskServer) -> None:
    task_id = one_server.add_pipeline(HOLDS, ["x"], unique_key="one")
    process = hold_at(one_queue, 1)
    assert one_server.add_pipeline(THREE, unique_key="one") == task_id
    assert one_server.add_task("tasks.note", unique_key="one") == task_id
    go_on(one_queue)
    assert_ends_well(process)
    assert one_queue.rows() == []
    assert one_queue.notes() == [f'hold_{number} ["x"]' for number in (1, 2, 3)]
    assert one_server.add_task("tasks.note", unique_key="one") > task_id


def test_a_delay_is_that_of_the_first_stage(one_queue: Queue, one_server: TaskServer) -> None:
    one_server.add_pipeline(THREE, delay=3600)
    assert_silent(one_queue.worker())
    assert one_queue.rows("status, stage") == [(5, 0)]
    one_queue.sql(f"UPDATE jobs_queue SET due_at = '{LONG_AGO}'")
    assert_silent(one_queue.worker())
    assert one_queue.notes() == THREE_RAN


def test_each_stage_has_the_priority_of_its_own_among_all_tasks(one_queue: Queue, one_server: TaskServer) -> None:
    one_server.add_pipeline(["tasks.passes", {"task": "tasks.passes_on", "priority": 5}], [1, 0], priority=-5)
    for number in (2, 3):
        one_server.add_task("tasks.passes", [number, 0])
    assert_silent(one_queue.worker("--batch", 1))
    assert [one[:2] for one in passes(one_queue)] == [(1, 0), (2, 0), (3, 0), (1, 1)]


def test_what_waits_for_a_pipeline_starts_after_its_last_stage(queue: Queue, server: TaskServer) -> None:
    parent = server.add_pipeline(THREE)
    server.add_pipeline(["tasks.give", "tasks.note"], ["list"], depends_on=[parent])
    assert_silent(queue.worker())
    assert queue.notes() == [*THREE_RAN, '[[1, "two", [3]], {}]']
    assert queue.rows() == []


def test_figures_count_each_stage_under_its_own_name_and_group(one_queue: Queue, one_server: TaskServer) -> None:
    one_server.add_pipeline(["tasks.first", {"task": "tasks.second", "group_id": 4}, "tasks.third"])
    one_server.add_pipeline(["tasks.first", {"task": "tasks.fail", "group_id": 4, "max_attempts": 1}])
    one_queue.worker()
    columns = "task, group_id, begun, attempts, done, failed, fatal, lost"
    assert sorted(one_queue.sql(f"SELECT {columns} FROM jobs_queue_stats")) == [
        ("tasks.fail", 4, 1, 1, 0, 1, 1, 0),
        ("tasks.first", 0, 2, 2, 2, 0, 0, 0),
        ("tasks.second", 4, 1, 1, 1, 0, 0, 0),
        ("tasks.third", 0, 1, 1, 1, 0, 0, 0),
    ]


# ---- commands


def test_one_stage_is_run_in_the_foreground_and_the_row_is_new_for_the_next_one(
    queue: Queue, server: TaskServer
) -> None:
    task_id = server.add_pipeline(THREE)
    ended = queue.client("run", task_id)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert f"task {task_id} has done stage 1 after" in ended.stdout
    assert ", and is new for the next one" in ended.stdout
    assert queue.rows(STATE) == [(0, 1, "tasks.second", 0)]
    assert queue.client("run", task_id).returncode == 0
    assert queue.client("run", task_id).returncode == 0
    assert (queue.notes(), queue.rows()) == (THREE_RAN, [])


def test_a_fatal_stage_is_run_in_the_foreground_from_there(one_queue: Queue, one_server: TaskServer) -> None:
    task_id = one_server.add_pipeline(["tasks.first", {"task": "tasks.fail_until", "max_attempts": 1}, "tasks.note"])
    one_queue.worker()
    one_queue.go("mended")
    assert one_queue.client("run", task_id).returncode == 0
    assert one_queue.rows(STATE) == [(0, 2, "tasks.note", 0)]


def test_show_tells_the_stage(one_queue: Queue, one_server: TaskServer) -> None:
    task_id = one_server.add_pipeline(THREE)
    assert_silent(one_queue.worker(1))
    shown = one_queue.client("show", task_id).stdout
    assert "2 of 3" in shown
    assert all(name in shown for name in THREE)
    report = json.loads(one_queue.client("show", task_id, "--json").stdout)
    assert (report["stage"], report["task"]) == (1, "tasks.second")


# ---- rows that nobody here wrote

TWO = '["tasks.first", "tasks.second"]'
FORGED: dict[str, tuple[object, int, str]] = {
    "no JSON": ("tasks.first, tasks.second", 0, "stages is not valid JSON"),
    "serialized": ('a:1:{i:0;s:5:"first";}', 0, "PHP's serialize()"),
    "empty": ("", 0, "stages is not valid JSON"),
    "a number": ("5", 0, "allowed: a list of 1 to 100"),
    "a text": ('"tasks.first"', 0, "allowed: a list of 1 to 100"),
    "null": ("null", 0, "allowed: a list of 1 to 100"),
    "an object": ('{"task": "tasks.first"}', 0, "allowed: a list of 1 to 100"),
    "no stage": ("[]", 0, "allowed: a list of 1 to 100"),
    "too many": (json.dumps(["tasks.first"] * (MAX_STAGES + 1)), 0, "allowed: a list of 1 to 100"),
    "a stage that is a number": ('["tasks.first", 5]', 0, "stage 2: it is 5"),
    "a stage that is a list": ('["tasks.first", ["tasks.second"]]', 0, "stage 2: it is ['tasks.second']"),
    "a bad name": ('["tasks.first", "tasks second"]', 0, "stage 2: "),
    "a control character": ('["tasks.first", "tasks.\\u001b[2J"]', 0, "stage 2: "),
    "no task": ('["tasks.first", {"group_id": 3}]', 0, 'stage 2: it has no "task"'),
    "an unknown key": ('["tasks.first", {"task": "tasks.second", "args": [1]}]', 0, "stage 2: it has 'args'"),
    "a group that is none": ('["tasks.first", {"task": "tasks.second", "group_id": -1}]', 0, "stage 2: group_id is -1"),
    "a huge priority": ('["tasks.first", {"task": "tasks.second", "priority": 1e9}]', 0, "stage 2: priority is"),
    "a limit of 0": ('["tasks.first", {"task": "tasks.second", "max_attempts": 0}]', 0, "stage 2: max_attempts is 0"),
    "not a number": ('["tasks.first", {"task": "tasks.second", "priority": NaN}]', 0, "NaN is no JSON number"),
    "much too deep": ("[" * 30_000, 0, "stages is nested more than 500 deep"),
    "one beyond the end": (TWO, 2, "it is at stage 3 of 2"),
    "far beyond the end": (TWO, 65535, "it is at stage 65536 of 2"),
}


def put_forged(queue: Queue, stages: object, stage: int) -> None:
    queue.sql("INSERT INTO jobs_queue (task, stages, stage) VALUES ('tasks.first', ?, ?)", stages, stage)


def test_a_forged_row_is_fatal_in_a_sentence_and_stops_nothing_else(queue: Queue) -> None:
    for stages, stage, _ in FORGED.values():
        put_forged(queue, stages, stage)
    queue.add("tasks.note", '["the next one"]')
    assert queue.worker().returncode == 0
    assert queue.rows("status, attempts") == [(4, 0)] * len(FORGED)
    for (name, (_, _, words)), line in zip(FORGED.items(), queue.errors(), strict=True):
        assert words in line, name
        assert "\n" not in line, name
    assert queue.notes() == ['[["the next one"], {}]']


def test_what_is_longer_than_the_column_of_a_server_is_fatal_where_a_file_can_hold_it(sqlite_queue: Queue) -> None:
    queue = sqlite_queue
    for stages in (json.dumps(["tasks.first"] * 100_000), "x" * 5_000_000, "ü" * (MAX_STAGES_BYTES // 2 + 1)):
        put_forged(queue, stages, 0)
    for odd in (TWO.encode(), b"\xff", 1.5, 7):
        put_forged(queue, odd, 0)
    queue.add("tasks.note", '["the next one"]')
    assert queue.worker().returncode == 0
    assert queue.notes() == ['[["the next one"], {}]']
    lines = queue.errors()
    assert lines[:3] == [f"BadTask: stages is longer than {MAX_STAGES_BYTES} bytes"] * 3
    assert lines[3:5] == ["BadTask: stages is text; this row holds something else"] * 2
    assert queue.statuses() == [4] * 7


def assert_shown_harmless(queue: Queue, capsys: pytest.CaptureFixture[str]) -> None:
    shows = [("show", row_id, *json) for (row_id,) in queue.rows("id") for json in ((), ("--json",))]
    for command in (*shows, ("list",), ("list", "--json")):
        ended = run_here(main, capsys, queue.folder, *command)
        assert (ended.returncode, ended.stderr) == (0, ""), command
        assert "\x1b" not in ended.stdout


def test_forged_rows_are_shown_and_listed_harmless(one_queue: Queue, capsys: pytest.CaptureFixture[str]) -> None:
    for forged in ("no JSON", "far beyond the end", "a control character"):
        put_forged(one_queue, *FORGED[forged][:2])
    assert_shown_harmless(one_queue, capsys)


def test_forged_rows_of_odd_types_are_shown_and_listed_harmless(
    sqlite_queue: Queue, capsys: pytest.CaptureFixture[str]
) -> None:
    for stages in (TWO.encode(), b"\xff", "\x1b[2J", "x" * 100_000):
        put_forged(sqlite_queue, stages, 0)
    assert_shown_harmless(sqlite_queue, capsys)


def test_a_row_whose_stages_were_cut_short_while_it_ran_ends_all_the_same(
    one_queue: Queue, one_server: TaskServer
) -> None:
    one_server.add_pipeline(HOLDS, ["x"])
    process = hold_at(one_queue, 0, "--mode", "mark")
    one_queue.sql("UPDATE jobs_queue SET stages = 'x'")
    go_on(one_queue)
    assert end_of(process)[0] == 0
    assert one_queue.rows("status, stage, task") == [(4, 1, "tasks.hold_2")]


def claimed(stages: object, stage: object, task: str = "tasks.a") -> ClaimedTask:
    return ClaimedTask(1, task, None, None, 0, None, 17, stages=stages, stage=stage)  # type: ignore[arg-type]


@pytest.mark.parametrize(("stage", "following"), [(0, "b"), (1, "c"), (2, None)])
def test_the_stage_that_follows_is_the_one_behind_the_row_s_own(stage: int, following: str | None) -> None:
    found = next_stage(claimed('["tasks.a", "tasks.b", "tasks.c"]', stage, f"tasks.{'abc'[stage]}"))
    assert (found and found.task) == (following and f"tasks.{following}")


def test_a_row_whose_task_is_another_one_than_its_stage_is_refused() -> None:
    with pytest.raises(BadTask, match=r"^its task is 'tasks.x', and stage 1 of its stages 'tasks.a'$"):
        next_stage(claimed('["tasks.a", "tasks.b"]', 0, "tasks.x"))


def test_what_a_producer_gave_is_what_a_worker_reads() -> None:
    """Each stage whole, so that nothing of the row's stage before it holds on."""
    from taskserver.model.new_task import new_task

    made = new_task(
        stages=["tasks.a", {"task": "tasks.b", "priority": -1}, {"task": "tasks.c", "max_attempts": 9, "group_id": 8}],
        group_id=3,
        priority=4,
        max_attempts=5,
    )
    assert made[:5] == ("tasks.a", None, 3, 4, 5)
    assert next_stage(claimed(made.stages, 0)) == NextStage("tasks.b", 3, -1, 5)
    assert next_stage(claimed(made.stages, 1, "tasks.b")) == NextStage("tasks.c", 8, 4, 9)


# ---- from PHP, as examples/chains.php has it

BY_PDO = f"""
require {str(EXAMPLES / "chains.php")!r};
$pdo = new PDO("mysql:host=$at->host;port=$at->port;dbname=$at->database;charset=utf8mb4", $at->user, $at->password);
$pdo->setAttribute(PDO::ATTR_ERRMODE, PDO::ERRMODE_EXCEPTION);
$pdo->exec("SET time_zone = '+09:00'");
"""


@pytest.fixture
def page(php: str, tmp_path: Path, mysql_server: MySQLServer, mysql_queue: Queue) -> Page:
    return Page(php, tmp_path, mysql_server, mysql_queue.dsn.rpartition("/")[2])


def test_a_page_adds_steps_with_the_right_to_insert_alone(
    mysql_queue: Queue, page: Page, mysql_server: MySQLServer
) -> None:
    database = str(page.place["database"])
    calls = """
    add_pipeline($pdo, ['tasks.first', ['task' => 'tasks.second', 'max_attempts' => 7], 'tasks.third'], []);
    $parents = [add_task($pdo, 'tasks.note', ['a' => 1]), add_task($pdo, 'tasks.note', ['Grüße 🎉'])];
    echo add_after($pdo, [...$parents, $parents[0]], 'tasks.note', ['after both']);
    """
    with web_user(mysql_server, database, "jobs_queue", "jobs_queue_dependencies") as user:
        page.place |= {"user": user, "password": WEB_PASSWORD}
        assert page.run(BY_PDO + calls) == "4"
    assert mysql_queue.sql("SELECT parent_id, child_id FROM jobs_queue_dependencies") == [(2, 4), (3, 4)]
    assert_silent(mysql_queue.worker(1))
    assert mysql_queue.rows("id, status, max_attempts")[0] == (1, 0, 7)
    assert_silent(mysql_queue.worker("--batch", 2))
    notes = mysql_queue.notes()
    assert [line for line in notes if line in THREE_RAN] == THREE_RAN
    assert notes[-1] == '[["after both"], {}]'
    assert (len(notes), mysql_queue.rows()) == (6, [])


def test_a_page_adds_what_waits_within_its_own_transaction_or_not_at_all(mysql_queue: Queue, page: Page) -> None:
    calls = """
    $parent = add_task($pdo, 'tasks.note', ['before']);
    $pdo->beginTransaction();
    add_after($pdo, [$parent], 'tasks.note', ['undone']);
    $pdo->rollBack();
    $pdo->beginTransaction();
    $child = add_after($pdo, [$parent], 'tasks.note', ['after']);
    $pdo->commit();
    try {
        add_after($pdo, [$parent, null], 'tasks.note', ['half']);
    } catch (PDOException $error) {
        echo $pdo->inTransaction() ? 'open' : 'undone';
    }
    """
    assert page.run(BY_PDO + calls) == "undone"
    assert mysql_queue.rows("args") == [('["before"]',), ('["after"]',)]
    assert len(mysql_queue.sql("SELECT * FROM jobs_queue_dependencies")) == 1
    assert_silent(mysql_queue.worker())
    assert mysql_queue.notes() == ['[["before"], {}]', '[["after"], {}]']
    assert mysql_queue.sql("SELECT * FROM jobs_queue_dependencies") == []


def test_the_calls_in_the_comment_of_chains_php_work(mysql_queue: Queue, page: Page) -> None:
    page.run(BY_PDO + shown_in_comment("chains.php").replace("require '/home/you/chains.php';", ""))
    assert mysql_queue.rows("task, status, stages IS NULL") == [
        ("tasks.shrink", 0, 0),
        ("tasks.charge_card", 0, 1),
        ("tasks.print_slip", 0, 1),
        ("tasks.send_letter", 5, 1),
    ]
    assert mysql_queue.sql("SELECT parent_id, child_id FROM jobs_queue_dependencies") == [(2, 4), (3, 4)]


def test_the_example_in_python_runs_by_itself() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "examples.chains"], cwd=ROOT, capture_output=True, text=True, timeout=120, check=True
    )
    assert sorted(ended.stdout.splitlines()) == sorted(
        [
            "shrinking beach.jpg",
            "publishing beach.jpg in 2 sizes",
            "counting 21 views at once",
            "sending the report to you@example.org",
            "1 fatal: Fatal: a view of no page",
            "23 done",
        ]
    )
