"""What is computed for whoever watches a queue: totals of stats, and which groups no run serves."""

from __future__ import annotations

import pytest

from taskserver.health.coverage import describe_paused, describe_unserved, groups_in, paused_of, unserved
from taskserver.health.history import totals_by
from taskserver.model.task import MAX_GROUP_ID, Status
from taskserver.stores.queue.stats import HourStats, total
from taskserver.stores.records import LastRun, QueueCount

# ---- stats by the hour

FIRST = HourStats("2026-11-22 10:00:00", 3, "tasks.a", attempts=3, done=1, failed=1, lost=1)
SECOND = HourStats("2026-11-22 12:00:00", 3, "tasks.b", attempts=2, done=2)
THIRD = HourStats("2026-11-22 12:00:00", 2, "tasks.a", attempts=1, done=1)


@pytest.mark.parametrize(
    ("column", "done"),
    [
        ("hour", {FIRST.hour: 1, SECOND.hour: 3}),
        ("group_id", {2: 1, 3: 3}),
        ("task", {"tasks.a": 2, "tasks.b": 2}),
    ],
)
def test_stats_are_summed_by_hour_group_or_name_in_order(column: str, done: dict[object, int]) -> None:
    totals = totals_by(column, [THIRD, FIRST, SECOND])
    assert [(getattr(one, column), one.done) for one in totals] == list(done.items())


def test_a_total_adds_up_and_has_the_greatest_of_the_slowest() -> None:
    several = [
        HourStats(FIRST.hour, 0, "a", 1, 2, 3, 4, 5, 6, 7.0, 8.0, 9.0, 10.0),
        HourStats(FIRST.hour, 1, "b", 1, 1, 1, 1, 1, 1, 1.0, 9.0, 1.0, 1.0),
    ]
    assert total(several) == HourStats(FIRST.hour, 0, "a", 2, 3, 4, 5, 6, 7, 8.0, 9.0, 10.0, 10.0)


# ---- groups that no run serves


def a_run(group_ids: str, seconds_ago: float = 60.0) -> LastRun:
    return LastRun("host", group_ids, 1, "", seconds_ago, "x", "empty", 0, 0, 0, 0, 0, None)


def rows_of(group_id: int, status: Status = Status.NEW) -> QueueCount:
    return QueueCount(group_id, status, 1, 1.0)


@pytest.mark.parametrize(
    ("groups", "runs", "expected"),
    [
        ([1], [], []),
        ([1], [a_run("all")], []),
        ([1, 2], [a_run("1")], [2]),
        ([1, 2], [a_run("1"), a_run("2")], []),
        ([1, 2], [a_run("1"), a_run("2", 8 * 86_400)], [2]),
        ([1, 2], [a_run("1"), a_run("all", 8 * 86_400)], [2]),
        ([1, 2], [a_run("3"), a_run("all", -400_000.0)], [1, 2]),
        ([1, 2], [a_run("1,3,...deadbeef")], []),
        ([1, 2], [a_run("1,²")], [2]),
    ],
)
def test_a_group_is_served_by_a_worker_of_the_last_days(
    groups: list[int], runs: list[LastRun], expected: list[int]
) -> None:
    counts = [rows_of(group) for group in groups]
    assert [count.group_id for count in unserved(counts, runs)] == expected
    assert bool(describe_unserved(counts, runs)) == bool(expected)


def test_a_forged_record_of_a_run_names_no_group() -> None:
    assert groups_in(f"3,{'9' * 5000},x,²,-1,6") == {3, 6}


def test_only_new_tasks_of_a_group_count_as_unserved() -> None:
    assert unserved([rows_of(2, Status.FATAL)], [a_run("1")]) == []


def test_paused_groups_are_told_with_their_new_tasks_and_so_is_a_pause_of_all() -> None:
    counts = [rows_of(1), rows_of(2), rows_of(2, Status.FATAL)]

    def told(groups: list[int], are_all: bool = False) -> str | None:
        return describe_paused(counts, paused_of(counts, groups, are_all))

    new = {count.group_id: count.rows for count in counts if count.status == Status.NEW}
    assert told([]) is None
    assert str(told([2, 5])).startswith(f"groups 2, 5 are paused, with {new[2]} new task")
    assert str(told([5], are_all=True)).startswith(f"all groups are paused, with {new[1] + new[2]} new task")
    assert paused_of(counts, [5], True).groups == [1, 2, 5]
    assert paused_of(counts, [5, MAX_GROUP_ID], False).groups == [5, MAX_GROUP_ID]
    assert (describe_paused([], paused_of([], [MAX_GROUP_ID], True)) or "").startswith("all groups are paused, with 0 ")


# ---- kinds of databases
