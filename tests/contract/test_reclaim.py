"""Reclaim: an expired lease → new (unstarted), or error, fatal, new (started: lost); and the record of workers."""

from __future__ import annotations

import os

import pytest

from taskserver.model.task import Status
from taskserver.stores import Store
from taskserver.stores.queue.claims import number_of
from taskserver.stores.queue.runs import LeftTask
from tests.contract.verbs import (
    PLAIN,
    a_running_task,
    add,
    add_many,
    cancel_running,
    claim,
    claim_one,
    end_leases,
    give_up_as_lost,
    ids,
    look_for_lost,
    rerun,
    start,
)
from tests.support.rows import Rows


def test_a_started_task_is_taken_back_only_as_the_look_saw_it(store: Store, rows: Rows) -> None:
    add(store)
    assert start(store, claim_one(store))
    end_leases(rows)
    lost = look_for_lost(store)
    as_it_was = f"attempts = 1, max_attempts = 10, due_at = {rows.after(-10)}, started_at = created_at"
    for change in ("attempts = 2", "max_attempts = 7", f"due_at = {rows.after(60)}", "started_at = NULL"):
        rows.set(change)
        assert not store.due.reclaim_lost(lost, 1, "lost: x", None)
        rows.set(as_it_was)
    assert store.due.reclaim_lost(lost, 1, "lost: x", None)


@pytest.mark.parametrize("meanwhile", ["rerun", "cancel"])
def test_a_started_task_that_was_changed_since_the_look_is_left_to_the_next_look(
    store: Store, rows: Rows, meanwhile: str
) -> None:
    a_running_task(store)
    end_leases(rows)
    lost = look_for_lost(store)
    if meanwhile == "rerun":
        store.producing.add(rerun("[2]"))
    else:
        cancel_running(rows)
    before = rows.all()
    assert not store.due.reclaim_lost(lost, 3, "lost: x", 0.0)
    assert rows.all() == before
    if meanwhile == "rerun":
        give_up_as_lost(store, rows)
        assert rows.one("status") == Status.NEW


def test_an_unstarted_task_is_taken_back_only_while_its_lease_is_over(store: Store, rows: Rows) -> None:
    """Not if it was released and claimed again since the look."""
    task_id = add(store)
    late = claim_one(store)
    end_leases(rows)
    assert store.due.look().unstarted == [task_id]
    assert store.claims.release([late]) == 1
    claim_one(store)
    before = rows.all()
    assert store.due.reclaim_unstarted([task_id]) == 0
    assert rows.all() == before
    end_leases(rows)
    assert store.due.reclaim_unstarted([task_id]) == 1
    assert rows.one("status", "attempts", "claim", "due_at") == (0, 0, None, None)


@pytest.mark.parametrize("due_at", ["NULL", "long ago"])
def test_a_row_that_is_no_unstarted_claim_any_more_is_not_taken_back(store: Store, rows: Rows, due_at: str) -> None:
    """Cancelled, done, failed or put off by a person meanwhile, or started by its worker after all."""
    add_many(store, [PLAIN] * 6)
    unstarted = ids(claim(store))
    for status, task_id in zip((0, 2, 3, 4, 5), unstarted, strict=False):
        rows.set(f"status = {status}, claim = NULL WHERE id = {task_id}")
    rows.set(f"started_at = created_at WHERE id = {unstarted[-1]}")
    rows.set(f"due_at = {'NULL' if due_at == 'NULL' else rows.after(-10)}")
    before = rows.all()
    assert store.due.reclaim_unstarted(unstarted) == 0
    assert rows.all() == before


# ---- the record of runs and of their processes


def test_a_process_is_at_work_from_its_begin_to_its_end_and_vanishes_once(store: Store) -> None:
    processes, runs = store.processes, store.runs
    processes.begin(7, "host", "0", "identity")
    assert runs.at_work("host") == [(7, os.getpid(), "identity")]
    assert runs.at_work("another host") == []
    processes.write_counts(7, (6, 5, 4, 3, 2, 1))
    (shown,) = processes.all()
    assert (shown.taken, shown.done, shown.failed, shown.fatal, shown.lost, shown.released) == (6, 5, 4, 3, 2, 1)
    assert [processes.mark_ended(7) for _ in range(2)] == [True, False]
    processes.end(7)
    assert (runs.at_work("host"), processes.mark_ended(7)) == ([], False)


def test_the_leases_of_a_process_that_vanished_are_ended_and_those_of_others_stand(store: Store, rows: Rows) -> None:
    """In progress stays, and is due at once. Another number, or another status: nothing matched."""
    add_many(store, [PLAIN] * 3)
    tasks = claim(store)
    assert start(store, tasks[1])
    number = number_of(tasks[0].claim)
    left = store.processes.claimed_by([number, number + 1])
    assert left[number] == [LeftTask(task.id, "tasks.send", task is tasks[1]) for task in tasks]
    assert left[number + 1] == []
    before = rows.all()
    store.processes.end_leases(number + 1, left[number])
    assert rows.all() == before
    rows.set(f"status = 5 WHERE id = {tasks[2].id}")
    store.processes.end_leases(number, left[number])
    due = store.due.look()
    assert (due.unstarted, [lost.id for lost in due.lost]) == ([tasks[0].id], [tasks[1].id])


def test_a_run_is_recorded_from_its_begin_to_its_end_in_one_row(store: Store, rows: Rows) -> None:
    store.runs.begin("web1", "3,5")
    (run,) = store.views.runs()
    assert (run.host, run.group_ids, run.ended_at, run.reason) == ("web1", "3,5", None, None)
    assert run.started_seconds_ago == pytest.approx(0, abs=30)
    store.runs.end("web1", "3,5", 90.25, "empty", (5, 2, 1, 1, 7))
    (run,) = store.views.runs()
    assert (run.reason, run.taken, run.done, run.fatal, run.lost, run.released) == ("empty", 5, 2, 1, 1, 7)
    assert run.started_at
    assert run.ended_at
    assert rows.seconds_from_now(run.ended_at.replace(tzinfo=None)) == pytest.approx(0, abs=30)
    assert (run.ended_at - run.started_at).total_seconds() == pytest.approx(90.25, abs=0.1)
    store.runs.begin("web1", "3,5")
    store.runs.begin("web1", "all")
    first, second = store.views.runs()
    assert (first.group_ids, first.reason, first.taken, first.ended_at) == ("3,5", None, 0, None)
    assert second.group_ids == "all"


def test_the_record_of_a_host_without_a_run_for_a_month_is_forgotten(store: Store, rows: Rows) -> None:
    for host, days in (("gone", 31), ("daily", 1), ("monthly", 29)):
        store.runs.begin(host, "all")
        began = rows.after(-days * 86_400)
        rows.execute(f"UPDATE jobs_queue_workers SET started_at = {began} WHERE host = '{host}'")
    store.runs.delete_old()
    assert [run.host for run in store.views.runs()] == ["daily", "monthly"]
