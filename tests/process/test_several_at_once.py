"""Workers that are killed, asked to end or raced while they have started several tasks; and the stages of pipelines."""

from __future__ import annotations

import signal
from collections import defaultdict
from collections.abc import Sequence

import pytest

from tests.support.databases import ON_MYSQL
from tests.support.processes import end_of, wait_until
from tests.support.queues import Queue

TASKS = """
import os
import signal
import time

from taskserver import task

def do(number):
    for what in HERE.glob(f"does-{number}"):
        exec(what.read_text())

@task(batch=10, backoff="fixed:500")
def call(items):
    note(" ".join(str(item["n"]) for item in items))
    if len(items) > 1:
        for item in items:
            do(item["n"])

@task(commit_every=10, backoff="fixed:500")
def round(n):
    note(n)
    do(n)

def passes(pipeline, stage):
    note(f"{pipeline} {stage} {os.getpid()}")
    while not (HERE / f"go{stage}").exists():
        time.sleep(0.005)
    return [pipeline, stage + 1]
"""
SETTINGS = {"TASKSERVER_LEASE": "600", "TASKSERVER_MAX_ATTEMPTS": "3"}
KILL = "os.kill(os.getpid(), signal.SIGKILL)"


def add(queue: Queue, name: str, count: int, does: dict[int, str] | None = None) -> None:
    for number in range(count):
        queue.add(f"tasks.{name}", f'{{"n": {number}}}')
    for number, code in (does or {}).items():
        (queue.folder / f"does-{number}").write_text(code)


def ran(queue: Queue) -> list[int]:
    return [int(number) for line in queue.notes() for number in line.split()]


def test_the_tasks_of_a_worker_that_is_killed_in_their_call_are_lost_and_then_run_alone(queue: Queue) -> None:
    add(queue, "call", 4, {1: KILL})
    assert queue.worker().returncode == -signal.SIGKILL
    assert queue.rows("status, attempts") == [(1, 1)] * 4
    queue.run_here()
    assert queue.notes() == ["0 1 2 3"]  # not within their lease
    queue.end_leases()
    queue.run_here()
    assert queue.rows("status, attempts") == [(3, 1)] * 4
    assert all(text.startswith("lost: ") for text in queue.errors())
    queue.end_backoffs()
    assert queue.run_here().done == 4
    assert queue.notes() == ["0 1 2 3", "0", "1", "2", "3"]


def test_a_kill_in_the_midst_of_a_round_costs_its_tasks_an_attempt_and_loses_none(queue: Queue) -> None:
    """The module is imported with the first task, which so has a start and a finish of its own."""
    add(queue, "round", 8, {4: f"(HERE / 'does-4').unlink()\n{KILL}"})
    assert queue.worker("--mode", "mark").returncode == -signal.SIGKILL
    assert ran(queue) == [0, 1, 2, 3, 4]
    first, *others = queue.rows("status, attempts")
    assert first in [(1, 1), (2, 1)]
    assert others == [(1, 1)] * 7
    queue.run_here(mode="mark")
    assert len(queue.notes()) == 5  # not within their lease
    queue.end_leases()
    queue.run_here(mode="mark")
    lost = range(first == (2, 1), 8)
    assert queue.rows("status, attempts") == [(3, 1) if n in lost else (2, 1) for n in range(8)]
    assert all(queue.errors()[n].startswith("lost: ") for n in lost)
    queue.end_backoffs()
    queue.run_here(mode="mark")
    assert sorted(ran(queue)) == sorted([0, 1, 2, 3, 4, *lost])
    assert queue.rows("status, attempts") == [(2, 2) if n in lost else (2, 1) for n in range(8)]


def test_a_task_that_kills_its_worker_each_time_takes_no_other_along(queue: Queue) -> None:
    add(queue, "round", 6, {3: KILL})
    for _ in range(2):
        assert queue.worker("--mode", "mark", TASKSERVER_MAX_ATTEMPTS="2").returncode == -signal.SIGKILL
        queue.end_leases()
        queue.run_here(mode="mark", max_attempts=2)
        queue.end_backoffs()
    queue.run_here(mode="mark")
    assert queue.statuses() == [2, 2, 2, 4, 2, 2]
    assert max(attempts for status, attempts in queue.rows("status, attempts") if status == 2) == 2


@pytest.mark.parametrize(
    ("name", "asked", "called", "failed"), [("call", 2, 10, range(10)), ("round", 1, 3, []), ("round", 2, 3, [2])]
)
def test_a_worker_ends_after_its_call_and_asked_twice_fails_it(
    queue: Queue, name: str, asked: int, called: int, failed: Sequence[int]
) -> None:
    add(queue, name, 12, {2: "while not (HERE / 'go').exists():\n    time.sleep(0.01)\n"})
    process = queue.start("--mode", "mark")
    wait_until(lambda: 2 in ran(queue))
    process.send_signal(signal.SIGTERM)
    if asked == 2:
        process.send_signal(signal.SIGINT)  # two of one kind may come as one
    else:
        queue.go()
    assert end_of(process)[0] == 0
    assert (ran(queue), queue.reason()) == ([*range(called)], "stopped")
    ended = [(3 if n in failed else 2, 1) for n in range(called)]
    assert queue.rows("status, attempts") == ended + [(0, 0)] * (12 - called)
    assert {queue.first_lines()[n] for n in failed} <= {"TaskInterrupted: stopped by a second signal"}


@ON_MYSQL
@pytest.mark.parametrize("name", ["call", "round"])
def test_workers_that_race_call_each_task_once(queue: Queue, name: str) -> None:
    """Both are in a call at the same time: neither ends before the other has begun."""
    meet = "(HERE / f'met-{os.getpid()}').touch()\nwhile len(list(HERE.glob('met-*'))) < 2:\n    time.sleep(0.01)\n"
    add(queue, name, 40, dict.fromkeys(range(40), meet))
    workers = [queue.start(0, "--batch", 15) for _ in range(2)]
    assert [end_of(worker)[0] for worker in workers] == [0, 0]
    assert sorted(ran(queue)) == list(range(40))
    assert len(list(queue.folder.glob("met-*"))) == 2
    assert queue.rows() == []


@ON_MYSQL
def test_workers_that_race_run_each_stage_of_each_pipeline_once_and_in_order(queue: Queue) -> None:
    stages = ["tasks.passes", {"task": "tasks.passes", "group_id": 4, "priority": -1}]
    stages.append({"task": "tasks.passes", "priority": -2})
    queue.server.add_tasks([{"stages": stages, "args": [number, 0]} for number in range(20)])
    workers = [queue.start("--batch", 2, "--mode", "mark") for _ in range(3)]

    def passes() -> list[list[int]]:
        return [[int(word) for word in line.split()] for line in queue.notes()]

    for stage in range(3):
        # Each worker is in this stage, so that they race in it once they may go on.
        wait_until(lambda: len({pid for _, at, pid in passes() if at == stage}) == len(workers))  # noqa: B023
        queue.go(f"go{stage}")
    assert [end_of(worker) for worker in workers] == [(0, "", "")] * 3
    queue.run_quietly(mode="mark")
    ran = defaultdict(list)
    for pipeline, stage, _ in passes():
        ran[pipeline].append(stage)
    assert ran == {number: [0, 1, 2] for number in range(20)}
    assert queue.statuses() == [2] * 20
