"""Stats: counts and times by hour, group and task; a worker adds to them, operators read sums."""

from __future__ import annotations

from taskserver.stores import Store
from taskserver.stores.queue.stats import Stats


def test_counts_add_up_and_the_greatest_times_stay(store: Store) -> None:
    stats = Stats(store)
    for group, task, ran, slowest in ((3, "a", 1.5, 1.0), (3, "b", 4.0, 3.0), (3, "b", 2.0, 2.0), (5, "a", 1.0, 1.0)):
        stats.add([(group, task, 2, 2, 2, 0, 0, 0, ran, slowest, 0.0, 0.0)])
    whole = stats.sums(0, "group_id")[0]  # an hour may have begun meanwhile
    assert (whole.group_id, whole.begun, whole.attempts, whole.done, whole.failed) == (3, 6, 6, 6, 0)
    assert (whole.ran_seconds, whole.slowest_seconds) == (7.5, 3.0)
    assert [(one.task, one.done) for one in stats.sums(0, "task")] == [("a", 4), ("b", 4)]
    assert sum(one.done for one in stats.hours()) == sum(one.done for one in stats.recent()[:2]) == 8
