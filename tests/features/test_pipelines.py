"""Pipelines as their producers and operators see them: one row that becomes new for one callable after the other.

Workers are real processes, on every store. A race shows that it raced: several workers ran stages of one pipeline.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest

from taskserver import TaskServer
from taskserver.model.attempt import Finish, NextStage, Outcome, Start
from taskserver.model.pipeline import MAX_STAGES, MAX_STAGES_BYTES
from taskserver.model.task import ClaimedTask
from tests.support import effects as common
from tests.support.effects import OTHER_GROUP
from tests.support.processes import assert_silent, end_of, freeze, thaw, wait_until
from tests.support.proxy import Proxy, contains
from tests.support.queues import LONG_AGO, Queue
from tests.support.reruns import BY_SQL, GOES_ON, STATES
from tests.support.servers import MySQLServer

MODES = ["delete", "move", "mark"]
ONE_MODE = pytest.mark.parametrize(
    "mode", ["mark", *(pytest.param(mode, marks=pytest.mark.long) for mode in ("delete", "move"))]
)
"""Where the mode should change nothing."""


SETTINGS = common.SETTINGS

TASKS = """
import json
import os
import time

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

def passes_together(pipeline, stage):
    passed = passes(pipeline, stage)
    wait(f"go{stage}")
    return passed

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

def generator():
    note_text("body")
    yield 1

GIFTS = {
    "dict": lambda: {"größe 🎉": [1, -2.5, True, None, {"k": "v"}]},
    "tuple": lambda: (1, "two", [3]),
    "None": lambda: None,
    "a megabyte": lambda: ["x" * (1024 * 1024 - 4)],
    "a text": lambda: "",
    "an object without text": Hostile,
    "not a number": lambda: [float("nan")],
    "too large": lambda: ["x" * (1024 * 1024 - 3)],
    "a generator": generator,
}

def give(name):
    return GIFTS[name]()
"""


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


@pytest.mark.parametrize("mode", MODES)
def test_one_row_moves_through_its_stages_and_then_ends_as_the_mode_says(queue: Queue, mode: str) -> None:
    task_id = queue.server.add_pipeline(THREE, {"a": 1})
    queue.run_quietly(mode=mode)
    assert queue.notes() == THREE_RAN
    ends = {"delete": [], "move": queue.rows(f"id, {STATE}", "jobs_queue_done"), "mark": queue.rows(f"id, {STATE}")}
    assert ends[mode] == ([] if mode == "delete" else [(task_id, 2, 2, "tasks.third", 1)])
    assert mode == "mark" or queue.rows() == []
    assert queue.sql("SELECT taken, done FROM jobs_queue_workers") == [(3, 3)]


def test_between_two_stages_the_row_is_new_as_if_it_had_been_added_for_the_next_one(queue: Queue) -> None:
    second = {"task": "tasks.second", "group_id": 5, "priority": -3, "max_attempts": 7}
    queue.server.add_pipeline(["tasks.first", second, "tasks.third"], group_id=2, priority=9, max_attempts=4)
    columns = f"{STATE}, args, group_id, priority, max_attempts, due_at, claim, error_text, started_at, finished_at"
    nothing = (None,) * 5
    assert queue.rows(columns) == [(0, 0, "tasks.first", 0, None, 2, 9, 4, *nothing)]
    ((created, before),) = queue.rows("created_at, updated_at")
    queue.run_quietly(1)
    assert queue.rows(columns) == [(0, 1, "tasks.second", 0, '{"by":"first"}', 5, -3, 7, *nothing)]
    ((created_still, after),) = queue.rows("created_at, updated_at")
    assert created_still == created
    assert after > before
    queue.run_quietly(1)
    assert queue.rows(columns) == [(0, 2, "tasks.third", 0, '["second",2]', 2, 9, 4, *nothing)]
    queue.run_quietly(1)
    assert queue.rows() == []


def test_what_a_stage_leaves_out_by_sql_stays_as_the_row_has_it(queue: Queue) -> None:
    queue.sql(
        "INSERT INTO jobs_queue (task, args, group_id, priority, max_attempts, stages) VALUES (?, ?, ?, ?, ?, ?)",
        *("tasks.first", None, 3, 10, 7, '["tasks.first", {"task": "tasks.second", "group_id": 4}, "tasks.third"]'),
    )
    queue.run_quietly(1)
    columns = "task, group_id, priority, max_attempts"
    assert queue.rows(columns) == [("tasks.second", 4, 10, None)]
    queue.run_quietly(1)
    assert queue.rows(columns) == [("tasks.third", 4, 10, None)]
    queue.run_quietly(1)
    assert queue.notes() == THREE_RAN


def test_each_stage_belongs_to_the_workers_of_its_group(queue: Queue) -> None:
    stages = [{"task": task, "group_id": group} for task, group in zip(THREE, (1, 2, 1), strict=True)]
    queue.server.add_pipeline(stages)
    for groups, stage in [(2, 0), (1, 1), ("1,3", 1), (2, 2)]:
        assert_silent(queue.worker(0, groups))
        assert queue.rows("stage") == [(stage,)]
    assert_silent(queue.worker(0, "1,2"))
    assert (queue.notes(), queue.rows()) == (THREE_RAN, [])


def test_each_stage_has_attempts_and_limits_of_its_own(queue: Queue) -> None:
    """That of its description, else that of its callable, else that of the settings."""
    queue.server.add_pipeline(["tasks.first", "tasks.twice_at_most"])
    queue.server.add_pipeline([{"task": "tasks.first", "max_attempts": 1}, "tasks.fail"])
    queue.server.add_pipeline(["tasks.first", {"task": "tasks.twice_at_most", "max_attempts": 1}])
    for _ in range(4):
        queue.worker()
        queue.end_backoffs()
    assert queue.rows("status, stage, attempts, max_attempts") == [(4, 1, 2, 2), (4, 1, 3, 3), (4, 1, 1, 1)]
    assert sorted(queue.notes()) == ["fail"] * 3 + ["first"] * 3 + ["twice_at_most"] * 3


@pytest.mark.parametrize("count", [1, MAX_STAGES])
def test_one_stage_and_as_many_as_may_be_run_in_their_order(queue: Queue, count: int) -> None:
    queue.server.add_pipeline(["tasks.passes"] * count, [7, 0])
    queue.run_quietly()
    assert [one[:2] for one in passes(queue)] == [(7, stage) for stage in range(count)]
    assert queue.rows() == []


def passes(queue: Queue) -> list[tuple[int, ...]]:
    """The pipeline, the stage and the process of each call that began."""
    path = queue.folder / "passes"
    return [tuple(map(int, line.split())) for line in path.read_text().splitlines()] if path.exists() else []


def pids_in(queue: Queue, stage: int) -> set[int]:
    return {pid for _, at, pid in passes(queue) if at == stage}


# ---- what a stage returns


def test_what_a_stage_returns_arrives_as_the_arguments_of_the_next_one(queue: Queue) -> None:
    arrives = {
        "dict": [[], {"größe 🎉": [1, -2.5, True, None, {"k": "v"}]}],
        "tuple": [[1, "two", [3]], {}],
        "None": [[], {}],
        "a megabyte": [["x" * (1024 * 1024 - 4)], {}],
    }
    queue.server.add_tasks([{"stages": ["tasks.give", "tasks.note"], "args": [name]} for name in arrives])
    queue.run_quietly()
    assert [json.loads(line) for line in queue.notes()] == list(arrives.values())
    assert queue.rows() == []


def test_what_can_be_no_arguments_is_fatal_and_says_what_can(queue: Queue) -> None:
    said = "; the next stage, tasks.note, gets an object as keywords"
    cannot = {
        "a text": "what it returned is ''; allowed: a dict, a list, a tuple or None",
        "an object without text": "what it returned is a Hostile that cannot be shown",
        "not a number": "what it returned[0] is nan, which is no JSON number",
        "too large": "what it returned takes 1048577 bytes as JSON; allowed: 1048576",
        "a generator": "it returned a value of type generator, which nobody runs",  # its body did not run
    }
    queue.server.add_tasks([{"stages": ["tasks.give", "tasks.note"], "args": [name]} for name in cannot])
    queue.server.add_pipeline(["tasks.return_what_never_ends", "tasks.note"])
    queue.server.add_task("tasks.note", ["the next one"])
    assert queue.worker().returncode == 0
    gave_up = [(4, 0, "tasks.give", 1)] * len(cannot)
    assert queue.rows(STATE) == [*gave_up, (3, 0, "tasks.return_what_never_ends", 1)]
    *lines, too_long = queue.first_lines()
    for words, line in zip(cannot.values(), lines, strict=True):
        assert line.startswith(f"Fatal: {words}")
        assert said in line or "generator" in line
    assert too_long == "TaskInterrupted: it ran for longer than its timeout of 1 s"
    assert queue.notes() == ['[["the next one"], {}]']


# ---- what fails


NOT_ALLOWED = ["os.system", "tasks._hidden", "tasks.nothing", "other.work"]


def test_each_stage_passes_the_allow_list_when_its_turn_comes(queue: Queue) -> None:
    queue.deployment.write_tasks("def work(by): raise SystemExit", "other.py")
    queue.server.add_tasks([{"stages": ["tasks.first", name, "tasks.third"]} for name in NOT_ALLOWED])
    queue.server.add_task("tasks.note", ["the next one"])
    errors = queue.worker().stderr
    assert all(f"{name} is fatal: " in errors for name in NOT_ALLOWED)
    assert queue.rows(STATE) == [(4, 1, name, 0) for name in NOT_ALLOWED]
    assert sorted(queue.notes()) == ['[["the next one"], {}]', *["first"] * len(NOT_ALLOWED)]


def test_a_failed_stage_is_retried_and_by_hand_too_with_what_the_one_before_it_returned(queue: Queue) -> None:
    task_id = queue.server.add_pipeline(["tasks.first", {"task": "tasks.fail_until", "max_attempts": 2}, "tasks.note"])
    queue.run_quietly()
    assert queue.rows(f"{STATE}, args") == [(3, 1, "tasks.fail_until", 1, '{"by":"first"}')]
    queue.end_backoffs()
    assert "is fatal: ValueError: not yet" in queue.worker().stderr
    assert queue.rows(STATE) == [(4, 1, "tasks.fail_until", 2)]
    queue.go("mended")
    assert queue.server.retry(task_id) == 1
    assert queue.rows(STATE) == [(0, 1, "tasks.fail_until", 0)]
    queue.run_quietly()
    assert queue.notes() == ["first", *["fail_until"] * 3, '[[], {"by": "first"}]']


@pytest.mark.parametrize("mode", MODES)
def test_what_is_called_when_a_stage_failed_for_good_ends_the_whole_pipeline(queue: Queue, mode: str) -> None:
    queue.server.add_pipeline(["tasks.first", "tasks.fail_with_an_end", "tasks.third"])
    ended = queue.worker("--mode", mode)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert queue.notes() == ["first", "fail_with_an_end", "end_instead: as it was asked to"]
    where = {"delete": "jobs_queue", "move": "jobs_queue_done", "mark": "jobs_queue"}[mode]
    assert queue.rows(STATE, where) == ([] if mode == "delete" else [(2, 1, "tasks.fail_with_an_end", 1)])


# ---- what is done to it meanwhile


@pytest.mark.parametrize("stage", [0, 2])
@ONE_MODE
def test_a_rerun_while_a_stage_runs_begins_anew_when_that_one_has_ended(queue: Queue, mode: str, stage: int) -> None:
    task_id = queue.server.add_pipeline(HOLDS, ["old"], unique_key="one")
    process = hold_at(queue, stage, "--mode", mode)
    for number in range(3):
        assert queue.server.add_pipeline(HOLDS, [f"new {number}"], unique_key="one", rerun=True) == task_id
    assert queue.rows("status, attempts, stage") == [(1, 0, 0)]
    go_on(queue)
    assert_ends_well(process)
    old = [f'hold_{number} ["old"]' for number in range(1, stage + 2)]
    assert queue.notes() == [*old, *(f'hold_{number} ["new 2"]' for number in (1, 2, 3))]
    assert queue.rows(STATE) == ([(2, 2, "tasks.hold_3", 1)] if mode == "mark" else [])


def test_a_rerun_of_a_pipeline_that_does_not_run_begins_anew(queue: Queue) -> None:
    at_rest = [state for state in STATES if state not in GOES_ON]
    for state in at_rest:
        queue.server.add_pipeline(THREE, unique_key=state)
        queue.sql(f"UPDATE jobs_queue SET stage = 2, task = 'x.y', {STATES[state]} WHERE unique_key = ?", state)
    for state in at_rest:
        queue.server.add_pipeline(["tasks.note", "tasks.first"], [state], unique_key=state, rerun=True)
    assert queue.rows(f"{STATE}, args") == [(0, 0, "tasks.note", 0, f'["{state}"]') for state in at_rest]
    queue.run_quietly()
    assert sorted(queue.notes()) == sorted([f'[["{state}"], {{}}]' for state in at_rest] + ["first"] * len(at_rest))
    assert queue.rows() == []


def test_a_pipeline_may_be_rerun_as_a_plain_task_and_that_as_a_pipeline(queue: Queue) -> None:
    queue.server.add_pipeline(HOLDS, ["old"], unique_key="one")
    process = hold_at(queue, 1)
    queue.server.add_task("tasks.hold_3", ["plain"], unique_key="one", rerun=True)
    queue.go("go2")
    wait_until(lambda: 'hold_3 ["plain"]' in queue.notes())
    queue.server.add_pipeline(THREE, unique_key="one", rerun=True)
    go_on(queue)
    assert_ends_well(process)
    assert queue.notes()[3:] == THREE_RAN
    assert queue.rows() == []


@pytest.mark.parametrize("is_running", [True, False])
def test_a_rerun_by_sql_that_sets_the_stages_too_begins_anew(queue: Queue, is_running: bool) -> None:
    """As docs/kinds/pipelines.md says, whether a stage runs or not."""
    queue.server.add_pipeline(["tasks.note", {"task": "tasks.hold_1", "max_attempts": 1}], ["old"], unique_key="one")
    process = hold_at(queue, 0) if is_running else queue.start(1)
    if not is_running:
        assert_ends_well(process)
    stages = "task = 'tasks.note', stages = '[\"tasks.note\", \"tasks.first\"]', stage = 0, max_attempts = NULL"
    statement = BY_SQL[queue.kind].replace("attempts = 0", f"attempts = 0, {stages}")
    queue.sql(statement, "tasks.note", '["new"]', "one")
    go_on(queue)
    assert_ends_well(process if is_running else queue.start())
    assert queue.notes()[-2:] == ['[["new"], {}]', "first"]
    assert queue.rows() == []


def test_the_task_of_a_schedule_has_no_stages_of_whatever_held_its_key(queue: Queue) -> None:
    queue.server.schedule("tidy", "tasks.note", ["tidied"], every=3600)
    queue.server.add_pipeline(["tasks.first", "tasks.fail"], unique_key="schedule:tidy", max_attempts=1)
    assert queue.worker().returncode == 0
    assert queue.rows(STATE) == [(4, 1, "tasks.fail", 1)]
    queue.sql(f"UPDATE jobs_queue_schedules SET next_at = '{LONG_AGO}'")
    queue.run_quietly(groups=[int(OTHER_GROUP)])
    assert queue.rows(f"{STATE}, stages") == [(0, 0, "tasks.note", 0, None)]
    queue.run_quietly()
    assert queue.notes()[2:] == ['[["tidied"], {}]']
    assert queue.rows() == []


@ONE_MODE
def test_a_cancel_while_a_stage_runs_ends_the_pipeline_and_a_retry_resumes_there(queue: Queue, mode: str) -> None:
    """Also where that stage succeeds before its worker hears of it."""
    stage = 1
    task_id = queue.server.add_pipeline(HOLDS, ["x"])
    process = hold_at(queue, stage, "--mode", mode)
    assert queue.server.cancel(task_id) == 1
    go_on(queue)
    assert end_of(process)[0] == 0
    assert queue.rows("status, stage, task, error_text, claim") == [(7, stage, HOLDS[stage], "cancelled", None)]
    queue.run_quietly(mode=mode)
    assert len(queue.notes()) == stage + 1
    assert queue.server.retry(task_id) == 1
    queue.run_quietly(mode=mode)
    assert queue.notes()[stage + 1 :] == [f'hold_{number} ["x"]' for number in range(stage + 1, 4)]


# ---- workers that vanish, and connections that break


@pytest.mark.parametrize("stage", [0, 1])
@ONE_MODE
def test_a_worker_whose_stage_was_taken_over_moves_nothing_on(queue: Queue, mode: str, stage: int) -> None:
    """It ends while another runs the same stage, and once more while the pipeline is at a later one already."""
    queue.server.add_pipeline(HOLDS, ["x"])
    late = hold_at(queue, stage, "--mode", mode)
    freeze(late)
    queue.end_leases()
    queue.run_quietly(groups=[int(OTHER_GROUP)])
    assert queue.rows(STATE) == [(3, stage, HOLDS[stage], 1)]
    assert queue.errors()[0].startswith("lost: ")
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
    queue.run_quietly(mode=mode)
    ran = [*range(1, stage + 2), *range(stage + 1, 4)]
    assert queue.notes() == [f'hold_{number} ["x"]' for number in ran]
    assert queue.rows(STATE) == ([(2, 2, "tasks.hold_3", 1)] if mode == "mark" else [])


@ONE_MODE
def test_a_late_end_of_a_stage_that_may_start_once_counts_and_the_next_one_follows(queue: Queue, mode: str) -> None:
    queue.server.add_pipeline([{"task": "tasks.hold_1", "max_attempts": 1}, "tasks.note"], ["x"])
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
    queue.run_quietly(mode=mode)
    assert queue.notes()[1:] == ['[["x"], {}]']


@ONE_MODE
def test_workers_that_race_run_each_stage_of_each_pipeline_once_and_in_order(queue: Queue, mode: str) -> None:
    pipelines = 30
    second = {"task": "tasks.passes_together", "group_id": 4, "priority": -1}
    third = {"task": "tasks.passes_together", "priority": -2}
    queue.server.add_tasks(
        [{"stages": ["tasks.passes_together", second, third], "args": [number, 0]} for number in range(pipelines)]
    )
    workers = [queue.start("--batch", 2, "--mode", mode) for _ in range(3)]
    for stage in range(3):
        # Each worker is in this stage, so that they race in it once they may go on.
        wait_until(lambda: len(pids_in(queue, stage)) == len(workers))  # noqa: B023  # it is called in this turn alone
        queue.go(f"go{stage}")
    for worker in workers:
        assert_ends_well(worker)
    queue.run_quietly(mode=mode)
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
    mysql_queue.server.add_pipeline(THREE)
    mysql_queue.server.add_tasks([{"task": "tasks.note"}] * others)
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
        queue.sql("UPDATE jobs_queue SET claim = claim + 1")
        assert server.store.finishes.advance([finish], None, is_repeated=True) == ([Outcome.LOST], False)
        queue.sql("UPDATE jobs_queue SET claim = claim - 1")
        assert server.store.finishes.advance([finish], None) == ([Outcome.AS_ASKED], False)
        SINCE[since](server, task)
        before = queue.rows()
        assert server.store.finishes.advance([finish], None, is_repeated=True) == ([Outcome.AS_ASKED], False)
        assert queue.rows() == before
        assert server.store.finishes.advance([finish], None) == ([Outcome.LOST], False)
        assert queue.rows() == before


# ---- together with the other kinds


def test_figures_count_each_stage_under_its_own_name_and_group(queue: Queue) -> None:
    queue.server.add_pipeline(["tasks.first", {"task": "tasks.second", "group_id": 4}, "tasks.third"])
    queue.server.add_pipeline(["tasks.first", {"task": "tasks.fail", "group_id": 4, "max_attempts": 1}])
    queue.worker()
    columns = "task, group_id, begun, attempts, done, failed, fatal, lost"
    assert sorted(queue.sql(f"SELECT {columns} FROM jobs_queue_stats")) == [
        ("tasks.fail", 4, 1, 1, 0, 1, 1, 0),
        ("tasks.first", 0, 2, 2, 2, 0, 0, 0),
        ("tasks.second", 4, 1, 1, 1, 0, 0, 0),
        ("tasks.third", 0, 1, 1, 1, 0, 0, 0),
    ]


# ---- commands


def test_one_stage_is_run_in_the_foreground_and_the_row_is_new_for_the_next_one(queue: Queue) -> None:
    task_id = queue.server.add_pipeline(THREE)
    ended = queue.client("run", task_id)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert f"task {task_id} has done stage 1 after" in ended.stdout
    assert ", and is new for the next one" in ended.stdout
    assert queue.rows(STATE) == [(0, 1, "tasks.second", 0)]
    assert queue.server.run_task(task_id).done == queue.server.run_task(task_id).done == 1
    assert (queue.notes(), queue.rows()) == (THREE_RAN, [])


# ---- rows that nobody here wrote

FORGED: list[tuple[object, int, str]] = [
    ("\x1b[2J", 0, "stages is not valid JSON"),
    ('["tasks.first", {"task": "tasks.second", "args": [1]}]', 0, "stage 2: it has 'args'"),
    ('["tasks.first", "tasks.second"]', 65535, "it is at stage 65536 of 2"),
    ("x" * (MAX_STAGES_BYTES + 1), 0, f"stages is longer than {MAX_STAGES_BYTES} bytes"),
]
"""In a row of SQLite; MySQL takes no longer ones."""


def test_a_forged_row_is_fatal_and_is_shown_harmless(queue: Queue) -> None:
    forged = FORGED if queue.is_sqlite else FORGED[:-1]
    for stages, stage, _ in forged:
        queue.sql("INSERT INTO jobs_queue (task, stages, stage) VALUES ('tasks.first', ?, ?)", stages, stage)
    queue.add("tasks.note", '["the next one"]')
    assert queue.worker().returncode == 0
    assert queue.rows("status, attempts") == [(4, 0)] * len(forged)
    for (_, _, words), error in zip(forged, queue.errors(), strict=True):
        assert words in error
        assert "\n" not in error
    assert queue.notes() == ['[["the next one"], {}]']
    shows = [("show", row_id, *json) for (row_id,) in queue.rows("id") for json in ((), ("--json",))]
    for command in (*shows, ("list",), ("list", "--json")):
        ended = queue.here(*command)
        assert (ended.returncode, ended.stderr) == (0, ""), command
        assert "\x1b" not in ended.stdout
