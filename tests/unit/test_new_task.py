"""What a producer may add: checked before anything is written, and refused in words that name the way out."""

from __future__ import annotations

import contextlib
import importlib
import json
import re
import sys
from collections import OrderedDict, UserDict
from collections.abc import Iterator, Mapping
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from enum import IntEnum
from pathlib import Path
from types import MappingProxyType
from typing import Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskserver import TaskServer
from taskserver.errors import BadTask, InvalidTask
from taskserver.messages.text import shown
from taskserver.model.names import check_name
from taskserver.model.new_task import MAX_PARENTS, TASK_KEYS, NewTask, new_task, new_task_from
from taskserver.model.pipeline import MAX_STAGES
from taskserver.model.task import MAX_GROUP_ID, MAX_PRIORITY, MAX_TASK_LENGTH, MIN_PRIORITY, ClaimedTask
from taskserver.worker.callables import Callables
from taskserver.worker.preparing import prepare

TASKS = """
import functools
import taskserver
from os.path import join
def send(to="nobody"): return f"sent to {to}"
def _private(): pass
also_send = send
anonymous = lambda: None
part = functools.partial(send, "x")
def make():
    def inner(): pass
    return inner
made = make()
@functools.lru_cache
def cached(): pass
def numbers(): yield 1
async def numbers_later(): yield 1
async def fetch(page): pass
def without_wraps(function):
    def inner(*args): return function(*args)
    return inner
def with_one_more(function):
    @functools.wraps(function)
    def inner(first, **others): return function(**others)
    return inner
@without_wraps
def nameless(): pass
@with_one_more
def wrapped(): pass
@taskserver.task(batch=5)
def store(rows): pass
@taskserver.task(batch=5)
def store_none(): pass
def odd(): pass
odd.__signature__ = 5
@taskserver.task(group_id=3, priority=-5, unique_key=lambda page, **others: f"page {page}", rerun=True)
def index(page, lang="en"): pass
@taskserver.task(unique_key="once")
def tidy(): pass
@taskserver.task(unique_key=lambda page: 1 / page)
def divide(page): pass
@taskserver.task(unique_key=lambda page: page)
def keep(page, lang="en"): pass
@taskserver.task(batch=5, unique_key=lambda n: f"reading {n}")
def store_each(readings): pass
class Base:
    @staticmethod
    def post(): return "posted"
    @classmethod
    def write(cls): return f"written by {cls.__name__}"
    def method(self): pass
    def __call__(self): pass
    class Inner:
        @staticmethod
        def deep(): pass
class Letter(Base): pass
"""


@pytest.fixture
def tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module `tasks`, as a producer imports it."""
    (tmp_path / "tasks.py").write_text(TASKS)
    monkeypatch.syspath_prepend(str(tmp_path))
    before = sys.modules.pop("tasks", None)
    yield importlib.import_module("tasks")
    sys.modules.pop("tasks", None)
    if before is not None:
        sys.modules["tasks"] = before


# ---- names


@pytest.mark.parametrize(
    "name",
    [
        *("tasks.send", "tasks:send", "tasks.Letter.post", "tasks:Letter.post", "shop.jobs.mail.send"),
        *("shop.jobs.mail.Letter.post", "shop.jobs.mail:Letter.post", "größe.Ωmega", "_t._x9", "a.b"),
        "t." + "a" * (MAX_TASK_LENGTH - 2),
    ],
)
def test_a_name_in_one_of_the_three_forms_is_taken_as_it_is(name: str) -> None:
    assert new_task(name) == NewTask(name, None, 0, 0)


@pytest.mark.parametrize(
    "name",
    [
        *("", " ", "send", "tasks.", ".send", "tasks..send", "tasks:", ":send", "tasks::send", "tasks:Letter:post"),
        *("tasks.send()", "tasks.send ", " tasks.send", "tasks.send\n", "tasks.send\0", "tasks/send", "tasks-1.send"),
        *("tasks.1send", "9.9", "tasks.send;x", "tasks.\udce9", "tasks.\U0001f4e8", "os.system('x')"),
        *("t." + "a" * (MAX_TASK_LENGTH - 1), "a" * 1_000_000, "a." * 500_000),
    ],
    ids=lambda name: name[:30].encode("unicode_escape").decode(),
)
def test_what_has_no_such_form_is_refused_in_short_words(name: str) -> None:
    with pytest.raises(InvalidTask) as caught:
        new_task(name)
    message = str(caught.value)
    assert message.startswith("task is ")
    assert "module.function, module.Class.method or module:Class.method" in message
    assert len(message) < 400
    assert len(message.splitlines()) == 1


@given(st.text(max_size=300))
def test_any_text_is_a_name_or_an_invalid_task(name: str) -> None:
    with contextlib.suppress(InvalidTask):
        assert check_name(name) == name
        assert len(name) <= MAX_TASK_LENGTH


@given(st.from_regex(r"[^\W\d]\w{0,9}([.:][^\W\d]\w{0,9}){1,3}", fullmatch=True))
def test_a_name_that_a_producer_may_add_is_refused_by_a_worker_only_for_what_it_names(name: str) -> None:
    with contextlib.suppress(InvalidTask):
        check_name(name)
        with pytest.raises(BadTask, match="none of the modules that may run"):
            Callables(("a_module_that_is_not_there",)).find(name)


# ---- functions themselves


def test_a_function_or_method_stands_for_its_own_name(tasks: Any) -> None:
    for function, name in (
        (tasks.send, "tasks.send"),
        (tasks.also_send, "tasks.send"),
        (tasks.Base.post, "tasks.Base.post"),
        (tasks.Base.write, "tasks.Base.write"),
    ):
        assert new_task(function).task == name


def test_what_is_added_as_a_function_is_what_runs(tasks: Any) -> None:
    callables = Callables(("tasks",))
    for function in (
        tasks.send,
        tasks.also_send,
        tasks.Base.post,
        tasks.Base.write,
        tasks.Letter.post,
        tasks.Letter.write,
    ):
        assert callables.find(new_task(function).task).call() == function()


@pytest.mark.parametrize("what", ["tasks.make", "tasks.Letter", "tasks", "join", "print"])
def test_what_no_worker_could_run_is_refused_when_it_is_added_or_when_it_is_claimed(tasks: Any, what: str) -> None:
    thing = eval(what, {"tasks": tasks, "join": tasks.join})
    if what == "tasks.make":
        assert Callables(("tasks",)).find(new_task(thing).task).call is thing
        return
    with pytest.raises((InvalidTask, BadTask)):
        Callables(("tasks",)).find(new_task(thing).task)


@pytest.mark.parametrize("thing", [None, 5, True, b"tasks.send", ["tasks.send"], ("tasks", "send"), object(), {}, 1.5])
def test_what_is_neither_a_name_nor_a_function_is_refused(thing: Any) -> None:
    with pytest.raises(InvalidTask, match=r"allowed: a name as 'tasks.send_letter', or the function itself"):
        new_task(thing)


def test_a_function_of_the_started_program_is_refused_as_no_worker_could_import_it() -> None:
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec("def send(): pass\nclass Letter:\n    @classmethod\n    def write(cls): pass\n", namespace)
    for function in (namespace["send"], namespace["Letter"].write):
        with pytest.raises(InvalidTask, match=r"put it into a module, such as tasks.py"):
            new_task(function)


UNFIT = (
    *("tasks.Base", "tasks.Base()", "tasks.cached", "len", "[].append"),
    "type('Odd', (), {'x': classmethod(len)}).x",
    *("mock.Mock()", "mock.MagicMock(spec=tasks.send)", "mock.create_autospec(tasks.send)"),
)


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("tasks.numbers", "task 'tasks.numbers' is a generator function, and calling it would run nothing"),
        ("tasks.numbers_later", "task 'tasks.numbers_later' is a generator function"),
        (
            "tasks.anonymous",
            "task 'tasks.<lambda>' cannot be found by its name: it is inside another function, a",
        ),
        ("tasks.made", "task 'tasks.make.<locals>.inner' cannot be found by its name: it is inside another"),
        ("tasks.nameless", "or a decorator did not use functools.wraps; define it in a module"),
        ("tasks._private", "task 'tasks._private' is private: '_private' begins with an underscore"),
        (
            "tasks.Base.method",
            "task 'tasks.Base.method' is a plain function inside a class; only static and class methods may run: put",
        ),
        ("tasks.Base().method", ", a method of an object, which no worker has; allowed: a name as"),
        ("tasks.Base.Inner.deep", "task 'tasks.Base.Inner.deep' is inside a class of a class, where no worker looks"),
        ("tasks.part", ", a partial: give its function, and its arguments as args; allowed: a name as"),
        ("tasks.odd", "task 'tasks.odd': its signature cannot be read: TypeError: "),
        *((what, "allowed: a name as 'tasks.send_letter', or the function itself") for what in UNFIT),
    ],
)
def test_what_no_worker_could_run_is_refused_as_it_is_added_alone_or_as_a_stage(
    tasks: Any, what: str, words: str
) -> None:
    thing = eval(what, {"tasks": tasks, "mock": mock})
    with pytest.raises(InvalidTask) as caught:
        new_task(thing)
    assert words in str(caught.value)
    with pytest.raises(InvalidTask, match=f"^stage 2: {re.escape(str(caught.value))}"):
        new_task(stages=["tasks.send", thing])


def test_a_task_of_django_is_refused_with_what_to_give_instead() -> None:
    of_django = type("Task", (), {})()
    for added in ({"task": of_django}, {"stages": [of_django]}, {"stages": [{"task": of_django}]}):
        with pytest.raises(InvalidTask, match=r"Task object .*, a task of Django: give its name, or have Django add"):
            new_task(**added)


@pytest.mark.parametrize(
    "name", ["tasks._private", "tasks.numbers", "tasks.numbers_later", "tasks.Base.method", "tasks.odd"]
)
def test_a_producer_and_a_worker_say_the_same_of_what_may_not_run(tasks: Any, name: str) -> None:
    with pytest.raises(InvalidTask) as at_once:
        new_task(eval(name, {"tasks": tasks}))
    with pytest.raises(BadTask) as later:
        Callables(("tasks",)).find(name)
    assert str(at_once.value) == f"task {later.value}"


MISFITS: list[tuple[str, Any]] = [
    *(("tasks.send", args) for args in ([1, 2], {"ot": "x"}, {"to": 1, "ot": 2}, {"": 1})),
    *(("tasks.wrapped", args) for args in (None, [], [1, 2])),
    *(("tasks.Letter.write", args) for args in ([1], {"cls": 5})),
    *(("tasks.store_none", args) for args in (None, [1], {"n": 1})),
    ("tasks.also_send", ("x", "y")),
]


@pytest.mark.parametrize(("what", "args"), MISFITS, ids=str)
def test_arguments_that_the_function_does_not_take_are_told_as_a_worker_would(tasks: Any, what: str, args: Any) -> None:
    function = eval(what, {"tasks": tasks})
    with pytest.raises(InvalidTask) as at_once:
        new_task(function, args)
    name = f"{function.__self__.__module__}.Letter.write" if "Letter" in what else f"tasks.{function.__name__}"
    row = new_task(name, args)
    with pytest.raises(BadTask) as later:
        prepare(ClaimedTask(1, row.task, row.args, 9, attempts=0, max_attempts=None, claim=7), Callables(("tasks",)))
    assert str(at_once.value) == str(later.value)
    assert str(at_once.value).startswith(f"{name}(")
    with pytest.raises(InvalidTask, match=f"^stage 1: {re.escape(str(at_once.value))}"):
        new_task(stages=[{"task": function}], args=args)


def test_arguments_that_fit_are_added_by_the_function_as_by_its_name(tasks: Any) -> None:
    for function, args in (
        *((tasks.send, args) for args in (None, [], {}, ["x"], {"to": "x"})),
        *((tasks.wrapped, args) for args in ([1], {"first": 1, "more": 2})),
        *((tasks.fetch, args) for args in ([5], {"page": 5})),
        *((tasks.store, args) for args in (None, [1, 2, 3], {"n": 1})),
        (tasks.Letter.write, None),
    ):
        added = new_task(function, args)
        assert added == new_task(added.task, args)
        assert new_task(stages=[function, tasks.fetch], args=args)[:2] == added[:2]


def test_what_a_later_stage_gets_is_not_guessed(tasks: Any) -> None:
    assert new_task(stages=["tasks.send", tasks.fetch, tasks.wrapped], args=["x"]).args == '["x"]'


def test_a_misspelt_keyword_is_told_the_right_one_before_anything_is_added(tasks: Any, tmp_path: Path) -> None:
    with TaskServer(f"sqlite:///{tmp_path}/queue.db") as server:
        server.create_tables()
        for add in (
            lambda: server.add_task(tasks.fetch, {"pgae": 5}),
            lambda: server.add_tasks([{"task": tasks.send}, {"task": tasks.fetch, "args": {"pgae": 5}}]),
            lambda: server.add_pipeline([tasks.fetch, tasks.send], {"pgae": 5}),
            lambda: server.schedule("often", tasks.fetch, {"pgae": 5}, every=60),
        ):
            with pytest.raises(
                InvalidTask, match=r"tasks\.fetch\(page\) .*: missing .* 'page'; and it takes no 'pgae'"
            ):
                add()
        assert server.get(1) is None
        assert not server.unschedule("often")


# ---- what @task says of a function that is given itself


def row_of(*given: Any, **named: Any) -> tuple[object, ...]:
    """Its group, priority, key, and whether it is a rerun."""
    made = new_task(*given, **named)
    return made.group_id, made.priority, made.unique_key, made.rerun


@pytest.mark.parametrize(
    ("given", "row"),
    [
        ({}, (3, -5, "page 7", True)),
        ({"group_id": 0, "priority": 0}, (0, 0, "page 7", True)),
        ({"group_id": 8, "priority": 9}, (8, 9, "page 7", True)),
        ({"unique_key": "other"}, (3, -5, "other", True)),
        ({"unique_key": "other", "rerun": False}, (3, -5, "other", False)),
        ({"rerun": False}, (3, -5, "page 7", False)),
        ({"unique_key": None}, (3, -5, None, False)),
        ({"version": 4}, (3, -5, "page 7", True)),
    ],
)
def test_what_the_producer_leaves_out_is_as_the_function_says(
    tasks: Any, given: dict[str, Any], row: tuple[object, ...]
) -> None:
    for args in ([7], {"page": 7}, {"page": 7, "lang": "fr"}):
        assert row_of(tasks.index, args, **given) == row
        described = new_task_from({"task": tasks.index, "args": args, **given})
        assert described == new_task(tasks.index, args, **given)


def test_a_name_in_text_says_nothing_of_its_function(tasks: Any) -> None:
    assert row_of("tasks.index", [7]) == (0, 0, None, False)
    assert new_task("tasks.index", [7]) == new_task_from({"task": "tasks.index", "args": [7], "unique_key": None})
    for key in ("group_id", "priority", "rerun"):
        for task in ("tasks.index", tasks.index):
            with pytest.raises(InvalidTask, match=f"^{key} is None; allowed"):
                new_task_from({"task": task, "args": [7], key: None})


def test_a_key_may_be_a_text_and_of_a_batch_is_that_of_each_task(tasks: Any) -> None:
    assert row_of(tasks.tidy) == (0, 0, "once", False)
    assert row_of(tasks.store_each, {"n": 5})[2] == row_of(tasks.store_each, [5])[2] == "reading 5"


@pytest.mark.parametrize(
    ("what", "args", "words"),
    [
        ("divide", [0], "unique_key of tasks.divide: ZeroDivisionError: division by zero"),
        ("divide", [4], "unique_key of tasks.divide is 0.25; allowed: a text of 1 to 255 bytes in UTF-8"),
        ("keep", [None], "unique_key of tasks.keep is None; allowed: a text of 1 to 255 bytes in UTF-8"),
        ("keep", ["ä" * 128], "256 bytes long; allowed: a text of 1 to 255 bytes in UTF-8"),
        ("keep", {"page": "p", "lang": "fr"}, "unique_key of tasks.keep: TypeError: "),
        ("keep", {"pgae": "p"}, "tasks.keep(page, lang=…) does not take these arguments"),
    ],
)
def test_a_key_that_cannot_be_had_is_an_invalid_task_that_names_it(
    tasks: Any, what: str, args: Any, words: str
) -> None:
    with pytest.raises(InvalidTask) as caught:
        new_task(getattr(tasks, what), args)
    assert words in str(caught.value)
    if what != "divide":
        assert new_task(tasks.keep, ["p"], unique_key="mine").unique_key == "mine"


def test_stages_have_group_and_priority_of_their_functions_and_a_pipeline_no_key_of_them(tasks: Any) -> None:
    given: dict[str, Any] = {"stages": [tasks.index, {"task": tasks.index, "priority": 1}, "tasks.index"], "args": [7]}
    for made, groups, priorities in (
        (new_task(**given), [3, 3, 0], [-5, 1, 0]),
        (new_task(**given, group_id=0, priority=2), [0, 0, 0], [2, 1, 2]),
    ):
        assert [stage["group_id"] for stage in stages_of(made)] == groups
        assert [stage["priority"] for stage in stages_of(made)] == priorities
        assert (made.group_id, made.priority, made.unique_key, made.rerun) == (groups[0], priorities[0], None, False)


# ---- numbers


def test_the_limits_are_those_of_the_columns() -> None:
    assert (MAX_GROUP_ID, MIN_PRIORITY, MAX_PRIORITY) == (4_294_967_294, -2_147_483_648, 2_147_483_647)


class Group(IntEnum):
    MAIL = 3


ODD_NUMBERS: list[Any] = [
    True,
    False,
    None,
    "3",
    "x" * 100_000,
    b"3",
    3.0,
    1.5,
    float("nan"),
    3j,
    [3],
    Group.MAIL,
    10**5000,
]


LIMITS = [
    ("group_id", 0, MAX_GROUP_ID),
    ("priority", MIN_PRIORITY, MAX_PRIORITY),
    ("max_attempts", 1, 1_000_000),
    ("version", 0, 2**63 - 1),
]


@pytest.mark.parametrize(("name", "least", "most"), LIMITS)
def test_a_wrong_number_is_named_with_what_is_allowed(name: str, least: int, most: int) -> None:
    given: Any = {"unique_key": "k", "rerun": True}  # without these nothing has a version
    may_lack = name in ("max_attempts", "version")
    for value in [least - 1, most + 1, *(odd for odd in ODD_NUMBERS if odd is not None or not may_lack)]:
        with pytest.raises(InvalidTask, match=f"^{name} is .*; allowed: a whole number from {least} to {most}$") as why:
            new_task("tasks.send", **(given | {name: value}))
        assert len(str(why.value)) < 300
    for value in (least, most):
        assert getattr(new_task("tasks.send", **(given | {name: value})), name) == value


# ---- descriptions


def test_a_description_has_the_keys_of_a_task_and_the_defaults() -> None:
    assert new_task_from({"task": "tasks.send"}) == NewTask("tasks.send", None, 0, 0)
    whole = {"task": "tasks.send", "args": {"to": "x"}, "group_id": 3, "priority": -5}
    assert tuple(whole) == TASK_KEYS[:4]
    assert new_task_from(whole) == NewTask("tasks.send", '{"to":"x"}', 3, -5)
    assert new_task_from({"task": "tasks.send", "args": None}).args is None


@pytest.mark.parametrize("kind", [dict, OrderedDict, UserDict, MappingProxyType])
def test_a_description_may_be_any_mapping(kind: Any) -> None:
    assert new_task_from(kind({"task": "tasks.send", "args": [1]})) == NewTask("tasks.send", "[1]", 0, 0)


@pytest.mark.parametrize("thing", [None, "tasks.send", ["tasks.send"], ("tasks.send", {}), 5, {"task"}, object()])
def test_what_is_no_mapping_is_refused(thing: Any) -> None:
    with pytest.raises(InvalidTask, match="allowed: an object such as"):
        new_task_from(thing)


@pytest.mark.parametrize(
    ("description", "words"),
    [
        ({}, 'it has no "task"'),
        ({"Task": "tasks.send"}, 'it has no "task"'),
        ({"task": "tasks.send", "group": 3}, "it has 'group'; allowed: task, args, group_id, priority"),
        ({"task": "tasks.send", "id": 1, "status": 2}, "it has 'id', 'status'; allowed"),
        ({"task": "tasks.send", 5: 1}, "it has '5'; allowed"),
        ({"task": None}, "task is None"),
        ({"task": ["tasks.send"]}, "task is ["),
        ({"task": "send"}, "task is 'send'"),
        ({"task": "tasks.send", "args": "x"}, "args is 'x'"),
        ({"task": "tasks.send", "args": [object()]}, "args[0] is of type object, which JSON cannot hold"),
        ({"task": "tasks.send", "group_id": "3"}, "group_id is '3'"),
        ({"task": "tasks.send", "priority": 1.0}, "priority is 1.0"),
    ],
)
def test_a_wrong_description_is_refused_for_what_is_wrong_in_it(description: Mapping[Any, Any], words: str) -> None:
    with pytest.raises(InvalidTask) as caught:
        new_task_from(description)
    assert words in str(caught.value)
    assert len(str(caught.value)) < 400


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*TASK_KEYS, "", "x"]), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(JSON)
def test_any_value_is_a_description_or_an_invalid_task(value: Any) -> None:
    with contextlib.suppress(InvalidTask):
        task = new_task_from(value)
        assert task.args is None or isinstance(json.loads(task.args), (list, dict))


# ---- when, how often, and one of a kind


def type_name(value: object) -> str:
    return type(value).__name__


def test_the_keys_that_tell_more_of_a_task_are_taken() -> None:
    whole = {"task": "tasks.send", "max_attempts": 3, "delay": 60, "unique_key": "k", "rerun": True, "version": 0}
    assert new_task_from(whole) == NewTask("tasks.send", None, 0, 0, 3, 60.0, None, "k", True, 0)
    assert set(whole) | {"args", "group_id", "priority", "at", "stages", "depends_on"} == set(TASK_KEYS)


@pytest.mark.parametrize(
    ("delay", "seconds"),
    [
        (None, None),
        (0, None),
        (1, 1.0),
        (0.25, 0.25),
        (timedelta(minutes=5), 300.0),
        (timedelta(days=3660), 3660 * 86400.0),
        (3660 * 86400, 3660 * 86400.0),
    ],
)
def test_a_delay_is_seconds_or_a_timedelta_and_one_of_nothing_is_none(delay: Any, seconds: float | None) -> None:
    assert new_task("tasks.send", delay=delay).delay_seconds == seconds


ODD_DELAYS: list[Any] = [
    *(-1, -0.001, 3660 * 86400 + 1, float("inf"), float("nan"), timedelta(seconds=-1), timedelta(days=3661)),
    *("60", True, b"60", [60], 60j, Decimal(60), 10**400, datetime(2026, 1, 1, tzinfo=timezone.utc)),
]


@pytest.mark.parametrize("delay", ODD_DELAYS, ids=type_name)
def test_a_wrong_delay_is_named_with_what_is_allowed(delay: Any) -> None:
    with pytest.raises(InvalidTask, match=r"^delay is .*; allowed: seconds, .*, from 0 to 3660 days$"):
        new_task("tasks.send", delay=delay)


PLUS_5 = timezone(timedelta(hours=5, minutes=30))


@pytest.mark.parametrize(
    ("at", "due_at"),
    [
        (datetime(2030, 1, 31, 12, 0, tzinfo=timezone.utc), "2030-01-31 12:00:00.000000"),
        (datetime(2030, 1, 31, 12, 0, 1, 5, tzinfo=PLUS_5), "2030-01-31 06:30:01.000005"),
        ("2030-01-31T12:00:00Z", "2030-01-31 12:00:00.000000"),
        ("2030-01-31T12:00:00+01:00", "2030-01-31 11:00:00.000000"),
        ("2030-01-31 12:00:00.000250-05:00", "2030-01-31 17:00:00.000250"),
        ("2030-01-01T00:30:00+01:00", "2029-12-31 23:30:00.000000"),
        ("1970-01-02T00:00:00Z", "1970-01-02 00:00:00.000000"),
        ("2038-01-19T03:14:07Z", "2038-01-19 03:14:07.000000"),
    ],
)
def test_an_instant_is_kept_in_utc_whatever_zone_it_is_told_in(at: Any, due_at: str) -> None:
    assert new_task("tasks.send", at=at).due_at == due_at


@pytest.mark.parametrize(
    ("at", "words"),
    [
        (
            datetime(2030, 1, 31, tzinfo=timezone.utc).replace(tzinfo=None),
            "which has no time zone; allowed: an aware datetime",
        ),
        ("2030-01-31T12:00:00", "which has no time zone; allowed: an aware datetime"),
        ("soon", "allowed: a datetime, or its text as 2026-01-31T12:00:00+01:00"),
        ("2030-02-30T12:00:00Z", "allowed: a datetime, or its text"),
        (1_900_000_000, "allowed: a datetime, or its text"),
        (date(2030, 1, 31), "allowed: a datetime, or its text"),
        ("1970-01-01T23:59:59Z", "allowed: from 1970-01-02 to 2038-01-19"),
        ("2038-01-19T03:14:08Z", "allowed: from 1970-01-02 to 2038-01-19"),
        (datetime.max.replace(tzinfo=timezone.utc), "allowed: from 1970-01-02 to 2038-01-19"),
        (datetime.min.replace(tzinfo=PLUS_5), "allowed: from 1970-01-02 to 2038-01-19"),
    ],
)
def test_a_wrong_instant_is_named_with_what_is_allowed(at: Any, words: str) -> None:
    with pytest.raises(InvalidTask) as caught:
        new_task("tasks.send", at=at)
    assert str(caught.value).startswith("at is ")
    assert words in str(caught.value)


@pytest.mark.parametrize("key", ["k", "\u00e4" * 127, "k" * 255, " ", "\0", "\U0001f389" * 63])
def test_a_key_of_up_to_255_bytes_is_taken_as_it_is(key: str) -> None:
    assert new_task("tasks.send", unique_key=key).unique_key == key


ODD_KEYS: list[Any] = ["", "k" * 256, "\u00e4" * 128, "\U0001f389" * 64, "\ud800", b"k", 5, True, ["k"], object()]


@pytest.mark.parametrize("key", ODD_KEYS, ids=type_name)
def test_a_wrong_key_is_named_with_what_is_allowed(key: Any) -> None:
    with pytest.raises(InvalidTask, match=r"^unique_key is .*; allowed: a text of 1 to 255 bytes in UTF-8$") as caught:
        new_task("tasks.send", unique_key=key)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"rerun": True}, "it has rerun and no unique_key, which says which row is to run again"),
        ({"unique_key": "k", "version": 3}, "it has a version and no rerun; a version says whether a rerun is newer"),
        ({"unique_key": "k", "rerun": 1}, "rerun is 1; allowed: true or false"),
        ({"unique_key": "k", "rerun": "yes"}, "rerun is 'yes'; allowed: true or false"),
        ({"delay": 5, "at": "2030-01-31T12:00:00Z"}, "it has delay and at; allowed: one of them"),
    ],
)
def test_what_does_not_go_together_is_refused_in_a_sentence(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidTask) as caught:
        new_task("tasks.send", **wrong)
    assert str(caught.value).startswith(words)


# ---- pipelines, and tasks that wait for others


def stages_of(task: NewTask) -> Any:
    return json.loads(task.stages or "null")


def test_a_pipeline_is_its_first_stage_and_has_all_of_them_whole(tasks: Any) -> None:
    stages = [tasks.send, {"task": tasks.Letter.post, "group_id": 5}, MappingProxyType({"task": "tasks.cached"})]
    made = new_task(stages=stages, args={"to": "you"}, group_id=2, priority=-1)
    assert made[:5] == ("tasks.send", '{"to":"you"}', 2, -1, None)
    assert stages_of(made) == [
        {"task": "tasks.send", "group_id": 2, "priority": -1},
        {"task": "tasks.Base.post", "group_id": 5, "priority": -1},
        {"task": "tasks.cached", "group_id": 2, "priority": -1},
    ]


def test_what_the_first_stage_says_of_itself_is_said_of_the_row() -> None:
    first = {"task": "tasks.send", "group_id": 7, "priority": 8, "max_attempts": 9}
    made = new_task(stages=(first, "tasks.file"), group_id=1, priority=2, max_attempts=3)
    assert made[:5] == ("tasks.send", None, 7, 8, 9)
    assert stages_of(made) == [first, {"task": "tasks.file", "group_id": 1, "priority": 2, "max_attempts": 3}]
    one_without = {"task": "tasks.send", "group_id": None, "priority": None, "max_attempts": None}
    assert new_task(stages=[one_without])[:5] == ("tasks.send", None, 0, 0, None)


@pytest.mark.parametrize("length", [1, MAX_STAGES])
def test_a_pipeline_has_as_many_stages_as_are_allowed(length: int) -> None:
    assert len(stages_of(new_task(stages=["tasks.send"] * length))) == length


WRONG_STAGES: list[tuple[Any, str]] = [
    ([], "stages is []; allowed: a list of 1 to 100, each as "),
    ("tasks.send", "stages is 'tasks.send'; allowed"),
    ({"task": "tasks.send"}, "stages is {'task': 'tasks.send'}; allowed"),
    (5, "stages is 5; allowed"),
    (iter(["tasks.send"]), "stages is <list_iterator"),
    (["tasks.send"] * (MAX_STAGES + 1), "allowed: a list of 1 to 100"),
    (["tasks.send", None], 'stage 2: it is None; allowed: "tasks.resize", or {"task": "tasks.resize", "group_id": 5}'),
    (["tasks.send", ["tasks.send"]], "stage 2: it is ['tasks.send']; allowed"),
    (["tasks.send", "send"], "stage 2: "),
    (["tasks.send", "x." + "y" * 254], "stage 2: "),
    (["tasks.send", "tasks.\ud800"], "stage 2: "),
    (["tasks.send", {}], 'stage 2: it has no "task"; allowed: task, group_id, priority, max_attempts'),
    (["tasks.send", {"task": None}], 'stage 2: task is None; allowed: "tasks.resize"'),
    ([{"task": "tasks.send", "args": [1]}], "stage 1: it has 'args'; allowed: task, group_id, priority, max_attempts"),
    ([{"task": "tasks.send", 5: 6, "delay": 7}], "stage 1: it has 'delay', 5; allowed"),
    ([{"task": "tasks.send", "group_id": -1}], "stage 1: group_id is -1; allowed"),
    ([{"task": "tasks.send", "priority": True}], "stage 1: priority is True; allowed"),
    ([{"task": "tasks.send", "max_attempts": 0}], "stage 1: max_attempts is 0; allowed"),
    ([lambda: None], "stage 1: "),
    (["x." + "\u8a9e" * 253] * MAX_STAGES, "allowed: 60000"),
]


@pytest.mark.parametrize(("stages", "words"), WRONG_STAGES)
def test_wrong_stages_are_refused_by_their_number_with_what_is_allowed(stages: Any, words: str) -> None:
    with pytest.raises(InvalidTask) as caught:
        new_task(stages=stages)
    assert words in str(caught.value)
    assert len(str(caught.value)) < 500


def test_a_task_and_stages_are_refused_together_and_none_of_both_too() -> None:
    with pytest.raises(InvalidTask, match=r"^it has task and stages; allowed: one of them"):
        new_task("tasks.send", stages=["tasks.send"])
    for nothing in ({}, {"args": [1]}, {"stages": None}, {"task": None}):
        with pytest.raises(InvalidTask, match="task"):
            new_task_from(nothing)
    assert new_task_from({"task": "tasks.send", "stages": None}) == new_task("tasks.send")
    assert new_task_from({"task": None, "stages": ["tasks.send"]}) == new_task(stages=["tasks.send"])


@pytest.mark.parametrize(
    "parents", [[3, 5], (5, 3), {3, 5}, [5, 3, 5, 3], iter([3, 5]), {3: "x", 5: "y"}.keys(), range(3, 6, 2)]
)
def test_a_task_that_waits_for_others_names_each_of_them_once(parents: Any) -> None:
    assert new_task("tasks.send", depends_on=parents).depends_on == "3,5"


def test_a_task_that_waits_for_others_is_looked_at_by_a_worker_first() -> None:
    """At once, or when its own time has come."""
    assert new_task("tasks.send", depends_on=[3]).delay_seconds == 0.0
    assert new_task("tasks.send", depends_on=[3], delay=60).delay_seconds == 60.0
    later = new_task("tasks.send", depends_on=[3], at="2030-01-31T12:00:00Z")
    assert (later.delay_seconds, later.due_at) == (None, "2030-01-31 12:00:00.000000")
    assert new_task(stages=["tasks.send"], depends_on=[3]).depends_on == "3"


def test_a_task_that_waits_for_none_is_a_plain_one() -> None:
    plain = new_task("tasks.send")
    assert new_task("tasks.send", depends_on=[]) == new_task("tasks.send", depends_on=None) == plain
    assert new_task("tasks.send", depends_on=[], unique_key="k").depends_on is None


WRONG_PARENTS: list[tuple[Any, str]] = [
    (17, "depends_on is 17; allowed: a list of ids of tasks"),
    ("17", "depends_on is '17'; allowed"),
    ({17: 18}, "depends_on is {17: 18}; allowed"),
    ([0], "an id in depends_on is 0; allowed: a whole number from 1 to"),
    ([2**64], f"an id in depends_on is {2**64}; allowed"),
    ([1, "2"], "an id in depends_on is '2'; allowed"),
    ([1.0], "an id in depends_on is 1.0; allowed"),
    ([None], "an id in depends_on is None; allowed"),
    (range(1, MAX_PARENTS + 2), f"depends_on names more than {MAX_PARENTS} tasks, which"),
    (range(1, 10**18), f"depends_on names more than {MAX_PARENTS} tasks, which"),
]


@pytest.mark.parametrize(("parents", "words"), WRONG_PARENTS, ids=str)
def test_wrong_tasks_to_wait_for_are_named_with_what_is_allowed(parents: Any, words: str) -> None:
    with pytest.raises(InvalidTask) as caught:
        new_task("tasks.send", depends_on=parents)
    assert str(caught.value).startswith(words)


def test_a_key_and_tasks_to_wait_for_are_refused_together() -> None:
    with pytest.raises(InvalidTask, match=r"^it has depends_on and a unique_key; allowed: one of them, as a row"):
        new_task("tasks.send", depends_on=[3], unique_key="k")


# ---- as a server says it


def test_the_number_of_a_wrong_task_among_many_is_told_and_none_is_added(sqlite_dsn: str) -> None:
    with TaskServer(sqlite_dsn) as server:
        server.create_tables()
        good = {"task": "tasks.send"}
        for wrong in ({"task": "send"}, "tasks.send", None, {"task": "tasks.send", "colour": "red"}):
            with pytest.raises(InvalidTask, match=r"^task 3: "):
                server.add_tasks([good, good, wrong, good])  # type: ignore[list-item]
        assert server.add_tasks([]) == []
        first = server.add_task("tasks.send")
        assert server.add_tasks([good]) == [first + 1]


@pytest.mark.parametrize(("length", "said"), [(78, "'" + "x" * 78 + "'"), (79, "'" + "x" * 78 + "…")])
def test_a_text_that_is_cut_in_a_message_says_so(length: int, said: str) -> None:
    assert shown("x" * length) == said
