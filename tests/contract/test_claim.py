"""Claim: new → in progress, for tasks of some groups in their order; read; release: in progress, unstarted → new.

test_store_machine.py shows that a claim takes only new rows, each once.
"""

from __future__ import annotations

from typing import Any

import pytest

from taskserver.model.task import Claim, ClaimedTask
from taskserver.stores import Store
from taskserver.stores.queue import claims
from taskserver.stores.queue.claims import MAX_INLINE_BYTES
from tests.contract.verbs import (
    PLAIN,
    add,
    add_many,
    claim,
    claim_one,
    end_leases,
    ids,
    rerun,
    start,
    take_away,
    wake,
)
from tests.support.databases import EACH_SERVER
from tests.support.locks import holding
from tests.support.queues import server_skips_locked
from tests.support.rows import Rows

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


def test_a_look_for_new_rows_waits_for_nobody(store: Store, rows: Rows) -> None:
    add(store, 3)
    rows.execute(rows.begin)
    rows.set("status = 1 WHERE status = 0")
    # A look that waits would end in an error: this thread holds the lock.
    assert [store.claims.has_new(groups) for groups in ((), (3, 5))] == [True, True]
    rows.execute("COMMIT")
    assert [store.claims.has_new(groups) for groups in ((), (3, 5))] == [False, False]


@EACH_SERVER
@pytest.mark.parametrize("groups", [(), (0,)], ids=["all", "some"])
def test_a_claim_goes_behind_any_number_of_rows_that_others_hold(
    store: Store, queue_dsn: str, groups: tuple[int, ...]
) -> None:
    if not server_skips_locked(queue_dsn):
        pytest.skip("it has no SKIP LOCKED")
    added = add_many(store, [PLAIN] * 1000)
    with holding(queue_dsn, f"id < {added[900]}"):
        assert ids(claim(store, 10, *groups)) == added[900:910]


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


def test_a_claim_of_many_rows_holds_no_more_arguments_than_one_of_few(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "MAX_CLAIM_BYTES", 30)
    for args in ['["1234"]'] * 5 + ['["12345"]', "[]"]:
        add(store, args=args)
    assert [task.args for task in claim(store, 3)] == ['["1234"]'] * 3
    few = claim(store, 5)
    assert [task.args for task in few] == [None, None, None, "[]"]
    assert [store.claims.fetch_texts(task).args for task in few[:3]] == ['["1234"]', '["1234"]', '["12345"]']


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


@pytest.mark.parametrize(("due", "written"), [(-200, -900), (-900, -200)], ids=["after it was added", "before"])
def test_a_woken_task_was_ready_from_its_time_on_and_not_before_it_was_there(
    store: Store, rows: Rows, due: int, written: int
) -> None:
    add(store)
    rows.set(f"status = 5, due_at = {rows.after(due)}, updated_at = {rows.after(written)}")
    assert wake(store) == 1
    assert claim_one(store).waited_seconds == pytest.approx(200, abs=30)


def test_of_many_tasks_all_but_a_started_one_are_released_with_nothing_counted(store: Store, rows: Rows) -> None:
    add_many(store, [PLAIN] * 600)
    rows.set("attempts = 3, max_attempts = 9, error_text = 'ValueError: before'")
    before = rows.all()
    tasks = claim(store, 1000)
    assert start(store, tasks[1])
    assert store.claims.release(tasks) == 599
    assert [row for row in rows.all() if row["id"] != tasks[1].id] == before[:1] + before[2:]
    assert rows.row(tasks[1].id)["status"] == 1
