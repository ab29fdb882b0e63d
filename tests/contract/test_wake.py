"""Wake: waiting or error → new, once due; and the look that finds all that is due."""

from __future__ import annotations

from collections import Counter

import pytest

from taskserver.model.task import LostTask
from taskserver.stores import Store
from tests.contract.verbs import PLAIN, add, add_many, claim, end_leases, start, wake
from tests.support.rows import Rows


@pytest.mark.parametrize("due_at", ["past", "ahead", "none"])
def test_only_waiting_and_failed_rows_that_are_due_are_woken(store: Store, rows: Rows, due_at: str) -> None:
    added = add_many(store, [PLAIN] * 6)
    instant = {"past": rows.after(-10), "ahead": rows.after(60), "none": "NULL"}[due_at]
    for status, task_id in enumerate(added):
        rows.set(f"status = {status}, due_at = {instant} WHERE id = {task_id}")
    before = rows.all()
    woken = {"past": (3, 5), "ahead": (), "none": ()}[due_at]
    assert wake(store) == len(woken)
    assert store.due.wake(added) == 0, "they were not due when they were written"
    for row, old in zip(rows.all(), before, strict=True):
        changed = {"status": 0, "due_at": None, "updated_at": row["updated_at"]} if old["status"] in woken else {}
        assert row == old | changed


def test_what_is_due_is_found_in_portions_the_oldest_of_each_kind_first(store: Store, rows: Rows) -> None:
    """No statement reads or writes more than some hundreds of rows, so nobody waits for it long."""
    most, count, older = 500, 600, 5
    kinds = {
        "failed": "status = 3",
        "waiting": "status = 5",
        "unstarted": "status = 1, claim = 7",
        "lost": "status = 1, claim = 7, started_at = created_at",
    }
    oldest: set[int] = set()
    for kind, values in kinds.items():
        added = add_many(store, [PLAIN._replace(task=kind)] * count)
        rows.set(f"{values}, due_at = {rows.after(-10)} WHERE task = '{kind}'")
        rows.set(f"due_at = {rows.after(-3600)} WHERE id BETWEEN {added[-older]} AND {added[-1]}")
        oldest.update(added[-older:])
    look = store.due.look()
    found = [*look.to_wake, *look.unstarted, *(lost.id for lost in look.lost)]
    kind_of = {row["id"]: row["task"] for row in rows.all(columns="id, task")}
    portions = Counter(kind_of[task_id] for task_id in found)
    assert portions.keys() == kinds.keys()
    assert max(portions.values()) <= most
    assert oldest <= set(found)
    assert store.due.wake(look.to_wake) == len(look.to_wake)
    assert store.due.reclaim_unstarted(look.unstarted) == len(look.unstarted)


def test_a_look_finds_rows_and_schedules_and_numbers_stay_whole_numbers(store: Store, rows: Rows) -> None:
    """Some servers would give all of them as decimals, were one column read together with another's type."""
    for _ in range(3):
        add(store, 3)
    tasks = claim(store)
    assert start(store, tasks[0])
    end_leases(rows)
    rows.set(f"status = 5 WHERE id = {tasks[2].id}")
    for name, seconds in (("late", -60), ("now", -1), ("later", 60)):
        rows.execute(
            "INSERT INTO jobs_queue_schedules (name, task, group_id, next_at) "
            f"VALUES ('{name}', 'tasks.send', 7, {rows.after(seconds)})"
        )
    due = store.due.look()
    assert (due.to_wake, due.unstarted, due.schedules) == ([tasks[2].id], [tasks[1].id], ["late", "now"])
    (lost,) = due.lost
    assert lost._replace(began_seconds_ago=0.0) == LostTask(tasks[0].id, 1, 10, "tasks.send", 3, False)
    assert 0 < lost.began_seconds_ago < 60
    numbers = (*due.to_wake, *due.unstarted, lost.id, lost.attempts, lost.max_attempts, lost.group_id)
    assert {type(number) for number in numbers} == {int}


def test_time_that_passes_makes_the_next_task_due(store: Store, rows: Rows) -> None:
    """Waiting, error → due; the lease of a claim stays as it is."""
    assert store.due.next_seconds() is None
    added = add_many(store, [PLAIN] * 3)
    for task_id, status, seconds in zip(added, (5, 3, 1), (600, 1200, 60), strict=True):
        rows.set(f"status = {status}, due_at = {rows.after(seconds)} WHERE id = {task_id}")
    assert store.due.next_seconds() == pytest.approx(600, abs=30)
    store.due.pass_time(700)
    assert store.due.look().to_wake == added[:1]
    assert store.due.next_seconds() == pytest.approx(500, abs=30)
    assert rows.seconds_from_now(rows.row(added[2])["due_at"]) == pytest.approx(60, abs=30)
