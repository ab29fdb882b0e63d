"""Schedules of periodic tasks: what may be given, and when the next time is."""

from __future__ import annotations

import sys
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from taskserver import InvalidTask, SettingError, StoredSchedule, task
from taskserver.model.schedule import ScheduleRow, check_schedule, cron_in_words, new_schedule, next_time
from taskserver.model.task import NOT_GIVEN
from tests.support.deployment import ROOT

# ---- what may be given


def schedule(**given: Any) -> ScheduleRow:
    known: dict[str, Any] = {"name": "nightly", "task": "tasks.note", "args": None, "every": None, "cron": None}
    known |= {"timezone": "UTC", "group_id": 0, "priority": 0}
    return new_schedule(**known | given)


def test_a_schedule_is_what_was_given() -> None:
    given = schedule(
        name="täglich", args={"n": 1}, cron=" 0  3 * * * ", timezone="Europe/Berlin", group_id=3, priority=-1
    )
    assert given == ("täglich", "tasks.note", '{"n":1}', 3, -1, None, "0 3 * * *", "Europe/Berlin")
    assert schedule(every=timedelta(minutes=5)).every_seconds == schedule(every=300.0).every_seconds == 300


@task(group_id=4, priority=-2, unique_key="mine", rerun=True)
def tidy() -> None: ...


def test_a_function_s_own_group_and_priority_are_those_of_its_schedule() -> None:
    left_out = {"group_id": NOT_GIVEN, "priority": NOT_GIVEN}
    assert schedule(task=tidy, every=60, **left_out)[3:5] == (4, -2)
    assert schedule(task=tidy, every=60)[3:5] == (0, 0)
    assert schedule(task="tasks.tidy", every=60, **left_out)[3:5] == (0, 0)


NAME = "name is .*; allowed: a text of 1 to 200 bytes"
EVERY = "every is .*; allowed: (whole )?seconds"
CRON = "cron is .*; allowed: minute, hour, day"
ZONE = "timezone is .*; allowed: UTC, or a name such as Europe/Berlin"
CRONS: list[Any] = [
    *("", "daily", "* * * *", "0 * * * * *", "60 * * * *", "*/0 * * * *", 5, "0 0 31 2 *", "\udc80 * * * *"),
    "*," * 200 + "* * * * *",
]
ZONES = ("", "Berlin", "../UTC", "/etc/localtime", "zone.tab", "a" * 5000, "\x00", "\udc80", 5, None)
WRONG: list[tuple[dict[str, Any], str]] = [
    *(({"name": name, "every": 60}, NAME) for name in ("", "ä" * 101, "a\nb", " a", "\ud800", 5)),
    *(({"every": every}, EVERY) for every in (0, 0.5, 1.5, True, "60", 10**10, float("nan"), timedelta(days=4000))),
    *(({"cron": cron}, CRON) for cron in CRONS),
    *(({"cron": "* * * * *", "timezone": zone}, ZONE) for zone in ZONES),
    ({}, "neither every nor cron"),
    ({"every": 60, "cron": "* * * * *"}, "it has every and cron; allowed: one of them"),
    ({"every": 60, "timezone": "Europe/Berlin"}, "every and a timezone"),
    ({"every": 60, "task": "note"}, "task is 'note'"),
    ({"every": 60, "args": "x"}, "args is 'x'"),
]


@pytest.mark.parametrize(("given", "fault"), WRONG, ids=lambda value: ascii(value)[:40])
def test_what_is_wrong_is_named_with_what_is_allowed(given: dict[str, Any], fault: str) -> None:
    with pytest.raises(InvalidTask, match=fault):
        schedule(**given)


ROW = ScheduleRow("nightly", "tasks.note", None, 0, 0, None, None, "UTC")
BROKEN: dict[str, dict[str, Any]] = {
    "neither every nor cron": {},
    "every is 0": {"every_seconds": 0},
    "Bad minute": {"cron": "61 * * * *"},
    "timezone is 'Berlin'": {"cron": "* * * * *", "timezone": "Berlin"},
    "task is 'note'": {"every_seconds": 60, "task": "note"},
    "not valid JSON": {"every_seconds": 60, "args": "{'a': 1}"},
}


@pytest.mark.parametrize("fault", BROKEN)
def test_a_row_that_is_no_schedule_is_told_what_it_lacks(fault: str) -> None:
    with pytest.raises(InvalidTask, match=fault):
        check_schedule(ROW._replace(**BROKEN[fault]))


# ---- when the next time is


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=timezone.utc)


def times(now: str, count: int, **given: Any) -> list[str]:
    """The first times after an instant in UTC, as the clock of that place shows them in UTC."""
    instant, found = utc(now), []
    for _ in range(count):
        instant = next_time(schedule(**given), instant, instant)
        found.append(f"{instant:%d %H:%M}")
        assert instant.tzinfo is timezone.utc
    return found


def test_every_counts_from_the_planned_time_however_late_it_is_looked_at() -> None:
    every = schedule(every=300)
    planned = utc("2026-01-01 00:00:00.250000")
    for late in ("00:00:00.250000", "00:00:03", "00:05:00.249999"):
        assert next_time(every, planned, utc(f"2026-01-01 {late}")) == utc("2026-01-01 00:05:00.250000")
    assert next_time(every, planned, utc("2026-01-01 00:05:00.250000")) == utc("2026-01-01 00:10:00.250000")
    assert next_time(every, planned, utc("2026-01-09 17:03:59")) == utc("2026-01-09 17:05:00.250000")
    assert next_time(every, planned, utc("2025-12-31 23:00")) == utc("2026-01-01 00:05:00.250000")


def test_a_fixed_hour_comes_once_where_the_clocks_change_over_it() -> None:
    """On 29 March Berlin has no 02:30: it comes at 03:00, 01:00 in UTC. On 25 October it comes at the first of two."""
    night = {"cron": "30 2 * * *", "timezone": "Europe/Berlin"}
    assert times("2026-03-27 12:00", 4, **night) == ["28 01:30", "29 01:00", "30 00:30", "31 00:30"]
    assert times("2026-10-23 12:00", 4, **night) == ["24 00:30", "25 00:30", "26 01:30", "27 01:30"]
    # Within the second hour the next time is not the first one, which is past.
    now = utc("2026-10-25 01:10")
    assert next_time(schedule(**night), utc("2026-10-25 00:30"), now) == utc("2026-10-26 01:30")


def test_a_star_follows_the_clock_as_it_goes() -> None:
    star = {"cron": "*/30 2 * * *", "timezone": "Europe/Berlin"}
    assert times("2026-03-28 12:00", 2, **star) == ["30 00:00", "30 00:30"]
    assert times("2026-10-24 12:00", 5, **star) == ["25 00:00", "25 00:30", "25 01:00", "25 01:30", "26 01:00"]
    assert times("2026-10-24 22:59", 4, cron="0 * * * *", timezone="Europe/Berlin") == [
        f"{day} {hour}:00" for day, hour in (("24", "23"), ("25", "00"), ("25", "01"), ("25", "02"))
    ]


# ---- hosts that lack something


@pytest.mark.parametrize(("base_prefix", "place"), [(sys.prefix, f"--target {ROOT} "), ("/usr", "")])
def test_without_the_library_every_works_and_cron_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, base_prefix: str, place: str
) -> None:
    monkeypatch.setitem(sys.modules, "cronsim", None)
    monkeypatch.setattr(sys, "prefix", sys.prefix if place else "/home/you/site/.venv")
    monkeypatch.setattr(sys, "base_prefix", base_prefix)
    check_schedule(schedule(every=60))
    with pytest.raises(SettingError, match="cronsim is missing") as refused:
        schedule(cron="* * * * *")
    line = f"{sys.executable} -I -m pip install {place}'cronsim>=2.6,<3'; every needs none"
    assert str(refused.value).endswith(line)


def test_a_host_without_time_zones_says_how_to_get_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("taskserver.model.schedule.available_timezones", set)
    assert schedule(cron="* * * * *").timezone == "UTC"
    with pytest.raises(SettingError, match=r"no time zones but UTC: .* -I -m pip install .*tzdata"):
        schedule(cron="* * * * *", timezone="Nowhere/Nowhere")


def test_common_expressions_and_spans_are_said_in_words() -> None:
    said = {
        "* * * * *": "every minute",
        "*/5 * * * *": "every 5 minutes",
        "*/7 * * * *": "*/7 * * * *",  # it is not: 56 to 0 are 4 minutes
        "5 * * * *": "hourly at :05",
        "30 3 * * *": "daily 03:30",
        "0 12 * * 7": "weekly on Sun 12:00",
        "0 9 * * 1-5": "Mon to Fri 09:00",
        "0 9 * 2 1": "0 9 * 2 1",
        "nonsense": "nonsense",
    }
    assert {cron: cron_in_words(cron) for cron in said} == said
    spans = {86_400: "every day", 3600: "every hour", 172_800: "every 2 days", 90: "every 90 seconds"}
    assert {every: schedule(every=every).timing for every in spans} == spans


def test_a_schedule_says_when_it_comes_and_is_late_after_a_minute() -> None:
    said = {600: "in 10 min", 0: "now", -59: "now", -60: "late by 60 s", -7300: "late by 2 h"}
    for seconds, words in said.items():
        assert StoredSchedule(schedule(every=60), None, seconds, None).when_due == words
    assert StoredSchedule(schedule(every=60), None, None, None).when_due == ""
