"""What operators read of the figures: TaskServer.stats, `client.py stats`, and the hours in `client.py status`."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from taskserver import TaskServer
from taskserver.cli.terminal.output import MAX_LINES
from taskserver.stores.queue.stats import HourStats, Stats
from tests.support.printed import json_of, text_of
from tests.support.processes import wait_until
from tests.support.queues import Queue
from tests.support.rows import HOURS_AGO, MINUTE_AND_SECOND

ADD_HOUR = """
    INSERT INTO jobs_queue_stats (hour, group_id, task, begun, attempts, done, failed, fatal, lost,
        ran_seconds, slowest_seconds, waited_seconds, longest_wait_seconds)
    VALUES ({}, ?, ?, 6, 6, ?, 2, 1, 1, 8, 3, 16, 9.5)
"""


def hours_ago(queue: Queue, number: int) -> str:
    """SQL for the hour so many hours ago."""
    return HOURS_AGO[queue.kind].format(number)


@pytest.fixture
def known(queue: Queue) -> Queue:
    """A queue with known figures."""
    return with_figures(queue)


def with_figures(queue: Queue) -> Queue:
    """Of this hour, of the one before, of three hours ago, and of a week ago."""
    wait_until(lambda: not is_about_to_turn(queue))
    for number, group, task, done in (
        (0, 0, "tasks.a", 4),
        (1, 0, "tasks.a", 40),
        (1, 3, "tasks.b", 2),
        (3, 3, "tasks.b", 7),
        (168, 5, "", 1),
    ):
        queue.sql(ADD_HOUR.format(hours_ago(queue, number)), group, task, done)
    return queue


def is_about_to_turn(queue: Queue) -> bool:
    """Whether the hour ends before a test does."""
    return int(queue.sql(f"SELECT {MINUTE_AND_SECOND[queue.kind]}")[0][0]) > 5945


def test_of_many_groups_a_person_sees_the_largest_and_the_sum_of_the_rest(queue: Queue) -> None:
    for group_id in range(MAX_LINES + 4):
        queue.sql(ADD_HOUR.format(hours_ago(queue, 0)), group_id, "a\x1b[2J\nb", group_id)
    _, first, *_, rest, everything = [line.split() for line in text_of(queue, "stats", "--by", "group").splitlines()]
    assert first[:2] == [str(MAX_LINES + 3), str(MAX_LINES + 3)]
    assert rest[:4] == ["4", "more", "groups", "6"]
    assert everything[:2] == ["all", str(sum(range(MAX_LINES + 4)))]
    assert len(json_of(queue, "stats", "--by", "group")) == MAX_LINES + 4
    assert "a\\x1b[2J\\nb" in text_of(queue, "stats", "--by", "task")


# ---- since when

SINCE: dict[Any, list[int]] = {
    None: [1, 7, 2, 40, 4],
    0: [4],
    timedelta(hours=2): [2, 40, 4],
    datetime(1, 1, 1, tzinfo=timezone.utc): [1, 7, 2, 40, 4],
    datetime.max.replace(tzinfo=timezone(timedelta(hours=-5))): [],
}


def test_since_tells_how_far_the_figures_go_back(queue: Queue) -> None:
    with TaskServer(with_figures(queue).dsn) as server:
        found = {since: sorted(one.done for one in server.stats(since)) for since in SINCE}
        (one,) = server.stats(0)
    assert found == {since: sorted(done) for since, done in SINCE.items()}
    assert (one.mean_run_seconds, one.mean_wait_seconds) == (8 / 6, 16 / 6)
    assert HourStats(one.hour, 0, "", fatal=3).mean_run_seconds is None


def test_an_instant_counts_in_its_own_time_zone(known: Queue) -> None:
    with TaskServer(known.dsn) as server:
        this_hour = Stats(server.store).recent()[0].hour
        half_before = this_hour - timedelta(minutes=30)
        since = half_before.astimezone(timezone(timedelta(hours=5, minutes=30)))
        assert sorted(one.done for one in server.stats(since)) == [2, 4, 40]
    for text in (f"{since:%Y-%m-%dT%H:%M}+05:30", f"{half_before:%Y-%m-%d %H:%M}"):
        assert [one["done"] for one in json_of(known, "stats", "--since", text)] == [42, 4]
    days = json_of(known, "stats", f"--since={this_hour - timedelta(days=8):%Y-%m-%d}")
    assert [one["done"] for one in days] == [1, 7, 42, 4]


# ---- client.py stats


def test_the_table_has_a_line_for_each_hour_and_one_for_all(known: Queue) -> None:
    head, *hours, last = text_of(known, "stats").splitlines()
    assert head.split("  ")[0] == "hour (UTC)"
    assert [line.split()[2:6] for line in hours] == [["7", "2", "1", "1"], ["42", "4", "2", "2"], ["4", "2", "1", "1"]]
    assert re.split(" {2,}", last) == ["all", "53", "8", "4", "4", "32 s", "525 ms", "3.0 s", "1.0 s", "9.5 s"]


def test_figures_are_chosen_by_group_and_task_and_put_together_by_either(known: Queue) -> None:
    def firsts(*args: object) -> list[list[str]]:
        return [re.split(" {2,}", line.strip())[:2] for line in text_of(known, "stats", *args).splitlines()[1:]]

    assert firsts("--by", "task") == [["tasks.a", "44"], ["tasks.b", "9"], ["all", "53"]]
    assert firsts("--by", "group", "--since", "4w") == [["0", "44"], ["3", "9"], ["5", "1"], ["all", "54"]]
    assert firsts("--by", "task", "--group", "3") == [["tasks.b", "9"]]
    assert firsts("--by", "group", "--task", "tasks.a", "--since", "0s") == [["0", "4"]]
    assert firsts("--by", "task", "--group", "5,3", "--since", "8d")[0] == ["(no callable)", "1"]


def test_status_shows_what_was_done_in_this_hour_and_the_last(known: Queue) -> None:
    this_hour = r"since \d\d:00 UTC: 4 done, 2 failed, 1 fatal, 1 lost"
    assert re.search(rf"{this_hour}; in the hour before: 42 done, 4 failed, 2 fatal, 2 lost", text_of(known, "status"))
    report = json_of(known, "status")
    assert (report["this_hour"]["done"], report["hour_before"]["done"]) == (4, 42)
    hours = [datetime.fromisoformat(report[key]["hour"][:-1]) for key in ("hour_before", "this_hour")]
    assert hours[1] - hours[0] == timedelta(hours=1)
