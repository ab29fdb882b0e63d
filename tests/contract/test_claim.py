"""Claim: new → in progress; read; release: in progress, unstarted → new; start: unstarted → started.

test_fences.py shows which rows these verbs leave, test_finish.py that a start shares a commit with a finish.
"""

from __future__ import annotations

from typing import Any

import pytest

from taskserver.model.attempt import Start
from taskserver.model.task import Claim, ClaimedTask
from taskserver.stores import Store
from taskserver.stores.queue.batches import Batches
from taskserver.stores.queue.claims import MAX_INLINE_BYTES
from tests.contract.verbs import PLAIN, add, add_many, claim, claim_one, end_leases, ids, rerun, start, take_away
from tests.support.rows import Rows, as_instant

LEASE_SECONDS = 120


@pytest.mark.parametrize("groups", [(), (3, 5, 6)])
def test_a_claim_takes_tasks_by_priority_then_id_across_groups(store: Store, groups: tuple[int, ...]) -> None:
    order = [(3, 5), (5, 5), (6, -1), (3, -1), (5, 0), (6, -2_147_483_648), (3, 2_147_483_647), (5, -1), (6, 5)]
    in_order = [task_id for _, task_id in sorted((priority, add(store, group, priority)) for group, priority in order)]
    for limit, expected in ((4, in_order[:4]), (3, in_order[4:7]), (3, in_order[7:]), (3, [])):
        assert ids(claim(store, limit, *groups)) == expected


def test_a_claim_writes_its_token_and_lease_and_returns_the_row(store: Store, rows: Rows) -> None:
    task_id = add(store, 3, -4, args='["ü"]')
    rows.set("attempts = 2, max_attempts = 7")
    task = claim_one(store)
    assert task._replace(waited_seconds=0) == ClaimedTask(task_id, "tasks.send", '["ü"]', 6, 2, 7, task.claim, 3)
    assert rows.one("status", "claim", "attempts", "started_at") == (1, task.claim, 2, None)
    assert rows.seconds_from_now(rows.one("due_at")) == pytest.approx(LEASE_SECONDS, abs=30)


def test_a_new_row_whose_time_is_in_the_future_becomes_waiting(store: Store, rows: Rows) -> None:
    later, now = add(store, priority=-1), add(store)
    rows.set(f"due_at = {rows.after(3600)} WHERE id = {later}")
    due_at = rows.row(later)["due_at"]
    claimed = store.claims.claim(100, ())
    assert (ids(claimed.tasks), claimed.changed) == ([now], 2)
    row = rows.row(later)
    assert (row["status"], row["due_at"], row["claim"], row["attempts"]) == (5, due_at, None, 0)
    assert store.claims.claim(100, ()) == Claim([], 0)


def test_a_claim_that_took_effect_twice_releases_what_is_too_much(
    store: Store, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a connection breaks before the first answer comes."""
    add_many(store, [PLAIN] * 5)
    run_in_doubt = store.database.run_in_doubt

    def run_twice(policy: Any, work: Any, *args: Any) -> Any:
        is_claim = work == store.database.dialect.claiming.claim
        first = run_in_doubt(policy, work, *args)
        return (run_in_doubt(policy, work, *args)[0], True) if is_claim else first

    monkeypatch.setattr(store.database, "run_in_doubt", run_twice)
    assert len(claim(store, 2)) == 2
    assert rows.statuses() == [1, 1, 0, 0, 0]


def test_long_texts_are_left_in_the_database_and_read_while_the_claim_stands(store: Store, rows: Rows) -> None:
    """By their bytes."""
    fits, longer = "[" + "ä" * (MAX_INLINE_BYTES // 2 - 1) + "]", '["' + "\\\\" * (512 * 1024 - 2) + '"]'
    added = [add(store, args=args) for args in (fits, longer, None, "")]
    rows.set(f"stages = '{fits} ' WHERE id = {added[3]}")
    tasks = claim(store)
    assert [(task.args, task.args_bytes) for task in tasks] == [
        *((fits, MAX_INLINE_BYTES), (None, 1024 * 1024), (None, None), ("", 0))
    ]
    assert (tasks[3].stages, tasks[3].stages_bytes) == (None, MAX_INLINE_BYTES + 1)
    assert store.claims.fetch_texts(tasks[3]).stages == fits + " "
    assert store.claims.fetch_texts(tasks[1]).args == longer
    take_away(rows, added[1])
    assert store.claims.fetch_texts(tasks[1]).args is None


def test_a_claim_says_how_long_a_task_was_ready(store: Store, rows: Rows) -> None:
    """Claim, release and reclaim change nothing in that. A task that is run again did not wait yet."""
    store.producing.add(rerun("[1]"))
    rows.set(f"created_at = {rows.after(-900)}, updated_at = {rows.after(-500)}")
    since = rows.one("updated_at")
    for give_back in ("release", "reclaim", None):
        task = claim_one(store)
        assert task.waited_seconds == pytest.approx(500, abs=30)
        if give_back == "release":
            assert store.claims.release([task]) == 1
        elif give_back == "reclaim":
            end_leases(rows)
            assert store.due.reclaim_unstarted([task.id]) == 1
        assert rows.one("updated_at") == since
    store.producing.add(rerun("[2]"))
    assert claim_one(store).waited_seconds == pytest.approx(0, abs=30)


def test_of_many_tasks_all_but_a_started_one_are_released_with_nothing_counted(store: Store, rows: Rows) -> None:
    add_many(store, [PLAIN] * 600)
    rows.set("attempts = 3, max_attempts = 9, error_text = 'ValueError: before'")
    before = rows.all()
    tasks = claim(store, 1000)
    assert start(store, tasks[1])
    assert store.claims.release(tasks) == 599
    assert [row for row in rows.all() if row["id"] != tasks[1].id] == before[:1] + before[2:]
    assert rows.row(tasks[1].id)["status"] == 1


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
