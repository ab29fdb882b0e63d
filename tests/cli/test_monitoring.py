"""The overview of a queue, which status and whatever else watches a queue show: read by one function, computed once."""

from __future__ import annotations

from typing import get_args

import pytest

from taskserver import TaskServer
from taskserver.doctor.examination import CHECKS
from taskserver.errors import TablesMissing
from taskserver.model.task import Status
from taskserver.monitoring.history import ended_attempts, totals_by, with_empty_hours
from taskserver.monitoring.overview import MAX_RUNNING, Overview, read_overview
from taskserver.stores.database.facts import Facts
from taskserver.stores.queue.stats import HourStats
from tests.support.processes import assert_silent
from tests.support.queues import Queue

NO_ROWS = dict.fromkeys(Status, 0)


def overview_of(queue: Queue) -> Overview:
    with TaskServer(queue.dsn) as server:
        return read_overview(server)


# ---- rows by group and status


def test_the_overview_of_an_empty_queue_has_every_status_and_no_row(queue: Queue) -> None:
    overview = overview_of(queue)
    assert (overview.table, overview.mode) == ("jobs_queue", "delete")
    assert (overview.groups, overview.total) == ({}, (NO_ROWS, None))
    for nothing in (overview.runs, overview.paused_groups, overview.unserved_groups, overview.warnings):
        assert list(nothing) == []
    assert (list(overview.schedules), list(overview.running), overview.has_more_running) == ([], [], False)


def test_rows_are_counted_by_group_in_order_and_together(queue: Queue) -> None:
    for group_id, status in ((7, 0), (3, 0), (3, 0), (3, 4), (7, 9)):
        queue.sql(f"INSERT INTO jobs_queue (task, group_id, status) VALUES ('tasks.note', {group_id}, {status})")
    overview = overview_of(queue)
    assert list(overview.groups) == [3, 7]
    assert overview.groups[3].by_status == NO_ROWS | {Status.NEW: 2, Status.FATAL: 1}
    assert overview.groups[7].by_status == NO_ROWS | {Status.NEW: 1, 9: 1}
    assert overview.total.by_status == NO_ROWS | {Status.NEW: 3, Status.FATAL: 1, 9: 1}
    assert list(overview.total.by_status) == [*Status, 9]
    oldest = [rows.oldest_new_seconds for rows in (*overview.groups.values(), overview.total)]
    assert all(0 <= (seconds or -1) < 60 for seconds in oldest), oldest
    assert oldest[2] == max(oldest[:2])  # type: ignore[type-var]


def test_an_overview_without_tables_is_an_error(dsn: str) -> None:
    with TaskServer(dsn) as server, pytest.raises(TablesMissing):
        read_overview(server)


# ---- runs and groups


def test_groups_that_no_run_serves_and_paused_groups_are_named_in_words(one_queue: Queue) -> None:
    assert_silent(one_queue.worker(1, "3"))
    for group_id in (3, 4, 5):
        one_queue.add("tasks.note", group_id=group_id)
    with TaskServer(one_queue.dsn) as server:
        server.pause(5)
        overview = read_overview(server)
    assert [run.groups for run in overview.runs] == ["groups 3"]
    assert (list(overview.paused_groups), list(overview.unserved_groups)) == ([5], [4])
    unserved, paused = overview.warnings
    assert "1 new task in group 4, which no worker takes" in unserved
    assert "group 5 is paused, with 1 new task" in paused


# ---- running tasks


@pytest.mark.parametrize("count", [MAX_RUNNING, MAX_RUNNING + 1])
def test_an_overview_holds_the_first_running_tasks_that_tell_their_progress(one_queue: Queue, count: int) -> None:
    for _ in range(count):
        one_queue.sql(
            "INSERT INTO jobs_queue (task, status, started_at, progress) "
            f"VALUES ('tasks.note', 1, {one_queue.now}, '{{\"done\":1,\"total\":4}}')"
        )
    overview = overview_of(one_queue)
    assert [task.id for task in overview.running] == list(range(1, MAX_RUNNING + 1))
    assert {task.progress.fraction for task in overview.running} == {0.25}
    assert overview.has_more_running is (count > MAX_RUNNING)


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


def test_an_hour_in_which_nothing_was_done_is_filled_in() -> None:
    hours = list(with_empty_hours([FIRST, SECOND]))
    assert [(one.hour[11:13], ended_attempts(one)) for one in hours] == [("10", 3), ("11", 0), ("12", 2)]


# ---- kinds of databases


def test_the_doctor_has_checks_for_every_kind_of_facts() -> None:
    assert set(get_args(Facts)) == set(CHECKS)
