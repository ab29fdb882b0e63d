"""Functions as tasks: their names, arguments and options, and calls of them by `enqueue`."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest

from taskserver import InvalidTask, Schedule, SettingError, TaskServer, task
from taskserver.errors import BadTask
from taskserver.model.new_task import NewTask, new_task, new_task_from
from taskserver.model.task import MAX_TASK_LENGTH, ClaimedTask
from taskserver.model.task_options import options_of
from taskserver.worker.callables import Callables
from taskserver.worker.preparing import prepare

TASKS = """
import functools
import taskserver
def send(to="nobody"): return f"sent to {to}"
def _private(): pass
anonymous = lambda: None
part = functools.partial(send, "x")
@functools.lru_cache
def cached(): pass
def numbers(): yield 1
async def fetch(page): pass
def with_one_more(function):
    @functools.wraps(function)
    def inner(first, **others): return function(**others)
    return inner
@with_one_more
def wrapped(): pass
@taskserver.task(batch=5)
def store_none(): pass
def odd(): pass
odd.__signature__ = 5
@taskserver.task(group_id=3, priority=-5, unique_key=lambda page, **others: f"page {page}", rerun=True)
def index(page, lang="en"): pass
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
    class Inner:
        @staticmethod
        def deep(): pass
class Letter(Base): pass
"""

LONGEST = MAX_TASK_LENGTH - len("t.")


@pytest.fixture
def tasks(make_tasks: Callable[[str], Any]) -> Any:
    return make_tasks(TASKS)


# ---- names


def test_a_name_in_one_of_the_three_forms_is_taken() -> None:
    for name in ("tasks.send", "tasks:send", "shop.jobs.mail:Letter.post", "größe.Ωmega", "t." + "a" * LONGEST):
        assert new_task(name) == NewTask(name, None, 0, 0)


@pytest.mark.parametrize(
    "name",
    [
        *("", "send", "tasks.", "tasks..send", "tasks::send", "tasks.send()", "tasks.send\n", "tasks.send\0"),
        *("tasks.1send", "tasks.\udce9", "t." + "a" * (LONGEST + 1), "a." * 500_000),
    ],
    ids=lambda name: ascii(name[:30]),
)
def test_any_other_name_is_refused_in_one_short_line(name: str) -> None:
    with pytest.raises(InvalidTask, match=r"^task is .*; allowed: module\.function, module\.Cl") as caught:
        new_task(name)
    assert len(str(caught.value)) < 400


# ---- functions


def test_a_function_is_added_by_its_own_name_and_runs(tasks: Any) -> None:
    for function, name in (
        (tasks.send, "tasks.send"),
        (tasks.Letter.post, "tasks.Base.post"),
        (tasks.Letter.write, "tasks.Letter.write"),
    ):
        assert new_task(function).task == name
        assert Callables(("tasks",)).find(name).call() == function()


def test_a_function_of_the_started_program_is_refused() -> None:
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec("def send(): pass\n", namespace)
    with pytest.raises(InvalidTask, match=r"put it into a module, such as tasks.py"):
        new_task(namespace["send"])


UNFIT = ("tasks.Base", "tasks.cached", "len", "mock.Mock()", "mock.create_autospec(tasks.send)")


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("tasks.numbers", "task 'tasks.numbers' is a generator function, and calling it would run nothing"),
        ("tasks.anonymous", "task 'tasks.<lambda>' cannot be found by its name: it is inside another function, a"),
        ("tasks._private", "task 'tasks._private' is private: '_private' begins with an underscore"),
        ("tasks.Base.method", "is a plain function inside a class; only static and class methods may run: put"),
        ("tasks.Base().method", ", a method of an object, which no worker has; allowed: a name such as"),
        ("tasks.Base.Inner.deep", "task 'tasks.Base.Inner.deep' is inside a class of a class, where no worker looks"),
        ("tasks.part", ", a partial: give its function, and its arguments as args; allowed: a name such as"),
        ("tasks.odd", "task 'tasks.odd': its signature cannot be read: TypeError: "),
        *((what, "allowed: a name such as 'tasks.send_letter', or the function itself") for what in UNFIT),
    ],
)
def test_callables_that_no_worker_could_run_are_refused(tasks: Any, what: str, words: str) -> None:
    thing = eval(what, {"tasks": tasks, "mock": mock})
    with pytest.raises(InvalidTask) as caught:
        new_task(thing)
    assert words in str(caught.value)
    with pytest.raises(InvalidTask, match=f"^stage 2: {re.escape(str(caught.value))}"):
        new_task(stages=["tasks.send", thing])


def test_other_objects_than_names_and_functions_are_refused() -> None:
    for thing in (None, b"tasks.send"):
        with pytest.raises(InvalidTask, match=r"allowed: a name such as 'tasks.send_letter', or the function itself"):
            new_task(thing)  # type: ignore[arg-type]
    with pytest.raises(InvalidTask, match=r"Task object .*, a task of Django: give its name, or have Django add"):
        new_task(type("Task", (), {})())


# ---- arguments of functions

MISFITS: list[tuple[str, Any]] = [
    ("tasks.send", {"to": 1, "ot": 2}),
    ("tasks.wrapped", None),
    ("tasks.Letter.write", {"cls": 5}),
    ("tasks.store_none", [1]),
]


@pytest.mark.parametrize(("what", "args"), MISFITS, ids=str)
def test_producers_and_workers_refuse_wrong_arguments_alike(tasks: Any, what: str, args: Any) -> None:
    function = eval(what, {"tasks": tasks})
    with pytest.raises(InvalidTask) as at_once:
        new_task(function, args)
    row = new_task(what, args)
    with pytest.raises(BadTask) as later:
        prepare(ClaimedTask(1, row.task, row.args, 9, attempts=0, max_attempts=None, claim=7), Callables(("tasks",)))
    assert str(at_once.value) == str(later.value)
    assert str(at_once.value).startswith(f"{what}(")
    with pytest.raises(InvalidTask, match=f"^stage 1: {re.escape(str(at_once.value))}"):
        new_task(stages=[{"task": function}], args=args)


# ---- what @task says of a function


def row_of(made: NewTask) -> tuple[object, ...]:
    return made.group_id, made.priority, made.unique_key, made.rerun


def test_the_options_of_the_function_are_the_defaults(tasks: Any) -> None:
    rows: list[tuple[dict[str, Any], tuple[object, ...]]] = [
        ({}, (3, -5, "page 7", True)),
        ({"group_id": 0, "priority": 0}, (0, 0, "page 7", True)),
        ({"unique_key": "other", "rerun": False}, (3, -5, "other", False)),
        ({"unique_key": None}, (3, -5, None, False)),
    ]
    for given, row in rows:
        for args in ([7], {"page": 7, "lang": "fr"}):
            assert row_of(new_task(tasks.index, args, **given)) == row
            assert row_of(new_task_from({"task": tasks.index, "args": args, **given})) == row


def test_a_batch_function_makes_a_key_for_each_task(tasks: Any) -> None:
    assert new_task(tasks.store_each, {"n": 5}).unique_key == new_task(tasks.store_each, [5]).unique_key == "reading 5"


@pytest.mark.parametrize(
    ("what", "args", "words"),
    [
        ("divide", [0], "unique_key of tasks.divide: ZeroDivisionError: division by zero"),
        ("keep", [None], "unique_key of tasks.keep is None; allowed: a text of 1 to 255 bytes in UTF-8"),
        ("keep", {"page": "p", "lang": "fr"}, "unique_key of tasks.keep: TypeError: "),
        ("keep", {"pgae": "p"}, "tasks.keep(page, lang=…) does not take these arguments"),
    ],
)
def test_a_key_that_cannot_be_made_is_refused(tasks: Any, what: str, args: Any, words: str) -> None:
    with pytest.raises(InvalidTask) as caught:
        new_task(getattr(tasks, what), args)
    assert words in str(caught.value)


# ---- the options that @task gives

WHOLE, CLASSES = "a whole number from", "an exception class, or a tuple of one or more$"
REFUSED: list[tuple[dict[str, Any], str]] = [
    *(({"batch": value}, f"batch .*; allowed: {WHOLE} 1 to 500$") for value in (0, 501, True)),
    ({"commit_every": 501}, f"commit_every .*; allowed: {WHOLE} 1 to 500$"),
    *(({"max_attempts": value}, f"max_attempts .*; allowed: {WHOLE} 1 to") for value in (0, 1.5, "3")),
    *(({"timeout": value}, "timeout .*; allowed: seconds, a text such as") for value in (-1, float("nan"), "8d")),
    *(({"backoff": value}, "backoff") for value in ("soon", "fixed:-1", 60)),
    *(({"on_fatal": value}, "on_fatal") for value in ("no dots", "tasks.rescue()", 5)),
    *(({"transactional": value}, "transactional .*; allowed: True or False") for value in (1, None)),
    ({"group_id": -1}, f"group_id .*; allowed: {WHOLE} 0 to"),
    ({"priority": 2**31}, f"priority .*; allowed: {WHOLE}"),
    *(({"unique_key": value}, "unique_key .*; allowed: a text") for value in ("", "k" * 256, 5)),
    *(({"retry_on": value}, f"retry_on .*; allowed: {CLASSES}") for value in ("ValueError", int, (ValueError, None))),
    ({"fatal_on": ()}, f"fatal_on .*; allowed: {CLASSES}"),
    ({"commit_every": 5, "batch": 5}, "it has commit_every and batch; allowed: one of them"),
    ({"commit_every": 5, "transactional": True}, "it has commit_every and transactional; allowed: one of them"),
    ({"commit_every": 5, "max_attempts": 1}, "it has commit_every and max_attempts=1; allowed: max_attempts from 2"),
    ({"transactional": True, "batch": 5}, "it has transactional and batch; allowed: one of them"),
    ({"unique_key": "k", "rerun": 1}, "rerun is 1; allowed: True or False"),
    ({"rerun": True}, "it has rerun and no unique_key, which says which row"),
]


@pytest.mark.parametrize(("given", "words"), REFUSED)
def test_options_that_are_wrong_or_do_not_go_together_are_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingError, match=f"^{words}"):
        task(**given)


@pytest.mark.parametrize("marked", [int, len, functools.partial(print)])
def test_only_functions_and_methods_take_options(marked: Any) -> None:
    with pytest.raises(SettingError, match="allowed: functions, static and class methods"):
        task(max_attempts=1)(marked)


def test_options_do_not_change_a_function() -> None:
    def own(number: int) -> int:
        return 2 * number

    assert task(own) is task(max_attempts=1, timeout=0)(own) is own
    assert own(4) == 8
    assert options_of(own)[:1] == (1,)  # type: ignore[arg-type]


# ---- enqueue: a call of a function becomes a task, and mypy sees its arguments


def plain(to: str, copies: int = 1, *, urgent: bool = False) -> None: ...


def positions(first: int, /, *rest: int, last: int = 0) -> None: ...


@task(group_id=3, priority=-5, unique_key=lambda to: f"letter {to}")
async def placed(to: str) -> None: ...


@task(batch=10)
def together(tasks: list[Any]) -> None: ...


def test_a_call_becomes_the_arguments_of_a_task(server: TaskServer) -> None:
    server.enqueue(plain, "a")
    server.enqueue(plain, "a", 2, urgent=True)
    server.enqueue(positions, 1, 2, 3)
    expected = [["a"], {"to": "a", "copies": 2, "urgent": True}, [1, 2, 3]]
    assert [row.args for row in reversed(server.list())] == expected


def test_enqueue_uses_the_options_of_the_function(server: TaskServer) -> None:
    first = server.enqueue(placed, "ada")
    assert server.enqueue(placed, to="ada") == first
    (found,) = server.list()
    assert (found.task, found.group_id, found.priority) == (f"{__name__}.placed", 3, -5)


@pytest.mark.parametrize(
    ("function", "args", "kwargs", "fault"),
    [
        (plain, (), {}, "does not take these arguments: missing a required argument: 'to'"),
        (plain, ("a",), {"connection": object()}, "; for delay, connection and other options use add_task$"),
        (positions, (1,), {"last": 2}, "only by position"),
        (together, ([1],), {}, "takes a list of tasks"),
        ("tasks.x", (), {}, "task is 'tasks.x', a name; allowed here: the function itself"),
    ],
)
def test_enqueue_refuses_calls_that_no_worker_could_make(
    server: TaskServer, function: Any, args: Any, kwargs: Any, fault: str
) -> None:
    with pytest.raises(InvalidTask, match=fault):
        server.enqueue(function, *args, **kwargs)
    assert server.list() == []


def what_mypy_refuses(server: TaskServer) -> None:
    """Never called: `make lint` fails if mypy accepts one of these lines."""
    server.enqueue(plain, 3)  # type: ignore[arg-type]
    server.enqueue(plain, to="a", copy=2)  # type: ignore[call-arg]
    server.enqueue(placed)  # type: ignore[call-arg]
    Schedule(name="nightly", task=plain, evry="1d")  # type: ignore[typeddict-unknown-key]
