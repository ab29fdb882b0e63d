"""What is due: waiting or error → new; an expired lease → new, or if it was started (lost) error, fatal or new."""

from __future__ import annotations

import os

import pytest

from taskserver.model.task import LostTask
from taskserver.stores import Store
from taskserver.stores.queue.claims import number_of
from taskserver.stores.queue.runs import LeftTask
from tests.contract.verbs import PLAIN, add, add_many, claim, claim_one, end_leases, ids, start, wake
from tests.support.rows import Rows


def test_only_waiting_and_failed_rows_that_are_due_are_woken(store: Store, rows: Rows) -> None:
    """Waiting, error → new."""
    added = add_many(store, [PLAIN] * 6)
    for due_at, woken in ((rows.after(-10), (3, 5)), (rows.after(60), ()), ("NULL", ())):
        for status, task_id in enumerate(added):
            rows.set(f"status = {status}, due_at = {due_at} WHERE id = {task_id}")
        before = rows.all()
        assert wake(store) == len(woken)
        assert store.due.wake(added) == 0, "they were not due when they were written"
        for row, old in zip(rows.all(), before, strict=True):
            changed = {"status": 0, "due_at": None, "updated_at": row["updated_at"]} if old["status"] in woken else {}
            assert row == old | changed


def test_a_look_finds_rows_and_schedules_and_numbers_stay_whole_numbers(store: Store, rows: Rows) -> None:
    """Some servers would give all of them as decimals if one column were read together with another's type."""
    for _ in range(3):
        add(store, 3)
    tasks = claim(store)
    assert start(store, tasks[0])
    end_leases(rows)
    rows.set(f"status = 5 WHERE id = {tasks[2].id}")
    for name, seconds in (("now", -1), ("later", 60)):
        values = f"'{name}', 'tasks.send', 7, {rows.after(seconds)}"
        rows.execute(f"INSERT INTO jobs_queue_schedules (name, task, group_id, next_at) VALUES ({values})")
    due = store.due.look()
    assert (due.to_wake, due.unstarted, due.schedules) == ([tasks[2].id], [tasks[1].id], ["now"])
    (lost,) = due.lost
    assert lost._replace(began_seconds_ago=0.0) == LostTask(tasks[0].id, 1, 10, "tasks.send", 3, False)
    assert 0 < lost.began_seconds_ago < 60
    assert {type(number) for number in (*due.to_wake, lost.id, lost.attempts, lost.max_attempts)} == {int}


def test_time_that_passes_makes_the_next_task_due(store: Store, rows: Rows) -> None:
    assert store.due.next_seconds() is None
    task_id = add(store)
    rows.set(f"status = 5, due_at = {rows.after(600)}")
    assert store.due.next_seconds() == pytest.approx(600, abs=30)
    store.due.pass_time(700)
    assert store.due.look().to_wake == [task_id]


# ---- reclaim


def test_a_started_task_is_taken_back_only_as_the_look_saw_it(store: Store, rows: Rows) -> None:
    """Not if it was renewed, started, rerun or cancelled since."""
    add(store)
    assert start(store, claim_one(store))
    end_leases(rows)
    (lost,) = store.due.look().lost
    as_it_was = f"attempts = 1, max_attempts = 10, due_at = {rows.after(-10)}, started_at = created_at"
    for change in (
        *("attempts = 2", "attempts = 0", "max_attempts = 7", "error_text = 'cancelled'"),
        *(f"due_at = {rows.after(60)}", "started_at = NULL"),
    ):
        rows.set(change)
        before = rows.all()
        assert not store.due.reclaim_lost(lost, 3, "lost: x", 0.0)
        assert rows.all() == before
        rows.set(f"{as_it_was}, error_text = NULL")
    assert store.due.reclaim_lost(lost, 1, "lost: x", None)


def test_an_unstarted_task_is_taken_back_only_while_its_lease_is_over(store: Store, rows: Rows) -> None:
    """Not if it was cancelled, done, failed, put off or started meanwhile, or claimed again."""
    add_many(store, [PLAIN] * 8)
    unstarted = ids(claim(store))
    end_leases(rows)
    assert store.due.look().unstarted == unstarted
    for status, task_id in zip((0, 2, 3, 4, 5), unstarted, strict=False):
        rows.set(f"status = {status}, claim = NULL WHERE id = {task_id}")
    rows.set(f"started_at = created_at WHERE id = {unstarted[5]}")
    rows.set(f"due_at = {rows.after(60)} WHERE id = {unstarted[6]}")
    before = rows.all()
    assert store.due.reclaim_unstarted(unstarted) == 1
    assert rows.all()[:-1] == before[:-1]
    row = rows.row(unstarted[-1])
    assert (row["status"], row["attempts"], row["claim"], row["due_at"]) == (0, 0, None, None)


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
    store.runs.end("web1", "3,5", 90.25, "empty", (5, 2, 1, 1, 7))
    (run,) = store.views.runs()
    assert (run.reason, run.taken, run.done, run.fatal, run.lost, run.released) == ("empty", 5, 2, 1, 1, 7)
    assert run.started_at
    assert run.ended_at
    assert (run.ended_at - run.started_at).total_seconds() == pytest.approx(90.25, abs=0.1)
    store.runs.begin("web1", "3,5")
    (run,) = store.views.runs()
    assert (run.reason, run.taken, run.ended_at) == (None, 0, None)
    rows.execute(f"UPDATE jobs_queue_workers SET started_at = {rows.after(-29 * 86_400)}")
    store.runs.delete_old()
    assert len(store.views.runs()) == 1
    rows.execute(f"UPDATE jobs_queue_workers SET started_at = {rows.after(-31 * 86_400)}")
    store.runs.delete_old()
    assert store.views.runs() == []
