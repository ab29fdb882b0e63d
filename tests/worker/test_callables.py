"""What a row may run: the public functions and static and class methods of the listed modules, and nothing else.

The modules note what of their code a look-up runs; most tests end with `modules.noted == []`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from taskserver.errors import InvalidTask
from taskserver.model.new_task import new_task
from tests.support.modules import SENTINEL, Modules, importable

TASKS = '''
import functools, os
from collections import OrderedDict
from functools import lru_cache
from os import makedirs, system
from note import note
from elsewhere import Other, forgetful, mannered, other_function

def send(to="nobody"): return f"sent to {to}"
also_send = send
def _private(): note("_private")
anonymous = lambda: note("anonymous")

@mannered
def decorated(a, b=2): return a + b
@forgetful
def undecorated(): note("undecorated")

@lru_cache
def cached(): note("cached")
def generator(): yield note("generator")
async def async_generator(): yield note("async_generator")

class Descriptor:
    def __get__(self, instance, owner=None): note("descriptor"); return send
class CallableThing:
    def __call__(self): note("called")
    def method(self): note("method")
thing = CallableThing()

class Nosy:
    """Reports every attribute that is asked of it, its class too."""
    @property
    def __class__(self): note("__class__ asked"); return type(send)
    def __getattr__(self, name): note(f"{name} asked"); return "tasks"
    def __call__(self): note("called")
nosy = Nosy()

class Base:
    @classmethod
    def inherited_class(cls): return cls.__name__
class Letter(Base):
    descriptor = Descriptor()
    class_thing = classmethod(CallableThing())
    static_foreign = staticmethod(makedirs)
    def __init__(self): note("Letter made")
    def __class_getitem__(cls, item): note("class_getitem")
    def method(self): note("method")
    @property
    def prop(self): note("property")
    @staticmethod
    def post(to="nobody"): return f"posted to {to}"
    @classmethod
    def write(cls, text=""): return f"{cls.__name__}: {text}"
    @staticmethod
    def _hidden(): note("_hidden")
    @staticmethod
    async def static_coroutine(x): return x
    @staticmethod
    @mannered
    def static_decorated(x): return x
    @staticmethod
    @forgetful
    def static_undecorated(): note("static_undecorated")
    class Inner:
        @staticmethod
        def deep(): note("deep")
letter = object.__new__(Letter)

class _Hidden:
    @staticmethod
    def post(): note("_Hidden.post")
AliasOfHidden = _Hidden
class FromElsewhere(Other): pass
'''

ELSEWHERE = """
import functools
from note import note
def other_function(): note("other_function")
def forgetful(function):
    def wrapper(*args, **kwargs): return function(*args, **kwargs)
    return wrapper
def mannered(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs): return function(*args, **kwargs)
    return wrapper
class Other:
    @staticmethod
    def static(): note("Other.static")
"""


@pytest.fixture
def modules(tmp_path: Path) -> Iterator[Modules]:
    with importable(tmp_path / "site") as made:
        made.write("tasks.py", TASKS)
        made.write("elsewhere.py", ELSEWHERE)
        yield made


# ---- what runs


@pytest.mark.parametrize(
    ("name", "args", "result"),
    [
        ("tasks.send", ["Ann"], "sent to Ann"),
        ("tasks:send", ["Ann"], "sent to Ann"),
        ("tasks.also_send", [], "sent to nobody"),
        ("tasks.decorated", [1], 3),
        ("tasks.Letter.post", ["Ann"], "posted to Ann"),
        ("tasks.Letter.write", ["Hi"], "Letter: Hi"),
        ("tasks.Letter.static_decorated", [7], 7),
        ("tasks.Letter.inherited_class", [], "Letter"),
        ("tasks.AliasOfHidden.post", [], None),
        ("tasks.Letter.static_coroutine", [7], 7),
    ],
)
def test_public_functions_and_static_and_class_methods_of_a_listed_module_run(
    modules: Modules, name: str, args: list[Any], result: object
) -> None:
    found = modules.find(name)
    assert modules.noted == []
    assert found.call(*args) == result


# ---- what does not


REFUSED = {
    "none of the modules that may run: tasks": "os.system posix.system taskserver.server.TaskServer.from_env "
    "sentinel.run sentinel_package.below.run tasks.sentinel.Thing.run",
    "has no 'sentinel'": "tasks.sentinel.run",
    "os is a module, not a class": "tasks.os.system",
    "is a module": "tasks.os",
    "comes from": "tasks.makedirs tasks.other_function",
    "is not defined in tasks": "tasks.OrderedDict.fromkeys tasks.Other.static",
    "of a listed module": "tasks.FromElsewhere.static tasks.Letter.mro tasks.Letter.missing",
    "begins with an underscore": "tasks._private tasks.Letter._hidden tasks._Hidden.post tasks.Letter.__subclasses__ "
    "tasks.send.__globals__",
    "is a class": "tasks.OrderedDict tasks.Letter.Inner",
    "an object of type": "tasks.system tasks.letter tasks.letter.post tasks.nosy tasks.cached "
    "tasks.Letter.prop tasks.Letter.descriptor",
    "a lambda": "tasks.anonymous",
    "functools.wraps": "tasks.undecorated",
    "is a generator function": "tasks.generator tasks.async_generator",
    "only static and class methods": "tasks.Letter.method",
    "is not a function that is defined in a listed module": "tasks.Letter.class_thing tasks.Letter.static_foreign "
    "tasks.Letter.static_undecorated",
    "module tasks has no 'missing'": "tasks.missing",
}


@pytest.mark.parametrize(("reason", "names"), REFUSED.items(), ids=REFUSED)
def test_nothing_else_runs_and_looking_for_it_runs_no_code(modules: Modules, reason: str, names: str) -> None:
    for name in names.split():
        message = modules.refuse(name)
        assert name in message
        assert reason in message
        assert (name, modules.noted) == (name, [])


ODD_NAMES = [
    *("", ".", "tasks", "tasks.", ".send", "tasks.send.", "tasks.:send", "tasks:Letter:post", "tasks.Letter:post"),
    *(" tasks.send", "tasks.send\n", "tasks.send\0", "tasks.send()", "tasks.send; import sentinel", "../tasks.send"),
    *("TASKS.send", "\ufefftasks.send", "tasks\u200b.send", "tasks.\udce9", "tasks.\U0001f4e8", "tasks.²", "0.0"),
    "t\u0430sks.send",  # a Cyrillic a
    "\uff54\uff41\uff53\uff4b\uff53.send",  # full width, tasks.send once normalised
    *("tasks.\uff3fprivate", "tasks.send'; DROP TABLE jobs_queue; --", "{tasks}.send", "tasks.%s"),
    *["a" * 255, "tasks." * 42 + "run", "a." * 127 + "a", "tasks." + "\U0001f4e8" * 249],
    "".join(map(chr, range(255))),
]


def test_an_odd_name_is_a_bad_task_in_one_line_below_a_listed_package_too(modules: Modules) -> None:
    modules.write("shop/jobs/__init__.py", SENTINEL.replace("note(f", "0 and note(f"))
    for name in ODD_NAMES:
        for odd in (name, f"shop.jobs.{name}"[:255], f"shop.jobs:{name}"[:255]):
            assert len(modules.refuse(odd, "tasks,shop.jobs.*").splitlines()) == 1
    assert modules.noted == []


def test_a_name_longer_than_any_is_a_bad_task_at_once(modules: Modules) -> None:
    """SQLite counts characters up to a NUL only, so a row may have such a name."""
    message = modules.refuse(f"tasks.send\0{'a.' * 2**19}")
    assert message.startswith("'tasks.")
    assert message.endswith("is longer than 255 characters")
    assert len(message) < 200


def test_a_task_of_another_queue_is_refused_with_a_link_to_the_documents(modules: Modules) -> None:
    code = "class Task:\n    def __init__(self, function): pass\nTask.__module__ = 'celery.local'\n"
    modules.write("tasks.py", f"{code}@Task\ndef send(): pass\n")
    words = "a Celery task: remove its decorator, see docs/django.md#coming-from-celery"
    assert modules.refuse("tasks.send") == f"'tasks.send' is {words}"
    with pytest.raises(InvalidTask, match=f"^task is {words}; allowed: a name such as"):
        new_task(sys.modules["tasks"].send)
