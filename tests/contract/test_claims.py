"""What every store does with a claim: which tasks it takes, what it says of them, and how they are given back.

That it takes only new rows, each once, test_store_machine.py shows.
"""

from __future__ import annotations

import threading
from typing import Any

import pytest

from taskserver.errors import InvalidTask
from taskserver.model.task import MAX_GROUP_ID, Claim, ClaimedTask
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
    finish,
    ids,
    pause,
    rerun,
    start,
    take_away,
    wake,
)
from tests.support.processes import WAIT_SECONDS
from tests.support.rows import Rows
from tests.support.threads import together

LEASE_SECONDS = 120

# ---- which tasks


@pytest.mark.parametrize("groups", [(), (3, 5, 6)])
def test_a_claim_takes_tasks_by_priority_then_id_across_groups(store: Store, groups: tuple[int, ...]) -> None:
    order = [(3, 5), (5, 5), (6, -1), (3, -1), (5, 0), (6, -2_147_483_648), (3, 2_147_483_647), (5, -1), (6, 5)]
    in_order = [task_id for _, task_id in sorted((priority, add(store, group, priority)) for group, priority in order)]
    for limit, expected in ((4, in_order[:4]), (3, in_order[4:7]), (3, in_order[7:]), (3, [])):
        assert ids(claim(store, limit, *groups)) == expected


def test_a_look_for_new_rows_waits_for_nobody(store: Store, rows: Rows) -> None:
    add(store, 3)
    rows.execute(rows.begin)
    rows.set("status = 1 WHERE status = 0")
    # Were it to wait, the lock would stay for as long as this thread waits, and the look would end in an error.
    assert store.claims.has_new(())
    assert store.claims.has_new((3, 5))
    rows.execute("COMMIT")
    assert not store.claims.has_new(())
    assert not store.claims.has_new((3, 5))


def test_threads_of_one_store_have_connections_of_their_own(store: Store, rows: Rows) -> None:
    line = threading.Barrier(4)

    def work() -> None:
        line.wait(WAIT_SECONDS)
        for _ in range(10):
            add(store)
            for task in claim(store, 2):
                assert start(store, task)
                assert finish(store, task)

    with together(*[work] * 4):
        pass
    for task in claim(store):
        assert finish(store, task)
    assert rows.all() == []


# ---- what a claim writes and returns


def test_a_claim_writes_its_token_and_its_lease_and_counts_no_attempt(store: Store, rows: Rows) -> None:
    add(store)
    task = claim_one(store)
    assert rows.one("status", "claim", "attempts", "started_at") == (1, task.claim, 0, None)
    assert rows.seconds_from_now(rows.one("due_at")) == pytest.approx(LEASE_SECONDS, abs=30)


def test_a_claim_tells_what_the_row_says(store: Store, rows: Rows) -> None:
    task_id = add(store, 3, -4, "tasks.send", '["ü"]')
    rows.set("attempts = 2, max_attempts = 7")
    task = claim_one(store)
    assert task._replace(waited_seconds=0) == ClaimedTask(task_id, "tasks.send", '["ü"]', 6, 2, 7, task.claim, 3)
    assert task.waited_seconds == pytest.approx(0, abs=30)


@pytest.mark.parametrize("letter", ["x", "ä", "🦊"])
def test_arguments_are_left_in_the_database_by_their_bytes(store: Store, letter: str) -> None:
    width = len(letter.encode())
    fits = '["' + letter * ((MAX_INLINE_BYTES - 4) // width) + '"]' + " " * ((MAX_INLINE_BYTES - 4) % width)
    assert len(fits.encode()) == MAX_INLINE_BYTES
    add(store, args=fits)
    add(store, args=fits + " ")
    short, long = claim(store)
    assert (short.args, short.args_bytes) == (fits, MAX_INLINE_BYTES)
    assert (long.args, long.args_bytes) == (None, MAX_INLINE_BYTES + 1)
    assert store.claims.fetch_texts(long).args == fits + " "


def test_a_claim_of_many_rows_holds_no_more_arguments_than_one_of_few(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "MAX_CLAIM_BYTES", 30)
    for _ in range(5):
        add(store, args='["1234"]')
    assert [task.args for task in claim(store, 3)] == ['["1234"]'] * 3
    add(store, args='["12345"]')
    for _ in range(2):
        add(store, args="[]")
    few = claim(store, 5)
    assert [task.args for task in few] == [None, None, None, "[]", "[]"]
    assert [store.claims.fetch_texts(task).args for task in few[:3]] == ['["1234"]', '["1234"]', '["12345"]']


def test_long_stages_are_left_in_the_database_beside_short_arguments(store: Store, rows: Rows) -> None:
    stages = f'["tasks.send{" " * MAX_INLINE_BYTES}"]'
    add(store, args="[]")
    rows.set(f"stages = '{stages}'")
    task = claim_one(store)
    assert (task.args, task.stages, task.stages_bytes, task.text_bytes) == ("[]", None, len(stages), len(stages) + 2)
    assert store.claims.fetch_texts(task) == task._replace(stages=stages)


def test_arguments_of_a_mebibyte_come_back_unchanged_to_who_holds_the_claim(store: Store, rows: Rows) -> None:
    args = '["' + "\\\\" * (512 * 1024 - 2) + '"]'
    task_id = add(store, args=args)
    task = claim_one(store)
    assert (task.args, task.args_bytes) == (None, 1024 * 1024)
    assert store.claims.fetch_texts(task).args == args
    take_away(rows, task_id)
    assert store.claims.fetch_texts(task).args is None


def test_a_task_without_arguments_has_none(store: Store) -> None:
    add(store)
    add(store, args="")
    assert [(task.args, task.args_bytes) for task in claim(store)] == [(None, None), ("", 0)]


# ---- how long a task waited


def test_a_claim_tells_how_long_a_task_was_ready(store: Store, rows: Rows) -> None:
    """To give it back, or to take it back unstarted, changes nothing in that."""
    add(store)
    rows.set(f"created_at = {rows.after(-900)}, updated_at = {rows.after(-500)}")
    since = rows.one("updated_at")
    task = claim_one(store)
    assert task.waited_seconds == pytest.approx(500, abs=30)
    assert rows.one("updated_at") == since
    assert store.claims.release([task]) == 1
    assert rows.one("updated_at") == since
    assert claim_one(store).waited_seconds == pytest.approx(500, abs=30)
    end_leases(rows)
    assert store.due.reclaim_unstarted(store.due.look().unstarted) == 1
    assert rows.one("updated_at") == since
    assert claim_one(store).waited_seconds == pytest.approx(500, abs=30)


@pytest.mark.parametrize(("due", "written"), [(-200, -900), (-900, -200)], ids=["after it was added", "before"])
@pytest.mark.parametrize("status", [3, 5])
def test_a_woken_task_was_ready_from_its_time_on_and_not_before_it_was_there(
    store: Store, rows: Rows, status: int, due: int, written: int
) -> None:
    add(store)
    rows.set(f"status = {status}, due_at = {rows.after(due)}, updated_at = {rows.after(written)}")
    later = max(rows.one("due_at", "updated_at"))
    assert wake(store) == 1
    assert rows.one("updated_at") == later
    assert claim_one(store).waited_seconds == pytest.approx(200, abs=30)


def test_a_task_that_is_run_again_is_ready_from_then_on(store: Store, rows: Rows) -> None:
    store.producing.add(rerun("[1]"))
    rows.set(f"status = 4, updated_at = {rows.after(-900)}, created_at = {rows.after(-900)}")
    store.producing.add(rerun("[2]"))
    assert claim_one(store).waited_seconds == pytest.approx(0, abs=30)


def test_an_instant_of_a_producer_s_own_tells_of_no_wait(store: Store, rows: Rows) -> None:
    add(store)
    rows.set(f"updated_at = {rows.after(900)}")
    assert claim_one(store).waited_seconds == 0
    if rows.is_sqlite:
        add(store)
        rows.set("updated_at = 'never' WHERE status = 0")
        assert claim_one(store).waited_seconds == 0


# ---- release


def test_released_tasks_stand_in_their_old_place_with_nothing_counted(store: Store, rows: Rows) -> None:
    order = [(3, 5), (5, 0), (3, -1), (5, 5), (3, 0)]
    added = [(priority, add(store, group, priority)) for group, priority in order]
    rows.set("attempts = 3, max_attempts = 9, error_text = 'ValueError: before'")
    before = rows.all()
    assert store.claims.release(claim(store, 3, 3, 5)) == 3
    after = rows.all()
    for row in before + after:
        del row["updated_at"]
    assert after == before
    assert ids(claim(store, 100, 3, 5)) == [task_id for _, task_id in sorted(added)]


def test_of_a_thousand_tasks_all_are_released_but_one_that_was_started(store: Store, rows: Rows) -> None:
    add_many(store, [PLAIN] * 1000)
    tasks = claim(store, 1000)
    assert start(store, tasks[1])
    assert store.claims.release(tasks) == 999
    assert rows.statuses() == [0, 1] + [0] * 998


# ---- paused groups


def test_a_claim_of_given_groups_passes_over_those_that_are_paused(store: Store, rows: Rows) -> None:
    three, five, six = (add(store, group, -group) for group in (3, 5, 6))
    pause(rows, 5, 77)
    assert store.claims.paused() == ([5, 77], False)
    assert [store.claims.has_new(groups) for groups in ((3, 5), (5,), (5, 77))] == [True, False, False]
    assert claim(store, 100, 5) == []
    assert ids(claim(store, 100, 3, 5)) == [three]
    assert not store.claims.has_new((3, 5))
    rows.execute("DELETE FROM jobs_queue_paused")
    assert store.claims.has_new((3, 5))
    assert ids(claim(store, 100, 3, 5, 6)) == [six, five]


def test_no_claim_takes_a_row_while_all_groups_are_paused(store: Store) -> None:
    """Not even of a group that is named, or first used later."""
    first, claims = add(store, 3), store.claims
    claims.pause([3])
    other = add(store, MAX_GROUP_ID)
    assert claims.paused() == ([3], False)
    assert ids(claim(store)) == [other]
    for _ in range(2):  # safe to repeat
        claims.pause_all()
    assert claims.paused() == ([3], True)
    later = add(store, 77)
    for groups in ((), (3,), (77,), (3, 77)):
        assert claim(store, 100, *groups) == []
        assert not claims.has_new(groups)
    with pytest.raises(InvalidTask, match=r"all groups are paused: run client\.py resume --all first"):
        claims.resume([77])
    assert claims.resume_all() == 2
    assert ids(claim(store)) == [first, later]


def test_a_claim_puts_off_what_is_not_due_beside_paused_groups_and_in_none_of_them(store: Store, rows: Rows) -> None:
    for group in (3, 5):
        add(store, group)
    rows.set(f"due_at = {rows.after(60)}")
    pause(rows, 5)
    assert store.claims.claim(100, ()) == Claim([], 1)
    assert rows.statuses() == [5, 0]
    assert not store.claims.has_new(())


def test_of_more_groups_than_one_claim_can_name_all_have_their_turn_beside_a_paused_one(
    store: Store, rows: Rows
) -> None:
    add_many(store, [PLAIN._replace(priority=-1)] * 1100)  # in front, and more than a claim passes over
    add_many(store, (PLAIN._replace(group_id=group) for group in range(1, 1000)))
    pause(rows, 0, 999)
    claimed: list[int] = []
    while store.claims.has_new(()):
        more = claim(store, 1000)
        assert more, "rows of groups that are not paused are there, and no claim gets them"
        claimed += ids(more)
    left = rows.execute("SELECT group_id FROM jobs_queue WHERE status = 0 ORDER BY group_id")
    assert left == [*[(0,)] * 1100, (999,)]
    assert len(set(claimed)) == 998


def test_a_paused_backlog_of_many_groups_hides_no_task_of_others(store: Store, rows: Rows) -> None:
    paused = range(2, 1402, 2)
    add_many(store, (PLAIN._replace(group_id=group, priority=-1) for group in [*paused, *paused]))
    pause(rows, *paused)
    order = [(301, 5), (5000, 4), (0, 4), (301, -9), (1401, 5)]
    in_order = [task_id for _, task_id in sorted((priority, add(store, group, priority)) for group, priority in order)]
    claimed: list[int] = []
    while store.claims.has_new(()):
        more = ids(claim(store, 2))
        assert more
        claimed += more
    assert claimed == in_order


def test_a_pause_and_a_new_group_are_heeded_by_claims_that_remember_groups(store: Store, rows: Rows) -> None:
    add(store, 2)
    pause(rows, 2)
    first, _, other = add(store, 1), add(store, 1), add(store, 3)
    assert ids(claim(store, 1)) == [first]
    pause(rows, 1)
    assert ids(claim(store)) == [other]
    later = add(store, 7)
    assert store.claims.has_new(())
    assert ids(claim(store)) == [later]
    assert not store.claims.has_new(())


def test_each_group_has_its_turn_though_the_tasks_of_others_never_end(
    store: Store, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "MAX_GROUPS", 3)
    add_many(store, (PLAIN._replace(group_id=group) for _ in range(60) for group in range(10)))
    pause(rows, 0)
    claimed: set[int] = set()
    for _ in range(50):
        assert store.claims.has_new(())  # a new list
        claimed |= {task.group_id for task in claim(store, 3)}
    assert claimed == set(range(1, 10))


def test_a_claim_of_many_listed_groups_reads_few_rows_of_each(
    store: Store, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "MAX_LISTED_ROWS", 8)
    add_many(store, (PLAIN._replace(group_id=group) for group in range(5) for _ in range(3)))
    pause(rows, 0)
    assert [len(claim(store)) for _ in range(8)] == [2, 2, 2, 2, 2, 2, 0, 0]


def test_a_claim_that_took_effect_twice_gives_back_what_is_too_much(
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
