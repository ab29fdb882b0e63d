"""Stats: counts and times by hour, group and task; a worker adds to them, operators read sums."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest

from taskserver.errors import Conflict
from taskserver.stores import Store
from taskserver.stores import retrying as tries
from taskserver.stores.queue import stats
from taskserver.stores.queue.stats import Stats
from taskserver.stores.sqlite import session as sqlite
from tests.support.locks import holding
from tests.support.processes import WAIT_SECONDS
from tests.support.rows import Rows
from tests.support.threads import together


def counted(group_id: int, task: str, done: int = 1, ran: float = 1.0, slowest: float = 1.0) -> tuple[Any, ...]:
    """What a worker adds."""
    return (group_id, task, done, done, done, 0, 0, 0, ran, slowest, 0.0, 0.0)


def test_counts_add_up_and_the_greatest_times_stay(store: Store) -> None:
    for ran, slowest in ((1.5, 1.0), (4.0, 3.0), (2.0, 2.0)):
        Stats(store).add([counted(3, "tasks.a", 2, ran, slowest)])
    (whole,) = Stats(store).sums(0, "group_id")  # an hour may have begun meanwhile
    assert (whole.group_id, whole.begun, whole.attempts, whole.done, whole.failed) == (3, 6, 6, 6, 0)
    assert (whole.ran_seconds, whole.slowest_seconds) == (7.5, 3.0)


def test_more_rows_than_a_statement_takes_are_added_all_or_none(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [counted(group, "tasks.a") for group in range(stats.MAX_ROWS_PER_STATEMENT * 3 + 1)]
    Stats(store).add(rows)
    execute = store.database.execute

    def fail_late(sql: str, values: Sequence[Any] = ()) -> Any:
        if len(values) == len(rows[0]):  # the last statement's one row
            raise Conflict("in the way")
        return execute(sql, values)

    monkeypatch.setattr(store.database, "execute", fail_late)
    monkeypatch.setattr(stats, "CONFLICT_SECONDS", 0)
    with pytest.raises(Conflict):
        Stats(store).add(rows)
    assert [(one.group_id, one.done) for one in Stats(store).sums(0, "group_id")] == [(row[0], 1) for row in rows]


def test_stats_are_summed_in_the_database(store: Store, rows: Rows) -> None:
    hour = f"{store.database.now():%Y-%m-%d %H}:00:00"
    for group, task, done, slowest in ((3, "a", 1, 5.0), (3, "b", 2, 7.0), (5, "a", 4, 1.0)):
        rows.execute(
            "INSERT INTO jobs_queue_stats (hour, group_id, task, done, attempts, slowest_seconds, ran_seconds) "
            f"VALUES ('{hour}', {group}, '{task}', {done}, {done}, {slowest}, 1.5)"
        )
    stats = Stats(store)
    (whole,) = stats.sums(0, "hour")
    assert (str(whole.hour)[:19], whole.done, whole.slowest_seconds, whole.ran_seconds) == (hour, 7, 7.0, 4.5)
    assert [(one.group_id, one.done) for one in stats.sums(0, "group_id")] == [(3, 3), (5, 4)]
    assert [(one.task, one.done) for one in stats.sums(0, "task")] == [("a", 5), ("b", 2)]
    assert [(one.group_id, one.task, one.done) for one in stats.hours()] == [(3, "a", 1), (3, "b", 2), (5, "a", 4)]
    assert sum(one.done for one in stats.recent()[:2]) == 7  # an hour may have begun meanwhile


def test_counts_in_whose_way_others_are_are_a_conflict_and_not_written(
    store: Store, queue_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stats, "CONFLICT_SECONDS", 0.1)
    monkeypatch.setattr(sqlite, "LOCK_WAIT_SECONDS", 0.1)
    kept = Stats(store)
    kept.add([counted(0, "tasks.a")])
    store.close()  # it connects again with the shorter time
    with holding(queue_dsn, table="jobs_queue_stats"), pytest.raises(Conflict) as caught:
        kept.add([counted(0, "tasks.a")])
    assert not caught.value.in_doubt
    assert [one.done for one in kept.sums(0, "task")] == [1]


def test_workers_that_write_the_same_counts_at_once_add_up_and_do_not_deadlock(
    open_store: Callable[..., Store], queue_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"tasks.t{number}" for number in range(40)]
    Stats(open_store()).add(counted(0, name) for name in names)
    conflicts: list[str] = []
    entered = threading.Semaphore(0)
    wait_to_retry, add = tries.Tries.wait_to_retry, Stats.add

    def noted(self: tries.Tries, error: Any) -> bool:
        conflicts.append(str(error))
        return wait_to_retry(self, error)

    def announced(self: Stats, rows: Any) -> None:
        entered.release()
        add(self, rows)

    monkeypatch.setattr(tries.Tries, "wait_to_retry", noted)
    monkeypatch.setattr(Stats, "add", announced)

    def write_often(store: Store, seed: int) -> None:
        mine = Stats(store)
        for _ in range(10):
            mine.add(counted(0, name) for name in random.Random(seed).sample(names, len(names)))
        store.close()

    writers = [partial(write_often, open_store(), seed) for seed in range(4)]
    with holding(queue_dsn, table="jobs_queue_stats") as let_go, together(*writers):
        for _ in range(4):
            assert entered.acquire(timeout=WAIT_SECONDS)
        let_go()
    assert {one.done for one in Stats(open_store()).sums(0, "task")} == {1 + 4 * 10}
    assert not [text for text in conflicts if "(1213)" in text]
