"""New tasks and schedules are checked before anything is written; an error names the fix."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from datetime import date, datetime, timedelta, timezone
from types import MappingProxyType
from typing import Any

import pytest

from taskserver import InvalidTask, SettingError, StoredSchedule, TaskServer
from taskserver.errors import BadTask
from taskserver.model.attempt import NextStage
from taskserver.model.new_task import MAX_PARENTS, TASK_KEYS, NewTask, new_task, new_task_from
from taskserver.model.pipeline import MAX_STAGES, MAX_STAGES_BYTES, next_stage
from taskserver.model.schedule import ScheduleRow, check_schedule, cron_in_words, new_schedule, next_time
from taskserver.model.task import MAX_GROUP_ID, MAX_PRIORITY, MIN_PRIORITY, ClaimedTask
from tests.support.deployment import ROOT

# ---- numbers

ODD_NUMBERS: list[Any] = [True, "3", "x" * 100_000, 3.0, float("nan"), 10**5000]
LIMITS = [
    ("group_id", 0, 4_294_967_294),
    ("priority", -2_147_483_648, 2_147_483_647),
    ("max_attempts", 1, 1_000_000),
    ("version", 0, 2**63 - 1),
]


@pytest.mark.parametrize(("name", "least", "most"), LIMITS)
def test_the_error_of_a_wrong_number_names_it_and_the_range(name: str, least: int, most: int) -> None:
    assert (LIMITS[0][2], *LIMITS[1][1:]) == (MAX_GROUP_ID, MIN_PRIORITY, MAX_PRIORITY)
    known: Any = {"unique_key": "k", "rerun": True}  # without these nothing has a version
    for value in [least - 1, most + 1, *ODD_NUMBERS]:
        with pytest.raises(InvalidTask, match=f"^{name} is .*; allowed: a whole number from {least} to {most}$") as why:
            new_task("tasks.send", **(known | {name: value}))
        assert len(str(why.value)) < 300
    for value in (least, most):
        assert getattr(new_task("tasks.send", **(known | {name: value})), name) == value


# ---- descriptions

LONGEST_KEY = "\u00e4" * 127 + "k"


def test_a_description_has_the_keys_of_a_task_and_the_defaults() -> None:
    assert new_task_from({"task": "tasks.send"}) == NewTask("tasks.send", None, 0, 0)
    whole: dict[str, Any] = {"task": "tasks.send", "args": {"to": "x"}, "group_id": 3, "priority": -5}
    whole |= {"max_attempts": 3, "delay": 60, "unique_key": LONGEST_KEY, "rerun": True, "version": 0}
    assert new_task_from(whole) == NewTask("tasks.send", '{"to":"x"}', 3, -5, 3, 60.0, None, LONGEST_KEY, True, 0)
    assert {*whole, "at", "stages", "depends_on"} == set(TASK_KEYS)


# ---- when, how often, and one of a kind


def test_a_delay_is_seconds_or_a_timedelta() -> None:
    for delay, seconds in ((None, None), (0, None), (0.25, 0.25), (timedelta(minutes=5), 300.0)):
        assert new_task("tasks.send", delay=delay).delay_seconds == seconds


PLUS_5 = timezone(timedelta(hours=5, minutes=30))


def test_instants_are_stored_in_utc() -> None:
    at = datetime(2030, 1, 31, 12, 0, 1, 5, tzinfo=PLUS_5)
    assert new_task("tasks.send", at=at).due_at == "2030-01-31 06:30:01.000005"
    assert new_task("tasks.send", at="2030-01-01T00:30:00+01:00").due_at == "2029-12-31 23:30:00.000000"


NOON = "2030-01-31T12:00:00Z"
NO_INSTANT = "allowed: a datetime, or its text such as 2026-01-31T12:00:00+01:00"
OUT_OF_RANGE = "allowed: from 1970-01-02 to 2038-01-19"
ODD_DELAYS: list[Any] = [-0.001, 3660 * 86400 + 1, float("nan"), timedelta(seconds=-1), "60", True, 10**400]
ODD_KEYS: list[Any] = ["", "\u00e4" * 128, "\ud800", b"k"]
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"group": 3}, "it has 'group'; allowed: task, args, group_id, priority"),
    ({"task": "send"}, "task is 'send'"),
    ({"args": [object()]}, "args[0] is of type object, which JSON cannot hold"),
    *(({"delay": delay}, "; allowed: seconds, a text such as ") for delay in ODD_DELAYS),
    *(({"unique_key": key}, "; allowed: a text of 1 to 255 bytes in UTF-8") for key in ODD_KEYS),
    ({"at": "2030-01-31T12:00:00"}, "which has no time zone; allowed: an aware datetime"),
    *(({"at": at}, NO_INSTANT) for at in ("soon", 1_900_000_000, date(2030, 1, 31))),
    *(({"at": at}, OUT_OF_RANGE) for at in ("1970-01-01T23:59:59Z", "2038-01-19T03:14:08Z")),
    ({"at": datetime.min.replace(tzinfo=PLUS_5)}, OUT_OF_RANGE),
    ({"rerun": True}, "it has rerun and no unique_key, which says which row is to run again"),
    ({"unique_key": "k", "version": 3}, "it has a version and no rerun; a version says whether a rerun is newer"),
    ({"unique_key": "k", "rerun": 1}, "rerun is 1; allowed: true or false"),
    ({"delay": 5, "at": NOON}, "it has delay and at; allowed: one of them"),
    ({"depends_on": [3], "unique_key": "k"}, "it has depends_on and a unique_key; allowed: one of them, as a row"),
    ({"depends_on": "17"}, "depends_on is '17'; allowed: a list of ids of tasks"),
    ({"depends_on": [0]}, "an id in depends_on is 0; allowed: a whole number from 1 to"),
    ({"depends_on": range(1, MAX_PARENTS + 2)}, f"depends_on names more than {MAX_PARENTS} tasks, which"),
]
WRONG_STAGES: list[tuple[Any, str]] = [
    ([], "stages is []; allowed: a list of 1 to 100, each such as "),
    ("tasks.send", "stages is 'tasks.send'; allowed"),
    (["tasks.send"] * (MAX_STAGES + 1), "allowed: a list of 1 to 100"),
    (["tasks.send", None], 'stage 2: it is None; allowed: "tasks.resize", or {"task": "tasks.resize", "group_id": 5}'),
    (["tasks.send", "send"], "stage 2: "),
    (["tasks.send", {}], 'stage 2: it has no "task"; allowed: task, group_id, priority, max_attempts'),
    ([{"task": "tasks.send", "args": [1]}], "stage 1: it has 'args'; allowed: task, group_id, priority, max_attempts"),
    ([{"task": "tasks.send", "group_id": -1}], "stage 1: group_id is -1; allowed"),
    (["x." + "\u8a9e" * 253] * MAX_STAGES, "allowed: 60000"),
]
DESCRIPTIONS: list[tuple[Any, str]] = [
    ("tasks.send", "allowed: an object such as"),
    ({}, 'it has no "task"'),
    ({"task": "tasks.send", "stages": ["tasks.send"]}, "it has task and stages; allowed: one of them"),
    *(({"task": "tasks.send"} | given, words) for given, words in WRONG),
    *(({"stages": stages}, words) for stages, words in WRONG_STAGES),
]


@pytest.mark.parametrize(("description", "words"), DESCRIPTIONS, ids=lambda value: ascii(value)[:40])
def test_the_error_of_a_wrong_description_names_the_fault(description: Any, words: str) -> None:
    with pytest.raises(InvalidTask) as caught:
        new_task_from(description)
    assert words in str(caught.value)
    assert len(str(caught.value)) < 500


# ---- pipelines


def stages_of(task: NewTask) -> Any:
    return json.loads(task.stages or "null")


def test_a_pipeline_row_is_its_first_stage_and_holds_all_stages(make_tasks: Callable[[str], Any]) -> None:
    tasks = make_tasks("""
import taskserver
def send(to): pass
@taskserver.task(group_id=3, priority=-5, unique_key="page", rerun=True)
def index(page): pass
""")
    stages = [tasks.send, {"task": tasks.send, "group_id": 5}, MappingProxyType({"task": "tasks.cached"})]
    made = new_task(stages=stages, args={"to": "you"}, group_id=2, priority=-1)
    assert made[:5] == ("tasks.send", '{"to":"you"}', 2, -1, None)
    assert stages_of(made) == [
        {"task": "tasks.send", "group_id": 2, "priority": -1},
        {"task": "tasks.send", "group_id": 5, "priority": -1},
        {"task": "tasks.cached", "group_id": 2, "priority": -1},
    ]
    made = new_task(stages=[tasks.index, {"task": tasks.index, "priority": 1}, "tasks.index"], args=[7])
    assert [(stage["group_id"], stage["priority"]) for stage in stages_of(made)] == [(3, -5), (3, 1), (0, 0)]
    assert (made.group_id, made.priority, made.unique_key, made.rerun) == (3, -5, None, False)


# ---- tasks that wait for others


def test_parents_are_listed_once_and_the_first_look_is_planned() -> None:
    assert new_task("tasks.send", depends_on=iter([5, 3, 5])).depends_on == "3,5"
    assert new_task("tasks.send", depends_on=[3]).delay_seconds == 0.0
    assert new_task("tasks.send", depends_on=[3], delay=60).delay_seconds == 60.0
    later = new_task("tasks.send", depends_on=[3], at=NOON)
    assert (later.delay_seconds, later.due_at) == (None, "2030-01-31 12:00:00.000000")


# ---- as a server says it


def fetch(page: int) -> None: ...


def test_one_wrong_task_of_many_is_named_and_none_is_added() -> None:
    with TaskServer("sqlite:///:memory:") as server:
        server.create_tables()
        good: Any = {"task": "tasks.send"}
        with pytest.raises(InvalidTask, match=r"^task 3: "):
            server.add_tasks([good, good, {"task": "send"}, good])
        with pytest.raises(InvalidTask, match=r"fetch\(page\) .*: missing .* 'page'; and it takes no 'pgae'"):
            server.add_pipeline([fetch, "tasks.send"], {"pgae": 5})
        assert server.add_tasks([]) == []
        assert server.list() == []


TWO = '["tasks.a", "tasks.b"]'


def claimed(stages: object, stage: int, task: str = "tasks.a") -> ClaimedTask:
    return ClaimedTask(1, task, None, None, 0, None, 17, stages=stages, stage=stage)  # type: ignore[arg-type]


def test_a_worker_reads_the_stages_that_a_producer_gave() -> None:
    """Each stage whole, so that nothing of the row's stage before it holds on."""
    stages = ["tasks.a", {"task": "tasks.b", "priority": -1}, {"task": "tasks.c", "max_attempts": 9, "group_id": 8}]
    made = new_task(stages=stages, group_id=3, priority=4, max_attempts=5)
    assert next_stage(claimed(made.stages, 0)) == NextStage("tasks.b", 3, -1, 5)
    assert next_stage(claimed(made.stages, 1, "tasks.b")) == NextStage("tasks.c", 8, 4, 9)
    assert next_stage(claimed(made.stages, 2, "tasks.c")) is None


@pytest.mark.parametrize(
    ("stages", "stage", "words"),
    [
        ("tasks.a, tasks.b", 0, "stages is not valid JSON"),
        ('["tasks.a", 5]', 0, "stage 2: it is 5"),
        ('["tasks.a", {"task": "tasks.b", "priority": NaN}]', 0, "NaN is not a JSON number"),
        ("[" * 30_000, 0, "stages is nested too deep"),
        ("ü" * (MAX_STAGES_BYTES // 2 + 1), 0, f"stages is longer than {MAX_STAGES_BYTES} bytes"),
        (TWO.encode(), 0, "stages is text; this row holds something else"),
        (TWO, 2, "it is at stage 3 of 2"),
        (TWO, 1, "its task is 'tasks.a', and stage 2 of its stages 'tasks.b'"),
    ],
)
def test_invalid_stages_in_a_row_make_a_bad_task(stages: object, stage: int, words: str) -> None:
    with pytest.raises(BadTask) as raised:
        next_stage(claimed(stages, stage))
    assert words in str(raised.value)
    assert str(raised.value).isprintable()


# ---- schedules of periodic tasks: what may be given, and when the next time is


def schedule(**given: Any) -> ScheduleRow:
    known: dict[str, Any] = {"name": "nightly", "task": "tasks.note", "args": None, "every": None, "cron": None}
    known |= {"timezone": "UTC", "group_id": 0, "priority": 0}
    return new_schedule(**known | given)


NAME = "name is .*; allowed: a text of 1 to 200 bytes"
EVERY = "every is .*; allowed: (whole )?seconds"
CRON = "cron is .*; allowed: minute, hour, day"
ZONE = "timezone is .*; allowed: UTC, or a name such as Europe/Berlin"
CRONS = ("", "0 * * * * *", "60 * * * *", 5, "0 0 31 2 *", "\udc80 * * * *", "*," * 200 + "* * * * *")
ZONES = ("", "Berlin", "../UTC", "a" * 5000, "\x00", 5)
WRONG_SCHEDULES: list[tuple[dict[str, Any], str]] = [
    *(({"name": name, "every": 60}, NAME) for name in ("", "ä" * 101, "a\nb", " a", 5)),
    *(({"every": every}, EVERY) for every in (0, 1.5, "60", timedelta(days=4000))),
    *(({"cron": cron}, CRON) for cron in CRONS),
    *(({"cron": "* * * * *", "timezone": zone}, ZONE) for zone in ZONES),
    ({}, "neither every nor cron"),
    ({"every": 60, "cron": "* * * * *"}, "it has every and cron; allowed: one of them"),
    ({"every": 60, "timezone": "Europe/Berlin"}, "every and a timezone"),
    ({"every": 60, "task": "note"}, "task is 'note'"),
]


@pytest.mark.parametrize(("given", "fault"), WRONG_SCHEDULES, ids=lambda value: ascii(value)[:40])
def test_the_error_of_a_wrong_schedule_names_the_fault(given: dict[str, Any], fault: str) -> None:
    with pytest.raises(InvalidTask, match=fault):
        schedule(**given)


ROW = ScheduleRow("nightly", "tasks.note", None, 0, 0, None, None, "UTC")
BROKEN: dict[str, dict[str, Any]] = {
    "neither every nor cron": {},
    "Bad minute": {"cron": "61 * * * *"},
    "timezone is 'Berlin'": {"cron": "* * * * *", "timezone": "Berlin"},
    "task is 'note'": {"every_seconds": 60, "task": "note"},
    "not valid JSON": {"every_seconds": 60, "args": "{'a': 1}"},
}


def test_the_error_of_an_invalid_schedule_row_names_the_fault() -> None:
    for fault, given in BROKEN.items():
        with pytest.raises(InvalidTask, match=fault):
            check_schedule(ROW._replace(**given))


# ---- when the next time is


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=timezone.utc)


def times(now: str, count: int, **given: Any) -> list[str]:
    """The first times after an instant in UTC, as the clock of that place shows them in UTC."""
    instant, found = utc(now), []
    for _ in range(count):
        instant = next_time(schedule(**given), instant, instant)
        found.append(f"{instant:%d %H:%M}")
    return found


def test_every_counts_from_the_planned_time() -> None:
    every = schedule(every=300)
    planned = utc("2026-01-01 00:00:00.250000")
    assert next_time(every, planned, utc("2026-01-01 00:05:00.249999")) == utc("2026-01-01 00:05:00.250000")
    assert next_time(every, planned, utc("2026-01-01 00:05:00.250000")) == utc("2026-01-01 00:10:00.250000")
    assert next_time(every, planned, utc("2026-01-09 17:03:59")) == utc("2026-01-09 17:05:00.250000")
    assert next_time(every, planned, utc("2025-12-31 23:00")) == utc("2026-01-01 00:05:00.250000")


def test_a_fixed_hour_comes_once_when_the_clocks_change() -> None:
    """On 29 March Berlin has no 02:30: it comes at 03:00, 01:00 in UTC. On 25 October it comes at the first of two."""
    night = {"cron": "30 2 * * *", "timezone": "Europe/Berlin"}
    assert times("2026-03-27 12:00", 4, **night) == ["28 01:30", "29 01:00", "30 00:30", "31 00:30"]
    assert times("2026-10-23 12:00", 4, **night) == ["24 00:30", "25 00:30", "26 01:30", "27 01:30"]
    # Within the second hour the next time is not the first one, which is past.
    now = utc("2026-10-25 01:10")
    assert next_time(schedule(**night), utc("2026-10-25 00:30"), now) == utc("2026-10-26 01:30")


# ---- hosts that lack something


@pytest.mark.parametrize(("prefix", "place"), [("/usr", f"--target {ROOT} "), ("/home/you/site/.venv", "")])
def test_without_cronsim_every_works_and_cron_names_the_fix(
    monkeypatch: pytest.MonkeyPatch, prefix: str, place: str
) -> None:
    monkeypatch.setitem(sys.modules, "cronsim", None)
    monkeypatch.setattr(sys, "prefix", prefix)
    monkeypatch.setattr(sys, "base_prefix", "/usr")
    check_schedule(schedule(every=60))
    with pytest.raises(SettingError, match="cronsim is missing") as refused:
        schedule(cron="* * * * *")
    line = f"{sys.executable} -I -m pip install {place}'cronsim>=2.6,<3'; every needs none"
    assert str(refused.value).endswith(line)


def test_without_time_zones_the_error_names_the_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("taskserver.model.schedule.available_timezones", set)
    assert schedule(cron="* * * * *").timezone == "UTC"
    with pytest.raises(SettingError, match=r"no time zones but UTC: .* -I -m pip install .*tzdata"):
        schedule(cron="* * * * *", timezone="Nowhere/Nowhere")


def test_common_expressions_are_shown_in_words() -> None:
    said = {
        "* * * * *": "every minute",
        "*/5 * * * *": "every 5 minutes",
        "*/7 * * * *": "*/7 * * * *",  # it is not: 56 to 0 are 4 minutes
        "5 * * * *": "hourly at :05",
        "30 3 * * *": "daily 03:30",
        "0 12 * * 7": "weekly on Sun 12:00",
        "0 9 * * 1-5": "Mon to Fri 09:00",
        "0 9 * 2 1": "0 9 * 2 1",
    }
    assert {cron: cron_in_words(cron) for cron in said} == said
    spans = {86_400: "every day", 3600: "every hour", 172_800: "every 2 days", 90: "every 90 seconds"}
    assert {every: schedule(every=every).timing for every in spans} == spans


def test_a_schedule_is_late_after_a_minute() -> None:
    said = {600: "in 10 min", -59: "now", -60: "late by 60 s"}
    for seconds, words in said.items():
        assert StoredSchedule(schedule(every=60), None, seconds, None).when_due == words
    assert StoredSchedule(schedule(every=60), None, None, None).when_due == ""
