"""Names of tasks and functions given themselves: what a producer takes, and what a worker finds by it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest

from taskserver.errors import BadTask, InvalidTask
from taskserver.model.new_task import NewTask, new_task, new_task_from
from taskserver.model.task import MAX_TASK_LENGTH, ClaimedTask
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
def with_one_more(function):
    @functools.wraps(function)
    def inner(first, **others): return function(**others)
    return inner
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
def tasks(make_tasks: Callable[[str], Any]) -> Any:
    return make_tasks(TASKS)


# ---- names


def test_a_name_in_one_of_the_three_forms_is_taken() -> None:
    for name in (
        *("tasks.send", "tasks:send", "tasks.Letter.post", "tasks:Letter.post", "shop.jobs.mail:Letter.post", "a.b"),
        *("größe.Ωmega", "_t._x9", "t." + "a" * (MAX_TASK_LENGTH - 2)),
    ):
        assert new_task(name) == NewTask(name, None, 0, 0)


@pytest.mark.parametrize(
    "name",
    [
        *("", " ", "send", "tasks.", ".send", "tasks..send", "tasks:", ":send", "tasks::send", "tasks:Letter:post"),
        *("tasks.send()", "tasks.send ", " tasks.send", "tasks.send\n", "tasks.send\0", "tasks/send", "tasks-1.send"),
        *("tasks.1send", "9.9", "tasks.send;x", "tasks.\udce9", "tasks.\U0001f4e8", "os.system('x')"),
        *("t." + "a" * (MAX_TASK_LENGTH - 1), "a." * 500_000),
    ],
    ids=lambda name: name[:30].encode("unicode_escape").decode(),
)
def test_any_other_name_is_refused_in_one_short_line(name: str) -> None:
    with pytest.raises(InvalidTask) as caught:
        new_task(name)
    message = str(caught.value)
    assert message.startswith("task is ")
    assert "module.function, module.Class.method or module:Class.method" in message
    assert len(message) < 400
    assert len(message.splitlines()) == 1


# ---- functions


@pytest.mark.parametrize(
    ("what", "name"),
    [
        *(("send", "tasks.send"), ("also_send", "tasks.send"), ("Base.post", "tasks.Base.post")),
        *(
            ("Base.write", "tasks.Base.write"),
            ("Letter.post", "tasks.Base.post"),
            ("Letter.write", "tasks.Letter.write"),
        ),
    ],
)
def test_a_function_is_added_by_its_own_name_and_runs(tasks: Any, what: str, name: str) -> None:
    function = eval(f"tasks.{what}", {"tasks": tasks})
    assert new_task(function).task == name
    assert Callables(("tasks",)).find(name).call() == function()


@pytest.mark.parametrize("thing", [None, 5, True, b"tasks.send", ["tasks.send"], ("tasks", "send"), object(), {}, 1.5])
def test_what_is_neither_a_name_nor_a_function_is_refused(thing: Any) -> None:
    with pytest.raises(InvalidTask, match=r"allowed: a name such as 'tasks.send_letter', or the function itself"):
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
        ("tasks.anonymous", "task 'tasks.<lambda>' cannot be found by its name: it is inside another function, a"),
        ("tasks.made", "task 'tasks.make.<locals>.inner' cannot be found by its name: it is inside another"),
        ("tasks._private", "task 'tasks._private' is private: '_private' begins with an underscore"),
        (
            "tasks.Base.method",
            "task 'tasks.Base.method' is a plain function inside a class; only static and class methods may run: put",
        ),
        ("tasks.Base().method", ", a method of an object, which no worker has; allowed: a name such as"),
        ("tasks.Base.Inner.deep", "task 'tasks.Base.Inner.deep' is inside a class of a class, where no worker looks"),
        ("tasks.part", ", a partial: give its function, and its arguments as args; allowed: a name such as"),
        ("tasks.odd", "task 'tasks.odd': its signature cannot be read: TypeError: "),
        *((what, "allowed: a name such as 'tasks.send_letter', or the function itself") for what in UNFIT),
    ],
)
def test_what_no_worker_could_run_is_refused_alone_and_as_a_stage(tasks: Any, what: str, words: str) -> None:
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


@pytest.mark.usefixtures("tasks")
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("tasks.join", "comes from posixpath"),
        ("posixpath.join", "none of the modules that may run"),
        ("tasks.Letter", "is a class"),
        ("tasks._private", "is private: '_private' begins with an underscore"),
        ("tasks.numbers", "is a generator function"),
        ("tasks.Base.method", "is a plain function inside a class"),
        ("tasks.sent", "module tasks has no 'sent'; did you mean 'send'?"),
        ("task.send", "did you mean 'tasks.send'?"),
        ("tasks.Letter.pots", "has no method 'pots' of a listed module; did you mean 'post'?"),
    ],
)
def test_a_name_of_what_may_not_run_is_refused_by_a_worker(name: str, words: str) -> None:
    with pytest.raises(BadTask) as caught:
        Callables(("tasks",)).find(new_task(name).task)
    assert words in str(caught.value)


# ---- arguments of functions

MISFITS: list[tuple[str, Any]] = [
    *(("tasks.send", args) for args in ([1, 2], {"to": 1, "ot": 2})),
    *(("tasks.wrapped", args) for args in (None, [1, 2])),
    *(("tasks.Letter.write", args) for args in ([1], {"cls": 5})),
    *(("tasks.store_none", args) for args in (None, [1], {"n": 1})),
]


@pytest.mark.parametrize(("what", "args"), MISFITS, ids=str)
def test_arguments_that_the_function_does_not_take_are_refused_in_a_worker_s_words(
    tasks: Any, what: str, args: Any
) -> None:
    function = eval(what, {"tasks": tasks})
    with pytest.raises(InvalidTask) as at_once:
        new_task(function, args)
    name = "tasks.Letter.write" if "Letter" in what else f"tasks.{function.__name__}"
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
        *((tasks.store, args) for args in (None, [1, 2, 3], {"n": 1})),
    ):
        added = new_task(function, args)
        assert added == new_task(added.task, args)
        # What a later stage gets is not known yet.
        assert new_task(stages=[function, tasks.fetch], args=args)[:2] == added[:2]


# ---- what @task says of a function


def row_of(*given: Any, **named: Any) -> tuple[object, ...]:
    """Its group, priority, key, and whether it is a rerun."""
    made = new_task(*given, **named)
    return made.group_id, made.priority, made.unique_key, made.rerun


def test_what_the_producer_leaves_out_is_as_the_function_says(tasks: Any) -> None:
    rows: list[tuple[dict[str, Any], tuple[object, ...]]] = [
        ({}, (3, -5, "page 7", True)),
        ({"group_id": 0, "priority": 0}, (0, 0, "page 7", True)),
        ({"unique_key": "other"}, (3, -5, "other", True)),
        ({"rerun": False}, (3, -5, "page 7", False)),
        ({"unique_key": None}, (3, -5, None, False)),
        ({"version": 4}, (3, -5, "page 7", True)),
    ]
    for given, row in rows:
        for args in ([7], {"page": 7}, {"page": 7, "lang": "fr"}):
            assert row_of(tasks.index, args, **given) == row
            assert new_task_from({"task": tasks.index, "args": args, **given}) == new_task(tasks.index, args, **given)


def test_a_name_in_text_says_nothing_of_its_function(tasks: Any) -> None:
    assert row_of("tasks.index", [7]) == (0, 0, None, False)
    for key in ("group_id", "priority", "rerun"):
        for task in ("tasks.index", tasks.index):
            with pytest.raises(InvalidTask, match=f"^{key} is None; allowed"):
                new_task_from({"task": task, "args": [7], key: None})


def test_a_key_may_be_a_text_and_of_a_batch_is_that_of_each_task(tasks: Any) -> None:
    assert row_of(tasks.tidy) == (0, 0, "once", False)
    assert row_of(tasks.store_each, {"n": 5})[2] == row_of(tasks.store_each, [5])[2] == "reading 5"
    assert new_task(tasks.divide, [0], unique_key="mine").unique_key == "mine"


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
def test_a_key_that_cannot_be_made_is_an_invalid_task_that_names_it(
    tasks: Any, what: str, args: Any, words: str
) -> None:
    with pytest.raises(InvalidTask) as caught:
        new_task(getattr(tasks, what), args)
    assert words in str(caught.value)
