"""Several tasks of one claim are started, given back and completed in one commit: all that can be, or none."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from taskserver.model.task import Status
from taskserver.stores import Store
from taskserver.stores.queue.batches import Batches
from tests.contract.verbs import PLAIN, add_many, claim, rerun, take_away
from tests.support.locks import holding
from tests.support.rows import MODES, Rows


def test_started_tasks_are_given_back_as_they_were_before_their_claim(store: Store, rows: Rows) -> None:
    batches = Batches(store)
    add_many(store, [PLAIN, PLAIN._replace(max_attempts=3), PLAIN])
    before = rows.all()
    tasks = claim(store)
    assert batches.start(tasks[:2], 10) == {tasks[0].id, tasks[1].id}
    assert [row["attempts"] for row in rows.all()] == [1, 1, 0]
    assert batches.renew(tasks[:2])
    assert batches.unstart(tasks[:2]) == 2
    # The limit that the start recorded stays.
    assert rows.all()[:2] == [{**before[0], "max_attempts": 10}, before[1]]
    assert rows.row(tasks[2].id)["status"] == Status.IN_PROGRESS
    assert batches.unstart(tasks) == 0  # new ones, and one that was not started


def test_what_others_did_to_a_started_task_stands_when_it_is_given_back(store: Store, rows: Rows) -> None:
    batches = Batches(store)
    add_many(store, [rerun("[1]")._replace(unique_key=f"k{number}") for number in range(4)])
    tasks = claim(store)
    assert len(batches.start(tasks, 10)) == 4
    changed, cancelled, taken, free = (task.id for task in tasks)
    store.producing.add(rerun("[2]")._replace(unique_key="k0"))
    rows.set(f"error_text = 'cancelled' WHERE id = {cancelled}")
    take_away(rows, taken)
    assert batches.unstart(tasks) == 2
    assert [row["status"] for row in rows.all()] == [0, 1, 1, 0], "a cancelled one waits for the end of its lease"
    assert (rows.row(changed)["args"], rows.row(changed)["attempts"]) == ("[2]", 0)
    assert rows.row(taken)["claim"] != tasks[2].claim
    assert rows.row(free)["attempts"] == 0


@pytest.mark.parametrize("mode", MODES)
def test_tasks_are_completed_and_others_started_in_one_commit_or_not_at_all(
    open_store: Callable[..., Store], rows: Rows, mode: str
) -> None:
    store = open_store(mode)
    batches = Batches(store)
    add_many(store, [PLAIN] * 4)
    tasks = claim(store)
    batches.start(tasks[:2], 10)
    for taken in (tasks[0].id, tasks[3].id):
        rows.set(f"claim = claim - 1 WHERE id = {taken}")
        before = rows.all()
        assert batches.complete_and_start(tasks[:2], tasks[2:], 10) == (False, False)
        assert (rows.all(), rows.all("jobs_queue_done")) == (before, [])
        rows.set(f"claim = claim + 1 WHERE id = {taken}")
    assert batches.complete_and_start(tasks[:2], tasks[2:], 7) == (True, False)
    started = [(row["status"], row["attempts"], row["max_attempts"]) for row in rows.all() if row["status"] == 1]
    assert started == [(1, 1, 7)] * 2
    assert len(rows.all("jobs_queue_done")) == (2 if mode == "move" else 0)
    assert len(rows.all()) == (4 if mode == "mark" else 2)


@pytest.mark.parametrize("queue_dsn", ["mysql", "postgresql"], indirect=True)
@pytest.mark.parametrize("mode", MODES)
def test_rows_that_others_hold_are_left_and_the_rest_is_started_and_completed(
    open_store: Callable[..., Store], queue_dsn: str, rows: Rows, mode: str
) -> None:
    """In progress → started → gone, archived or done for the free ones. On SQLite others hold all rows or none."""
    store = open_store(mode)
    batches = Batches(store)
    tasks = claim(store, len(add_many(store, [PLAIN] * 4)))
    with holding(queue_dsn, f"id = {tasks[1].id}"):
        assert batches.start(tasks, 10) == {tasks[0].id, tasks[2].id, tasks[3].id}
        assert batches.complete(tasks[1:3]) == ({tasks[2].id}, False)
        take_away(rows, tasks[3].id)
        assert batches.complete(tasks) == ({tasks[0].id}, False)
    assert rows.row(tasks[1].id)["started_at"] is None
