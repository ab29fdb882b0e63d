"""The stats: what runs count of their tasks, how that gets into the table, and what a lost connection costs.

tests/contract/test_stats.py has the table.
"""

from __future__ import annotations

import pytest

from taskserver.stores.queue.stats import COLUMNS
from taskserver.worker import stats as run_stats
from tests.support.queues import Queue

TASKS = """
from taskserver import Fatal, task

def quick():
    note("quick")

def fail():
    raise ValueError("no")

def give_up():
    raise Fatal("never")

@task(max_attempts=1, on_fatal="tasks.save")
def saved():
    raise ValueError("no")

def save(error): pass
"""
COUNTS = COLUMNS[:6]


def counts(queue: Queue) -> dict[tuple[int, str], tuple[int, ...]]:
    """begun, attempts, done, failed, fatal and lost of all hours, by group and name."""
    sums = ", ".join(f"SUM({column})" for column in COUNTS)
    rows = queue.sql(f"SELECT group_id, task, {sums} FROM jobs_queue_stats GROUP BY group_id, task")
    return {(group, task): tuple(map(int, rest)) for group, task, *rest in rows}


# ---- what a run counts


def test_the_stats_of_a_run_are_exactly_what_it_did(queue: Queue) -> None:
    queue.add("tasks.quick", "[1, 2]")  # bad, which is known only after its start: nothing was imported yet
    for group in (0, 0, 0, 3, 3):
        queue.add("tasks.quick", group_id=group)
    for name in (
        "fail",
        "give_up",
        "saved",
        "nothing",
        "quick.quick",
        "\x1b[2J",
        "a'; DROP TABLE jobs_queue_stats; --",
    ):
        queue.add(f"tasks.{name}")
    queue.add("elsewhere.quick")
    queue.run_here()
    assert counts(queue) == {
        (0, "tasks.quick"): (3, 3, 3, 0, 1, 0),
        (3, "tasks.quick"): (2, 2, 2, 0, 0, 0),
        (0, "tasks.fail"): (1, 1, 0, 1, 0, 0),
        (0, "tasks.give_up"): (1, 1, 0, 1, 1, 0),
        (0, "tasks.saved"): (1, 1, 1, 0, 0, 0),
        (0, ""): (0, 0, 0, 0, 5, 0),  # names that nothing is called by
    }


def test_each_attempt_is_counted_and_each_task_begins_once(queue: Queue) -> None:
    queue.add("tasks.fail")
    for _ in range(3):
        queue.run_here(max_attempts=3)
        queue.end_backoffs()
    assert counts(queue) == {(0, "tasks.fail"): (1, 3, 0, 3, 1, 0)}


def test_an_attempt_whose_worker_vanished_is_counted_by_the_run_that_takes_the_task_back(queue: Queue) -> None:
    queue.add("tasks.quick")
    for times in (1, 2):
        changes = f"status = 1, attempts = attempts + 1, claim = 7, started_at = {queue.ago(900)}"
        queue.sql(f"UPDATE jobs_queue SET {changes}")
        queue.end_leases()
        queue.run_here()
        assert counts(queue) == {(0, "tasks.quick"): (1, times, 0, 0, 0, times)}
        queue.end_backoffs()
    queue.run_here()
    assert counts(queue) == {(0, "tasks.quick"): (1, 3, 1, 0, 0, 2)}


# ---- when it is written


def test_a_run_writes_while_it_goes_on_and_each_task_once(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_stats, "WRITE_EVERY_SECONDS", 0)
    queue.add_many([(0, 0)] * 4)
    done: list[int] = []
    queue.run_here(on_progress=lambda result: done.append(sum(one.done for one in queue.server.stats())))
    assert done == [0, 1, 2, 3]
    assert sum(one.done for one in queue.server.stats()) == 4
