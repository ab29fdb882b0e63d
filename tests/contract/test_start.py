"""Start: in progress, unstarted → in progress, started; the attempt is counted before the task's code runs.

test_fences.py shows which rows it leaves; test_finish.py that it shares a commit with the finish before it.
"""

from __future__ import annotations

import pytest

from taskserver.model.attempt import Start
from taskserver.stores import Store
from taskserver.stores.queue.batches import Batches
from tests.contract.verbs import PLAIN, add, add_many, claim, claim_one, rerun, start, take_away
from tests.support.databases import EACH_SERVER
from tests.support.locks import holding
from tests.support.rows import Rows, as_instant

LEASE_SECONDS = 120


def test_a_start_counts_the_attempt_and_stamps_the_row_once_a_claim(store: Store, rows: Rows) -> None:
    add(store)
    task = claim_one(store)
    rows.set(f"due_at = {rows.after(5)}, attempts = 2")
    assert start(store, task, max_attempts=9)
    assert rows.one("status", "attempts", "max_attempts", "claim") == (1, 3, 9, task.claim)
    started_at, due_at = rows.one("started_at", "due_at")
    assert rows.seconds_from_now(started_at) == pytest.approx(0, abs=30)
    assert (as_instant(due_at) - as_instant(started_at)).total_seconds() == pytest.approx(LEASE_SECONDS, abs=1)
    before = rows.all()
    assert not start(store, task)
    assert rows.all() == before


def test_a_limit_of_the_callable_before_is_not_written_to_a_row_that_is_run_again(store: Store, rows: Rows) -> None:
    store.producing.add(rerun("[1]"))
    task = claim_one(store)
    assert store.finishes.advance([], Start(task, None))[1]
    store.producing.add(rerun("[2]", task="tasks.once"))
    assert store.finishes.limit_attempts(task, 9)
    assert rows.one("max_attempts") is None


# ---- several tasks of one claim


def test_started_tasks_are_given_back_as_they_were_but_for_what_others_did(store: Store, rows: Rows) -> None:
    batches = Batches(store)
    add_many(store, [rerun("[1]")._replace(unique_key=f"k{number}") for number in range(5)])
    (before, *_) = rows.all()
    tasks = claim(store)
    free, changed, cancelled, taken = (task.id for task in tasks[:4])
    assert batches.start(tasks[:4], 10) == {free, changed, cancelled, taken}
    store.producing.add(rerun("[2]")._replace(unique_key="k1"))
    rows.set(f"error_text = 'cancelled' WHERE id = {cancelled}")
    take_away(rows, taken)
    assert batches.unstart(tasks) == 2
    assert rows.statuses() == [0, 0, 1, 1, 1], "a cancelled one waits for the end of its lease"
    assert rows.row(free) == {**before, "max_attempts": 10}  # the limit that the start recorded stays
    assert (rows.row(changed)["args"], rows.row(changed)["attempts"]) == ("[2]", 0)


@EACH_SERVER
def test_rows_that_others_hold_are_left_and_the_rest_is_started_and_completed(
    store: Store, queue_dsn: str, rows: Rows
) -> None:
    """On SQLite others hold all rows or none."""
    batches = Batches(store)
    tasks = claim(store, len(add_many(store, [PLAIN] * 4)))
    with holding(queue_dsn, f"id = {tasks[1].id}"):
        assert batches.start(tasks, 10) == {tasks[0].id, tasks[2].id, tasks[3].id}
        take_away(rows, tasks[3].id)
        assert batches.complete(tasks) == ({tasks[0].id, tasks[2].id}, False)
    assert rows.row(tasks[1].id)["started_at"] is None


def test_of_a_running_task_the_attempt_is_counted_again_for_its_call_alone(store: Store, rows: Rows) -> None:
    """In progress, started → started once more, with the next attempt and a new lease."""
    add(store)
    task = claim_one(store)
    assert start(store, task)
    rows.set(f"due_at = {rows.after(5)}, progress = '[1]'")
    assert Batches(store).start_again(task._replace(attempts=1)) is False
    assert Batches(store).start_again(task) is True
    assert rows.one("status", "attempts", "claim", "progress") == (1, 2, task.claim, None)
    assert rows.seconds_from_now(rows.one("due_at")) == pytest.approx(LEASE_SECONDS, abs=30)
