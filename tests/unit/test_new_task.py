"""What a producer may add: checked before anything is written, and refused in words that name the way out."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from enum import IntEnum
from types import MappingProxyType
from typing import Any

import pytest

from taskserver import TaskServer
from taskserver.errors import BadTask, InvalidTask
from taskserver.messages.text import shown
from taskserver.model.attempt import NextStage
from taskserver.model.new_task import MAX_PARENTS, TASK_KEYS, NewTask, new_task, new_task_from
from taskserver.model.pipeline import MAX_STAGES, MAX_STAGES_BYTES, next_stage
from taskserver.model.task import MAX_GROUP_ID, MAX_PRIORITY, MIN_PRIORITY, ClaimedTask

# ---- numbers


class Group(IntEnum):
    MAIL = 3


ODD_NUMBERS: list[Any] = [
    *(True, False, None, "3", "x" * 100_000, b"3", 3.0, 1.5, float("nan"), 3j, [3], Group.MAIL, 10**5000),
]
LIMITS = [
    ("group_id", 0, 4_294_967_294),
    ("priority", -2_147_483_648, 2_147_483_647),
    ("max_attempts", 1, 1_000_000),
    ("version", 0, 2**63 - 1),
]


@pytest.mark.parametrize(("name", "least", "most"), LIMITS)
def test_a_wrong_number_is_named_with_what_is_allowed(name: str, least: int, most: int) -> None:
    assert (LIMITS[0][2], *LIMITS[1][1:]) == (MAX_GROUP_ID, MIN_PRIORITY, MAX_PRIORITY)
    known: Any = {"unique_key": "k", "rerun": True}  # without these nothing has a version
    may_lack = name in ("max_attempts", "version")
    for value in [least - 1, most + 1, *(odd for odd in ODD_NUMBERS if odd is not None or not may_lack)]:
        with pytest.raises(InvalidTask, match=f"^{name} is .*; allowed: a whole number from {least} to {most}$") as why:
            new_task("tasks.send", **(known | {name: value}))
        assert len(str(why.value)) < 300
    for value in (least, most):
        assert getattr(new_task("tasks.send", **(known | {name: value})), name) == value


# ---- descriptions


def test_a_description_has_the_keys_of_a_task_and_the_defaults() -> None:
    assert new_task_from({"task": "tasks.send"}) == NewTask("tasks.send", None, 0, 0)
    whole: dict[str, Any] = {"task": "tasks.send", "args": {"to": "x"}, "group_id": 3, "priority": -5}
    assert new_task_from(whole) == NewTask("tasks.send", '{"to":"x"}', 3, -5)
    assert new_task_from({"task": "tasks.send", "args": None}).args is None
    whole |= {"max_attempts": 3, "delay": 60, "unique_key": "k", "rerun": True, "version": 0}
    assert new_task_from(whole) == NewTask("tasks.send", '{"to":"x"}', 3, -5, 3, 60.0, None, "k", True, 0)
    assert {*whole, "at", "stages", "depends_on"} == set(TASK_KEYS)


@pytest.mark.parametrize(
    ("description", "words"),
    [
        *((thing, "allowed: an object such as") for thing in (None, "tasks.send", ["tasks.send"], 5, {"task"})),
        ({}, 'it has no "task"'),
        ({"task": "tasks.send", "group": 3}, "it has 'group'; allowed: task, args, group_id, priority"),
        ({"task": "tasks.send", "id": 1, "status": 2}, "it has 'id', 'status'; allowed"),
        ({"task": None}, "task is None"),
        ({"task": "send"}, "task is 'send'"),
        ({"task": "tasks.send", "args": "x"}, "args is 'x'"),
        ({"task": "tasks.send", "args": [object()]}, "args[0] is of type object, which JSON cannot hold"),
        ({"task": "tasks.send", "group_id": "3"}, "group_id is '3'"),
    ],
)
def test_a_wrong_description_is_refused_for_what_is_wrong_in_it(description: Mapping[Any, Any], words: str) -> None:
    with pytest.raises(InvalidTask) as caught:
        new_task_from(description)
    assert words in str(caught.value)
    assert len(str(caught.value)) < 400


# ---- when, how often, and one of a kind


def test_a_delay_is_seconds_or_a_timedelta_and_one_of_nothing_is_none() -> None:
    spans: list[tuple[Any, float | None]] = [
        *((None, None), (0, None), (0.25, 0.25), (timedelta(minutes=5), 300.0), (3660 * 86400, 3660 * 86400.0)),
    ]
    for delay, seconds in spans:
        assert new_task("tasks.send", delay=delay).delay_seconds == seconds


PLUS_5 = timezone(timedelta(hours=5, minutes=30))


@pytest.mark.parametrize(
    ("at", "due_at"),
    [
        (datetime(2030, 1, 31, 12, 0, tzinfo=timezone.utc), "2030-01-31 12:00:00.000000"),
        (datetime(2030, 1, 31, 12, 0, 1, 5, tzinfo=PLUS_5), "2030-01-31 06:30:01.000005"),
        ("2030-01-31T12:00:00Z", "2030-01-31 12:00:00.000000"),
        ("2030-01-01T00:30:00+01:00", "2029-12-31 23:30:00.000000"),
        ("1970-01-02T00:00:00Z", "1970-01-02 00:00:00.000000"),
        ("2038-01-19T03:14:07Z", "2038-01-19 03:14:07.000000"),
    ],
)
def test_an_instant_is_kept_in_utc_whatever_its_zone(at: Any, due_at: str) -> None:
    assert new_task("tasks.send", at=at).due_at == due_at


def test_a_key_of_up_to_255_bytes_is_taken_as_it_is() -> None:
    for key in ("k", "\u00e4" * 127, "k" * 255, " ", "\0", "\U0001f389" * 63):
        assert new_task("tasks.send", unique_key=key).unique_key == key


NOON = "2030-01-31T12:00:00Z"
NO_ZONE = "which has no time zone; allowed: an aware datetime"
NO_INSTANT = "allowed: a datetime, or its text such as 2026-01-31T12:00:00+01:00"
OUT_OF_RANGE = "allowed: from 1970-01-02 to 2038-01-19"
KEY = "allowed: a text of 1 to 255 bytes in UTF-8"
ODD_DELAYS: list[Any] = [
    *(-1, -0.001, 3660 * 86400 + 1, float("inf"), float("nan"), timedelta(seconds=-1), timedelta(days=3661)),
    *("60", True, b"60", [60], 60j, Decimal(60), 10**400, datetime(2026, 1, 1, tzinfo=timezone.utc)),
]
ODD_KEYS: list[Any] = ["", "k" * 256, "\u00e4" * 128, "\U0001f389" * 64, "\ud800", b"k", 5, True, ["k"]]
WRONG: list[tuple[dict[str, Any], str, str]] = [
    *(({"delay": delay}, "delay is ", "; allowed: seconds, a text such as ") for delay in ODD_DELAYS),
    *(({"unique_key": key}, "unique_key is ", KEY) for key in ODD_KEYS),
    *(
        ({"at": at}, "at is ", NO_ZONE)
        for at in (datetime(2030, 1, 31), "2030-01-31T12:00:00")  # noqa: DTZ001
    ),
    *(({"at": at}, "at is ", NO_INSTANT) for at in ("soon", "2030-02-30T12:00:00Z", 1_900_000_000, date(2030, 1, 31))),
    *(({"at": at}, "at is ", OUT_OF_RANGE) for at in ("1970-01-01T23:59:59Z", "2038-01-19T03:14:08Z")),
    ({"at": datetime.max.replace(tzinfo=timezone.utc)}, "at is ", OUT_OF_RANGE),
    ({"at": datetime.min.replace(tzinfo=PLUS_5)}, "at is ", OUT_OF_RANGE),
    ({"rerun": True}, "it has rerun and no unique_key, which says which row is to run again", ""),
    ({"unique_key": "k", "version": 3}, "it has a version and no rerun; a version says whether a rerun is newer", ""),
    ({"unique_key": "k", "rerun": 1}, "rerun is 1; allowed: true or false", ""),
    ({"delay": 5, "at": NOON}, "it has delay and at; allowed: one of them", ""),
    ({"depends_on": [3], "unique_key": "k"}, "it has depends_on and a unique_key; allowed: one of them, as a row", ""),
    ({"depends_on": 17}, "depends_on is 17; allowed: a list of ids of tasks", ""),
    ({"depends_on": "17"}, "depends_on is '17'; allowed", ""),
    ({"depends_on": [0]}, "an id in depends_on is 0; allowed: a whole number from 1 to", ""),
    ({"depends_on": [2**64]}, f"an id in depends_on is {2**64}; allowed", ""),
    ({"depends_on": [1, "2"]}, "an id in depends_on is '2'; allowed", ""),
    ({"depends_on": range(1, MAX_PARENTS + 2)}, f"depends_on names more than {MAX_PARENTS} tasks, which", ""),
]


@pytest.mark.parametrize(("given", "begin", "words"), WRONG, ids=lambda value: ascii(value)[:40])
def test_a_wrong_value_is_named_with_what_is_allowed(given: dict[str, Any], begin: str, words: str) -> None:
    with pytest.raises(InvalidTask) as caught:
        new_task("tasks.send", **given)
    assert str(caught.value).startswith(begin)
    assert words in str(caught.value)
    assert len(str(caught.value)) < 300


# ---- pipelines


def stages_of(task: NewTask) -> Any:
    return json.loads(task.stages or "null")


def test_a_pipeline_is_its_first_stage_and_has_all_of_them_whole(make_tasks: Callable[[str], Any]) -> None:
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
    indexing: dict[str, Any] = {"stages": [tasks.index, {"task": tasks.index, "priority": 1}, "tasks.index"]}
    for made, groups, priorities in (
        (new_task(**indexing, args=[7]), [3, 3, 0], [-5, 1, 0]),
        (new_task(**indexing, args=[7], group_id=0, priority=2), [0, 0, 0], [2, 1, 2]),
    ):
        assert [stage["group_id"] for stage in stages_of(made)] == groups
        assert [stage["priority"] for stage in stages_of(made)] == priorities
        assert (made.group_id, made.priority, made.unique_key, made.rerun) == (groups[0], priorities[0], None, False)


def test_what_the_first_stage_says_of_itself_is_said_of_the_row() -> None:
    first = {"task": "tasks.send", "group_id": 7, "priority": 8, "max_attempts": 9}
    made = new_task(stages=(first, "tasks.file"), group_id=1, priority=2, max_attempts=3)
    assert made[:5] == ("tasks.send", None, 7, 8, 9)
    assert stages_of(made) == [first, {"task": "tasks.file", "group_id": 1, "priority": 2, "max_attempts": 3}]
    one_without = {"task": "tasks.send", "group_id": None, "priority": None, "max_attempts": None}
    assert new_task(stages=[one_without])[:5] == ("tasks.send", None, 0, 0, None)
    for length in (1, MAX_STAGES):
        assert len(stages_of(new_task(stages=["tasks.send"] * length))) == length


WRONG_STAGES: list[tuple[Any, str]] = [
    ([], "stages is []; allowed: a list of 1 to 100, each such as "),
    ("tasks.send", "stages is 'tasks.send'; allowed"),
    ({"task": "tasks.send"}, "stages is {'task': 'tasks.send'}; allowed"),
    (iter(["tasks.send"]), "stages is <list_iterator"),
    (["tasks.send"] * (MAX_STAGES + 1), "allowed: a list of 1 to 100"),
    (["tasks.send", None], 'stage 2: it is None; allowed: "tasks.resize", or {"task": "tasks.resize", "group_id": 5}'),
    (["tasks.send", "send"], "stage 2: "),
    (["tasks.send", {}], 'stage 2: it has no "task"; allowed: task, group_id, priority, max_attempts'),
    (["tasks.send", {"task": None}], 'stage 2: task is None; allowed: "tasks.resize"'),
    ([{"task": "tasks.send", "args": [1]}], "stage 1: it has 'args'; allowed: task, group_id, priority, max_attempts"),
    ([{"task": "tasks.send", 5: 6, "delay": 7}], "stage 1: it has 'delay', 5; allowed"),
    ([{"task": "tasks.send", "group_id": -1}], "stage 1: group_id is -1; allowed"),
    ([{"task": "tasks.send", "priority": True}], "stage 1: priority is True; allowed"),
    (["x." + "\u8a9e" * 253] * MAX_STAGES, "allowed: 60000"),
]


@pytest.mark.parametrize(("stages", "words"), WRONG_STAGES)
def test_wrong_stages_are_refused_by_their_number_with_what_is_allowed(stages: Any, words: str) -> None:
    with pytest.raises(InvalidTask) as caught:
        new_task(stages=stages)
    assert words in str(caught.value)
    assert len(str(caught.value)) < 500


def test_a_task_has_either_a_name_or_stages() -> None:
    with pytest.raises(InvalidTask, match=r"^it has task and stages; allowed: one of them"):
        new_task("tasks.send", stages=["tasks.send"])
    for nothing in ({}, {"args": [1]}, {"stages": None}, {"task": None}):
        with pytest.raises(InvalidTask, match="task"):
            new_task_from(nothing)
    assert new_task_from({"task": "tasks.send", "stages": None}) == new_task("tasks.send")
    assert new_task_from({"task": None, "stages": ["tasks.send"]}) == new_task(stages=["tasks.send"])


# ---- tasks that wait for others


def test_a_task_that_waits_for_others_names_each_of_them_once() -> None:
    for parents in ([3, 5], (5, 3), {3, 5}, [5, 3, 5, 3], iter([3, 5])):
        assert new_task("tasks.send", depends_on=parents).depends_on == "3,5"


def test_a_task_that_waits_for_others_is_looked_at_first_at_once_or_when_its_time_has_come() -> None:
    assert new_task("tasks.send", depends_on=[3]).delay_seconds == 0.0
    assert new_task("tasks.send", depends_on=[3], delay=60).delay_seconds == 60.0
    later = new_task("tasks.send", depends_on=[3], at=NOON)
    assert (later.delay_seconds, later.due_at) == (None, "2030-01-31 12:00:00.000000")
    assert new_task(stages=["tasks.send"], depends_on=[3]).depends_on == "3"
    assert new_task("tasks.send", depends_on=[]) == new_task("tasks.send")


# ---- as a server says it


def fetch(page: int) -> None: ...


def test_a_wrong_task_is_refused_by_each_method_and_none_is_added() -> None:
    with TaskServer("sqlite:///:memory:") as server:
        server.create_tables()
        good: Any = {"task": "tasks.send"}
        wrongs: list[Any] = [{"task": "send"}, "tasks.send", None, {"task": "tasks.send", "colour": "red"}]
        for wrong in wrongs:
            with pytest.raises(InvalidTask, match=r"^task 3: "):
                server.add_tasks([good, good, wrong, good])
        for add in (
            lambda: server.add_task(fetch, {"pgae": 5}),
            lambda: server.add_tasks([good, {"task": fetch, "args": {"pgae": 5}}]),
            lambda: server.add_pipeline([fetch, "tasks.send"], {"pgae": 5}),
            lambda: server.schedule("often", fetch, {"pgae": 5}, every=60),
        ):
            with pytest.raises(InvalidTask, match=r"fetch\(page\) .*: missing .* 'page'; and it takes no 'pgae'"):
                add()
        assert server.add_tasks([]) == []
        assert server.list() == []
        assert not server.unschedule("often")


@pytest.mark.parametrize(("length", "said"), [(78, "'" + "x" * 78 + "'"), (79, "'" + "x" * 78 + "…")])
def test_a_text_that_is_cut_in_a_message_says_so(length: int, said: str) -> None:
    assert shown("x" * length) == said


TWO = '["tasks.a", "tasks.b"]'


def claimed(stages: object, stage: int, task: str = "tasks.a") -> ClaimedTask:
    return ClaimedTask(1, task, None, None, 0, None, 17, stages=stages, stage=stage)  # type: ignore[arg-type]


@pytest.mark.parametrize(("stage", "following"), [(0, "b"), (1, "c"), (2, None)])
def test_the_stage_that_follows_is_the_one_behind_the_row_s_own(stage: int, following: str | None) -> None:
    found = next_stage(claimed('["tasks.a", "tasks.b", "tasks.c"]', stage, f"tasks.{'abc'[stage]}"))
    assert (found and found.task) == (following and f"tasks.{following}")


def test_what_a_producer_gave_is_what_a_worker_reads() -> None:
    """Each stage whole, so that nothing of the row's stage before it holds on."""
    made = new_task(
        stages=["tasks.a", {"task": "tasks.b", "priority": -1}, {"task": "tasks.c", "max_attempts": 9, "group_id": 8}],
        group_id=3,
        priority=4,
        max_attempts=5,
    )
    assert made[:5] == ("tasks.a", None, 3, 4, 5)
    assert next_stage(claimed(made.stages, 0)) == NextStage("tasks.b", 3, -1, 5)
    assert next_stage(claimed(made.stages, 1, "tasks.b")) == NextStage("tasks.c", 8, 4, 9)


@pytest.mark.parametrize(
    ("stages", "stage", "words"),
    [
        ("tasks.a, tasks.b", 0, "stages is not valid JSON"),
        (json.dumps(["tasks.a"] * (MAX_STAGES + 1)), 0, "allowed: a list of 1 to 100"),
        ('["tasks.a", 5]', 0, "stage 2: it is 5"),
        ('["tasks.a", "tasks b"]', 0, "stage 2: "),
        ('["tasks.a", {"task": "tasks.b", "group_id": -1}]', 0, "stage 2: group_id is -1"),
        ('["tasks.a", {"task": "tasks.b", "priority": NaN}]', 0, "NaN is not a JSON number"),
        ("[" * 30_000, 0, "stages is nested too deep"),
        ("ü" * (MAX_STAGES_BYTES // 2 + 1), 0, f"stages is longer than {MAX_STAGES_BYTES} bytes"),
        (TWO.encode(), 0, "stages is text; this row holds something else"),
        (TWO, 2, "it is at stage 3 of 2"),
        (TWO, 1, "its task is 'tasks.a', and stage 2 of its stages 'tasks.b'"),
    ],
)
def test_stages_that_no_producer_wrote_are_a_bad_task_that_says_what_is_wrong(
    stages: object, stage: int, words: str
) -> None:
    with pytest.raises(BadTask) as raised:
        next_stage(claimed(stages, stage))
    assert words in str(raised.value)
    assert str(raised.value).isprintable()
