"""Stats: counts and times by hour, group and task; a worker adds to them, operators read sums."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from taskserver.stores import Store
from taskserver.stores.queue.stats import MAX_ROWS_PER_STATEMENT, Stats
from tests.support.processes import WAIT_SECONDS, together


def counted(group_id: int, task: str, done: int = 1, ran: float = 1.0, slowest: float = 1.0) -> tuple[Any, ...]:
    """What a worker adds."""
    return (group_id, task, done, done, done, 0, 0, 0, ran, slowest, 0.0, 0.0)


def test_counts_add_up_and_the_greatest_times_stay(store: Store) -> None:
    stats = Stats(store)
    for group, task, ran, slowest in ((3, "a", 1.5, 1.0), (3, "b", 4.0, 3.0), (3, "b", 2.0, 2.0), (5, "a", 1.0, 1.0)):
        stats.add([counted(group, task, 2, ran, slowest)])
    whole = stats.sums(0, "group_id")[0]  # an hour may have begun meanwhile
    assert (whole.group_id, whole.begun, whole.attempts, whole.done, whole.failed) == (3, 6, 6, 6, 0)
    assert (whole.ran_seconds, whole.slowest_seconds) == (7.5, 3.0)
    assert [(one.task, one.done) for one in stats.sums(0, "task")] == [("a", 4), ("b", 4)]
    assert sum(one.done for one in stats.hours()) == sum(one.done for one in stats.recent()[:2]) == 8


def test_more_rows_than_a_statement_takes_are_added(store: Store) -> None:
    rows = [counted(group, "tasks.a") for group in range(MAX_ROWS_PER_STATEMENT * 3 + 1)]
    for _ in range(2):
        Stats(store).add(rows)
    assert [(one.group_id, one.done) for one in Stats(store).sums(0, "group_id")] == [(row[0], 2) for row in rows]


def test_workers_that_write_the_same_counts_at_once_add_up(open_store: Callable[..., Store], queue_dsn: str) -> None:
    names = [f"tasks.t{number}" for number in range(40)]
    Stats(open_store()).add(counted(0, name) for name in names)
    line = threading.Barrier(4, timeout=WAIT_SECONDS)

    def write_often(store: Store, seed: int) -> None:
        mine = Stats(store)
        line.wait()
        for _ in range(10):
            mine.add(counted(0, name) for name in random.Random(seed).sample(names, len(names)))
        store.close()

    with together(*[partial(write_often, open_store(), seed) for seed in range(4)]):
        pass
    assert {one.done for one in Stats(open_store()).sums(0, "task")} == {1 + 4 * 10}
