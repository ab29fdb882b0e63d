"""A run: the order of tasks, its groups, errors in the middle, its record and its stats."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from taskserver import DatabaseError, Reason, Stop
from taskserver.stores.queue.stats import COLUMNS
from taskserver.worker import stats as run_stats
from taskserver.worker.hooks import Hooks
from tests.support.queues import Queue

SETTINGS = {"TASKSERVER_MAX_ATTEMPTS": "1"}
TASKS = """
from taskserver import Fatal, task

def quick():
    note("quick")

def fail():
    raise ValueError("no luck")

def give_up():
    raise Fatal("never")

@task(max_attempts=1, on_fatal="tasks.save")
def saved():
    raise ValueError("no")

def save(error): pass
"""


def test_tasks_of_the_named_groups_run_in_order_of_priority_then_id_across_them(queue: Queue) -> None:
    rows = [(3, 10), (5, -1), (6, 10), (4, -9), (3, 0), (5, 10), (6, -1), (3, -2_000_000_000), (5, 0), (6, 0)]
    for number, (group_id, priority) in enumerate(rows):
        queue.add("tasks.note", f'["{number}"]', group_id, priority)
    assert queue.run_here(groups=[3, 5, 6], batch=4).done == 9
    named = [(priority, number) for number, (group_id, priority) in enumerate(rows) if group_id != 4]
    assert queue.notes() == [str(number) for _, number in sorted(named)]
    assert queue.rows("group_id, status, attempts") == [(4, 0, 0)]


def test_max_tasks_counts_bad_rows_and_failing_tasks_too(queue: Queue) -> None:
    for task in ["os.system", "tasks.note", "tasks.fail", "tasks.note", "tasks.note"]:
        queue.add(task)
    result = queue.run_here(4)
    assert (result.taken, result.reason) == (4, Reason.MAX_TASKS)
    assert queue.rows("id, status, attempts") == [(1, 4, 0), (3, 4, 1), (5, 0, 0)]
    assert queue.notes() == ["noted"] * 2


# ---- errors in the middle


@pytest.mark.parametrize(("part", "verb"), [("finishes", "advance"), ("claims", "fetch_texts")])
def test_what_was_not_started_is_given_back_when_an_error_ends_the_run(
    queue: Queue, part: str, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = queue.server
    server.add_tasks([{"task": "tasks.note", "args": ["x" * 20_000]}] * 3)

    def fails(*values: Any) -> None:
        raise DatabaseError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(getattr(server.store, part), verb, fails)
        with pytest.raises(DatabaseError, match="disk is full"):
            server.run()
    assert queue.rows("status, claim") == [(0, None)] * 3
    [run] = server.store.views.runs()
    assert (run.reason, run.ended_at is None) == (Reason.ERROR.value, False)
    assert server.run().done == 3


def test_after_a_second_signal_no_code_of_a_task_begins(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    queue.add("tasks.note")
    stop = Stop()

    def insist(*values: object) -> None:
        for _ in range(2):
            stop.ask()

    monkeypatch.setattr(Hooks, "between", insist)
    queue.run_here(stop=stop, max_attempts=2)
    assert (queue.notes(), queue.rows("status, attempts")) == ([], [(3, 1)])
    assert queue.first_lines() == ["TaskInterrupted: stopped by a second signal"]


# ---- the record of runs


def test_the_last_run_of_each_host_and_its_groups_is_one_row(queue: Queue) -> None:
    for task, group in (("tasks.note", 3), ("tasks.fail", 5), ("os.system", 6), ("tasks.note", 7)):
        queue.add(task, None, group)
    queue.run_here(2, [6, 3, 5])
    queue.run_here(0, [3, 5, 6])
    queue.run_here()
    rows = queue.sql(
        "SELECT host, group_ids, reason, taken, done, fatal, lost, released, started_at <= ended_at, pid > 0 "
        "FROM jobs_queue_workers ORDER BY group_ids"
    )
    host = socket.gethostname()
    assert rows == [(host, "3,5,6", "empty", 1, 0, 1, 0, 0, 1, 1), (host, "all", "empty", 1, 1, 0, 0, 0, 1, 1)]


# ---- the stats: what a run counts of its tasks; tests/contract/test_stats.py has the table


def counts(queue: Queue) -> dict[tuple[int, str], tuple[int, ...]]:
    """begun, attempts, done, failed, fatal and lost of all hours, by group and name."""
    sums = ", ".join(f"SUM({column})" for column in COLUMNS[:6])
    rows = queue.sql(f"SELECT group_id, task, {sums} FROM jobs_queue_stats GROUP BY group_id, task")
    return {(group, task): tuple(map(int, rest)) for group, task, *rest in rows}


def test_the_stats_of_a_run_are_exactly_what_it_did(queue: Queue) -> None:
    queue.add("tasks.quick", "[1, 2]")  # bad, which is known only after its start: nothing was imported yet
    for group in (0, 0, 0, 3, 3):
        queue.add("tasks.quick", group_id=group)
    for name in ("fail", "give_up", "saved", "nothing", "\x1b[2J", "a'; DROP TABLE jobs_queue_stats; --"):
        queue.add(f"tasks.{name}")
    queue.add("elsewhere.quick")
    queue.run_here(max_attempts=10)
    assert counts(queue) == {
        (0, "tasks.quick"): (3, 3, 3, 0, 1, 0),
        (3, "tasks.quick"): (2, 2, 2, 0, 0, 0),
        (0, "tasks.fail"): (1, 1, 0, 1, 0, 0),
        (0, "tasks.give_up"): (1, 1, 0, 1, 1, 0),
        (0, "tasks.saved"): (1, 1, 1, 0, 0, 0),
        (0, ""): (0, 0, 0, 0, 4, 0),  # names of no callable
    }


def test_an_attempt_whose_worker_vanished_is_counted_by_the_run_that_takes_the_task_back(queue: Queue) -> None:
    queue.add("tasks.quick")
    for times in (1, 2):
        changes = f"status = 1, attempts = attempts + 1, claim = 7, started_at = {queue.ago(900)}"
        queue.sql(f"UPDATE jobs_queue SET {changes}")
        queue.end_leases()
        queue.run_here(max_attempts=10)
        assert counts(queue) == {(0, "tasks.quick"): (1, times, 0, 0, 0, times)}
        queue.end_backoffs()
    queue.run_here(max_attempts=10)
    assert counts(queue) == {(0, "tasks.quick"): (1, 3, 1, 0, 0, 2)}


def test_a_run_writes_its_stats_while_it_goes_on_and_a_missing_table_costs_no_task(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_stats, "WRITE_EVERY_SECONDS", 0)
    queue.add_many([(0, 0)] * 4)
    done: list[int] = []
    queue.run_here(on_progress=lambda result: done.append(sum(one.done for one in queue.server.stats())))
    assert done == [0, 1, 2, 3]
    assert sum(one.done for one in queue.server.stats()) == 4
    queue.sql("DROP TABLE jobs_queue_stats")
    queue.add("tasks.note")
    assert queue.run_quietly().done == 1
