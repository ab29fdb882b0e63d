"""What a row may run: the public functions and static and class methods of the listed modules, and nothing else.

The modules under test note whatever of their code a look-up runs; most tests end with `site.noted == []`.
"""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from taskserver.errors import BadTask, InvalidTask, ModuleBroken
from taskserver.model.new_task import new_task
from taskserver.worker.callables import BROKEN_SECONDS, Callables, TaskCallable

TASKS = '''
import functools, os, string, types
import os.path as paths
from collections import OrderedDict
from functools import lru_cache, partial
from os import makedirs, system
from note import note
from elsewhere import Other, forgetful, mannered, other_function

def send(to="nobody"): return f"sent to {to}"
also_send = send
def _private(): note("_private")
anonymous = lambda: note("anonymous")
part = partial(send, "x")
NUMBER = 5

@mannered
def decorated(a, b=2): return a + b
@forgetful
def undecorated(): note("undecorated")

def own_mannered(function):
    @functools.wraps(function)
    def inside(*args): return function(*args)
    return inside
@own_mannered
def also_decorated(x): return x * 2

@lru_cache
def cached(): note("cached")
@functools.wraps(os.getcwd)
def says_it_is_os(): note("says_it_is_os")
def awaits(function):
    @functools.wraps(function)
    async def inside(x): return 10 * await function(x)
    return inside
@awaits
async def decorated_coroutine(x): return x
@types.coroutine
def old_coroutine(): yield note("old_coroutine")
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

class OddStatic(staticmethod): pass

class Base:
    @staticmethod
    def inherited_static(): return "Base static"
    @classmethod
    def inherited_class(cls): return cls.__name__
class Letter(Base):
    descriptor = Descriptor()
    class_thing = classmethod(CallableThing())
    static_foreign = staticmethod(makedirs)
    odd_static = OddStatic(send)
    def __init__(self): note("Letter made")
    def __class_getitem__(cls, item): note("class_getitem")
    def method(self): note("method")
    @property
    def prop(self): note("property")
    @staticmethod
    def post(to="nobody"): return f"posted to {to}"
    @classmethod
    def write(cls, text=""): return f"{cls.__name__}: {text}"
    also_write = write
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

SENTINEL = """
from note import note
note(f"{__name__} was imported")
def run(): note("sentinel ran")
class Thing:
    @staticmethod
    def run(): note("sentinel ran")
"""


class Site:
    """A folder of modules, importable, and a record of what their code noted."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.noted: list[str] = []

    def write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        importlib.invalidate_caches()

    def note(self, text: str) -> None:
        self.noted.append(text)

    def find(self, name: str, modules: str = "tasks") -> TaskCallable:
        return Callables(tuple(modules.split(","))).find(name)

    def run(self, name: str, *args: Any, modules: str = "tasks", **kwargs: Any) -> Any:
        return self.find(name, modules).call(*args, **kwargs)

    def refuse(self, name: str, modules: str = "tasks") -> str:
        """The words in which it refuses a name; that it imported nothing but what was listed."""
        before = set(sys.modules)
        with pytest.raises(BadTask) as caught:
            self.find(name, modules)
        for module in set(sys.modules) - before:
            assert not module.startswith("sentinel"), f"{module} was imported"
        return str(caught.value)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    site = Site(tmp_path / "site")
    modules = dict(sys.modules)
    monkeypatch.syspath_prepend(str(site.folder))
    note = ModuleType("note")
    vars(note)["note"] = site.note
    sys.modules["note"] = note
    site.write("tasks.py", TASKS)
    site.write("elsewhere.py", ELSEWHERE)
    for name in ("sentinel.py", "sentinel_package/__init__.py", "sentinel_package/below.py"):
        site.write(name, SENTINEL)
    yield site
    for name in set(sys.modules) - set(modules):
        del sys.modules[name]
    sys.modules.update(modules)


@pytest.fixture
def shop(site: Site) -> Site:
    """Packages: shop is not listed, shop.jobs.* is."""
    site.write("shop/__init__.py", "def of_shop(): pass\n")
    site.write("shop/other.py", SENTINEL)
    site.write("shop/jobsite.py", SENTINEL)
    site.write("shop/jobs/__init__.py", "import os, string\ndef of_jobs(): return 'of_jobs'\n")
    site.write("shop/jobs/__main__.py", SENTINEL)
    site.write("shop/jobs/_internal.py", SENTINEL)
    site.write("shop/jobs/_hidden/__init__.py", SENTINEL)
    site.write("shop/jobs/_hidden/mail.py", SENTINEL)
    site.write("shop/jobs/deep/__init__.py", "")
    site.write("shop/jobs/deep/er.py", "def run(): return 'deeper'\n")
    site.write(
        "shop/jobs/mail.py",
        """
import os
def send(): return "mail.send"
class Letter:
    @staticmethod
    def post(): return "mail.post"
    @classmethod
    def write(cls): return f"mail.write of {cls.__name__}"
""",
    )
    return site


# ---- what runs


@pytest.mark.parametrize(
    ("name", "args", "result"),
    [
        ("tasks.send", ["Ann"], "sent to Ann"),
        ("tasks:send", ["Ann"], "sent to Ann"),
        ("tasks.also_send", [], "sent to nobody"),
        ("tasks.decorated", [1], 3),
        ("tasks.also_decorated", [4], 8),
        ("tasks.Letter.post", ["Ann"], "posted to Ann"),
        ("tasks.Letter.write", ["Hi"], "Letter: Hi"),
        ("tasks:Letter.write", ["Hi"], "Letter: Hi"),
        ("tasks.Letter.also_write", ["Hi"], "Letter: Hi"),
        ("tasks.Letter.static_decorated", [7], 7),
        ("tasks.Letter.inherited_static", [], "Base static"),
        ("tasks.Letter.inherited_class", [], "Letter"),
        ("tasks.AliasOfHidden.post", [], None),
        ("tasks.decorated_coroutine", [2], 20),
        ("tasks.Letter.static_coroutine", [7], 7),
    ],
)
def test_public_functions_and_static_and_class_methods_of_a_listed_module_run(
    site: Site, name: str, args: list[Any], result: object
) -> None:
    found = site.find(name)
    assert site.noted == []
    assert found.call(*args) == result


def test_it_is_known_beforehand_whether_finding_a_name_runs_the_code_of_its_module(site: Site) -> None:
    callables = Callables(("tasks", "shop.*"))
    sys.modules.pop("tasks", None)
    assert callables.would_import("tasks.send")
    assert callables.would_import("tasks.missing")
    assert callables.would_import("shop.mail.send")
    assert not callables.would_import("os.remove")
    assert not callables.would_import("no name at all")
    callables.find("tasks.send")
    assert not callables.would_import("tasks.send")
    assert not callables.would_import("tasks.missing")


def test_a_name_in_letters_of_any_script_runs(site: Site) -> None:
    site.write("añadir.py", "def größe(): return 'ja'\nclass Ωmega:\n    @staticmethod\n    def 送信(): return '済'\n")
    assert site.run("añadir.größe", modules="añadir") == "ja"
    assert site.run("añadir.Ωmega.送信", modules="añadir") == "済"


def test_the_outermost_function_says_which_arguments_are_taken(site: Site) -> None:
    site.find("tasks.decorated").parameters.check([1, 2, 3, 4], {})  # its wrapper takes anything
    with pytest.raises(TypeError):
        site.find("tasks.send").parameters.check([1, 2], {})


def test_arguments_are_checked_anew_when_they_look_different(site: Site) -> None:
    check = site.find("tasks.send").parameters.check
    for _ in range(2):
        check(["a"], {})
        check(["b"], {})
        with pytest.raises(TypeError):
            check([], {"colour": 1})


# ---- what does not


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("os.system", "none of the modules that may run: tasks"),
        ("posix.system", "none of the modules"),
        ("taskserver.server.TaskServer.from_env", "none of the modules"),
        ("sentinel.run", "none of the modules"),
        ("sentinel_package.below.run", "none of the modules"),
        ("tasks.sentinel.run", "has no 'sentinel'"),
        ("tasks.sentinel.Thing.run", "none of the modules"),
        ("tasks.os.system", "os is a module, not a class"),
        ("tasks.os", "is a module"),
        ("tasks.makedirs", "comes from os"),
        ("tasks.system", "an object of type builtin_function_or_method"),
        ("tasks.other_function", "comes from elsewhere"),
        ("tasks.partial", "is a class"),
        ("tasks.OrderedDict.fromkeys", "class OrderedDict is not defined in tasks"),
        ("tasks.Other.static", "class Other is not defined in tasks"),
        ("tasks.FromElsewhere.static", "has no method 'static' of a listed module"),
        ("tasks._private", "'_private' begins with an underscore"),
        ("tasks.Letter._hidden", "begins with an underscore"),
        ("tasks._Hidden.post", "begins with an underscore"),
        ("tasks.Letter.__subclasses__", "begins with an underscore"),
        ("tasks.send.__globals__", "begins with an underscore"),
        ("tasks.Letter.mro", "has no method 'mro'"),
        ("tasks.letter", "an object of type Letter"),
        ("tasks.letter.post", "letter is an object of type Letter, not a class"),
        ("tasks.part", "an object of type partial"),
        ("tasks.NUMBER", "an object of type int"),
        ("tasks.anonymous", "a lambda"),
        ("tasks.undecorated", "functools.wraps"),
        ("tasks.says_it_is_os", "comes from posix"),
        ("tasks.cached", "_lru_cache_wrapper"),
        ("tasks.generator", "is a generator function"),
        ("tasks.async_generator", "is a generator function"),
        ("tasks.old_coroutine", "is a generator function"),
        ("tasks.Letter.method", "only static and class methods"),
        ("tasks.Letter.prop", "an object of type property inside a class"),
        ("tasks.Letter.descriptor", "an object of type Descriptor inside a class"),
        ("tasks.Letter.class_thing", "is not a function that is defined in a listed module"),
        ("tasks.Letter.static_foreign", "is not a function that is defined in a listed module"),
        ("tasks.Letter.odd_static", "an object of type OddStatic inside a class"),
        ("tasks.Letter.static_undecorated", ""),
        ("tasks.Letter.Inner", "is a class inside a class"),
        ("tasks.Letter.missing", "has no method 'missing'"),
        ("tasks.missing", "module tasks has no 'missing'"),
    ],
)
def test_nothing_else_runs_and_looking_for_it_runs_no_code(site: Site, name: str, reason: str) -> None:
    message = site.refuse(name)
    assert name in message
    assert reason in message
    assert site.noted == []


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


@pytest.mark.parametrize("name", ODD_NAMES)
def test_an_odd_name_is_a_bad_task_in_one_line_below_a_listed_package_too(shop: Site, name: str) -> None:
    for odd in (name, f"shop.jobs.{name}"[:255], f"shop.jobs:{name}"[:255]):
        assert len(shop.refuse(odd, "tasks,shop.jobs.*").splitlines()) == 1
    assert shop.noted == []


@pytest.mark.parametrize("filling", [" ", ".", "\t\n", "_", "->", "/ ", "a.", "(", ";"])
def test_a_name_longer_than_any_is_a_bad_task_at_once(site: Site, filling: str) -> None:
    """SQLite counts characters up to a NUL alone, so a row may have such a name."""
    began_at = time.monotonic()
    for name in (f"tasks.send\0{filling * 2**19}.", f"tasks.{filling * 2**19}send"):
        message = site.refuse(name)
        assert message.startswith("'tasks.")
        assert message.endswith("is longer than 255 characters")
        assert len(message) < 200
    assert time.monotonic() - began_at < 10


OTHERS = {"celery.local": "Celery", "huey.api": "huey", "dramatiq.actor": "dramatiq", "invoke.tasks": "invoke"}


@pytest.mark.parametrize("module", OTHERS)
def test_a_task_of_another_queue_is_called_that_with_the_way_here(site: Site, module: str) -> None:
    source = (
        f"class Task:\n    def __init__(self, function): pass\nTask.__module__ = {module!r}\n@Task\ndef send(): pass\n"
    )
    site.write("tasks.py", source)
    words = f"a {OTHERS[module]} task: remove its decorator, see docs/django.md#coming-from-celery"
    assert site.refuse("tasks.send") == f"'tasks.send' is {words}"
    with pytest.raises(InvalidTask, match=f"^task is {words}; allowed: a name as"):
        new_task(sys.modules["tasks"].send)


PARTS = (
    "tasks os system sentinel sentinel_package below run Thing send Letter post write Inner deep letter "
    "__class__ __subclasses__ __init__ _private __globals__ __builtins__ eval mro thing nosy elsewhere Other static "
    "shop jobs mail of_jobs _internal __main__ path join"
)
LEGAL: dict[str, set[tuple[str, ...]]] = {
    "tasks": {("send",), ("Letter", "post"), ("Letter", "write")},
    "shop.jobs": {("of_jobs",)},
    "shop.jobs.mail": {("send",), ("Letter", "post"), ("Letter", "write")},
}
LEGAL_NAMES = {
    module + separator + ".".join(path) for module, paths in LEGAL.items() for path in paths for separator in ".:"
}


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.one_of(
        st.text(max_size=255),
        st.lists(st.tuples(st.sampled_from(["", *PARTS.split()]), st.sampled_from("..:")), max_size=7).map(
            lambda parts: "".join(part + separator for part, separator in parts)[:-1]
        ),
    )
)
def test_of_random_names_the_legal_ones_run_and_the_others_are_bad_tasks(shop: Site, name: str) -> None:
    callables = Callables(("tasks", "shop.jobs.*"))
    try:
        callables.find(name)
    except BadTask:
        assert name not in LEGAL_NAMES
    else:
        assert name in LEGAL_NAMES
    assert [module for module in sys.modules if module.startswith("sentinel")] == []
    assert shop.noted == []


# ---- look-ups run nothing of what they look at


def test_an_object_that_says_it_is_a_function_is_asked_nothing(site: Site) -> None:
    assert "an object of type Nosy" in site.refuse("tasks.nosy")
    assert site.noted == []


def test_a_modules_getattr_is_not_run(site: Site) -> None:
    site.write(
        "tasks.py",
        "from note import note\ndef __getattr__(name): note(name); return lambda: 1\n"
        "def __dir__(): note('__dir__')\ndef send(): return 'sent'\n"
        "class Letter:\n    @staticmethod\n    def post(): return 'posted'\n",
    )
    assert site.run("tasks.send") == "sent"
    assert site.run("tasks.Letter.post") == "posted"
    for name in ("tasks.missing", "tasks.missing.too", "tasks.Letter.missing", "tasks:missing", "tasks.os.system"):
        site.refuse(name)
    assert site.noted == []


def test_a_modules_getattr_is_not_run_below_a_listed_package(shop: Site) -> None:
    shop.write(
        "shop/jobs/lazy.py",
        "from note import note\ndef __getattr__(name): note(name); return ['/']\n"
        "def send(): return 'sent'\nclass Letter:\n    @staticmethod\n    def post(): return 'sent'\n",
    )
    for name in ("shop.jobs.lazy.Letter.post", "shop.jobs.lazy.send", "shop.jobs.lazy:Letter.post"):
        assert shop.run(name, modules="shop.jobs.*") == "sent"
    shop.refuse("shop.jobs.lazy.missing.too", "shop.jobs.*")
    assert shop.noted == []


METACLASS = """
from note import note
class Meta(type):
    __dict__ = property(lambda cls: note("__dict__") or {"post": print})
    __mro__ = property(lambda cls: note("__mro__") or (cls,))
    __name__ = property(lambda cls: note("__name__") or "x")
    __module__ = property(lambda cls: note("__module__") or "tasks")
    __class__ = property(lambda cls: note("__class__") or type)
    __hash__ = None
    def __getattribute__(cls, name): note(name); return type.__getattribute__(cls, name)
    def __getattr__(cls, name): note(name); return print
    def __instancecheck__(cls, other): note("__instancecheck__"); return True
    def __subclasscheck__(cls, other): note("__subclasscheck__"); return True
    def __bool__(cls): note("__bool__"); return False
    def __eq__(cls, other): note("__eq__"); return True
    def __repr__(cls): note("__repr__"); return "x"
    def __call__(cls): note("__call__")
class Letter(metaclass=Meta):
    NUMBER = 5
    def method(self): pass
    @staticmethod
    def post(): return "posted"
    @classmethod
    def write(cls): return "written"
class Child(Letter): pass
instance = object.__new__(Child)
"""
FOUND = ("tasks.Letter.post", "tasks.Letter.write", "tasks.Child.post", "tasks.Child.write", "tasks:Child.post")
NOT_FOUND = (
    *("tasks.Letter", "tasks.Letter.missing", "tasks.Child.missing", "tasks.Letter.NUMBER", "tasks.Letter.method"),
    *("tasks.instance", "tasks.instance.post"),
)


def test_a_metaclass_has_no_say_whether_a_method_is_found(site: Site) -> None:
    site.write("tasks.py", METACLASS)
    importlib.import_module("tasks")
    site.noted.clear()
    for name in (*FOUND, *NOT_FOUND):
        (site.find if name in FOUND else site.refuse)(name)
        assert (name, site.noted) == (name, [])


def test_a_module_that_put_another_module_in_its_place_lends_it_no_right_to_run(site: Site) -> None:
    site.write("tasks.py", "import os, sys\nsys.modules[__name__] = os\n")
    assert "comes from os" in site.refuse("tasks.makedirs")
    site.refuse("tasks.system")
    site.refuse("tasks.PathLike.register")


def test_a_module_that_put_an_object_in_its_place_is_refused_unasked(site: Site) -> None:
    site.write(
        "tasks.py",
        """
import sys
from note import note
class Fake:
    __spec__ = None
    __class__ = type(sys)
    @property
    def send(self): note("property")
    def __getattr__(self, name): note(name); return print
sys.modules[__name__] = Fake()
""",
    )
    assert "something else in the place of its module" in site.refuse("tasks.send")
    assert site.noted == []


# ---- __all__


@pytest.mark.parametrize("exported", ["['send', 'Letter']", "('send', 'Letter')", "['Letter', 'send', 'missing']"])
def test_where_a_module_has_all_only_what_it_names_runs(site: Site, exported: str) -> None:
    site.write("tasks.py", f"{TASKS}\n__all__ = {exported}\n")
    assert site.run("tasks.send") == "sent to nobody"
    assert site.run("tasks.Letter.post") == "posted to nobody"
    for name in ("tasks.also_send", "tasks.decorated", "tasks.Base.inherited_static"):
        assert "not in __all__ of tasks" in site.refuse(name)


def test_a_private_function_stays_private_though_all_names_it(site: Site) -> None:
    site.write("tasks.py", "__all__ = ['_private', 'missing']\ndef _private(): pass\n")
    assert "underscore" in site.refuse("tasks._private")
    assert "has no 'missing'" in site.refuse("tasks.missing")


@pytest.mark.parametrize(
    "exported", ["[]", "()", "'send'", "5", "True", "{'send': 1}", "[b'send']", "[None]", "[['send']]", "nosy"]
)
def test_an_odd_all_exports_nothing(site: Site, exported: str) -> None:
    site.write("tasks.py", f"{TASKS}\n__all__ = {exported}\n")
    assert "__all__" in site.refuse("tasks.send")
    assert site.noted == []


# ---- inheritance across modules


def test_a_method_inherited_from_another_listed_module_runs_on_the_named_class(shop: Site) -> None:
    shop.write("tasks.py", "from shop.jobs.mail import Letter\nclass Bill(Letter): pass\n")
    assert shop.run("tasks.Bill.post", modules="tasks,shop.jobs.*") == "mail.post"
    assert shop.run("tasks.Bill.write", modules="tasks,shop.jobs.mail") == "mail.write of Bill"
    assert "of a listed module" in shop.refuse("tasks.Bill.post")


def test_an_unlisted_class_that_overrides_a_listed_method_hides_it(site: Site) -> None:
    site.write("mixins.py", "class Mixin:\n    @staticmethod\n    def post(): return 'of the mixin'\n")
    site.write(
        "tasks.py",
        "from mixins import Mixin\nclass Base:\n    @staticmethod\n    def post(): return 'of the base'\n"
        "class Letter(Mixin, Base): pass\n",
    )
    assert "of a listed module" in site.refuse("tasks.Letter.post")
    assert site.run("tasks.Base.post") == "of the base"


def test_a_function_of_another_listed_module_runs_under_its_own_modules_name_alone(shop: Site) -> None:
    shop.write("tasks.py", "from shop.jobs.mail import send\n")
    said = shop.refuse("tasks.send", "tasks,shop.jobs.*")
    assert "comes from shop.jobs.mail" in said
    assert said.endswith("; name it shop.jobs.mail.send")
    assert shop.run("shop.jobs.mail.send", modules="tasks,shop.jobs.*") == "mail.send"
    shop.write("tasks.py", "from shop.jobs.mail import send\nfrom shop import jobs\njobs.send = send\n")
    assert shop.refuse("tasks.send").endswith("; define a function there that calls it")


@pytest.mark.parametrize(
    ("name", "mend"),
    [
        ("shop.jobs.send", "; name it shop.jobs.mail.send, and list shop.jobs.mail in TASKSERVER_MODULES, too"),
        ("shop.jobs.mail.send", ": mail is a module, not a class; list shop.jobs.mail in TASKSERVER_MODULES, too"),
        ("shop.jobs.made", "; define a function there that calls it"),
    ],
)
def test_a_package_that_imports_its_functions_is_told_to_list_their_module(shop: Site, name: str, mend: str) -> None:
    made = "def make():\n    def made(): pass\n    return made\nmade = make()\n"
    shop.write("shop/jobs/mail.py", f"def send(): pass\n{made}")
    shop.write("shop/jobs/__init__.py", "from .mail import made, send\n")
    assert shop.refuse(name, "shop.jobs").endswith(mend)


# ---- packages


@pytest.mark.parametrize(
    ("name", "result"),
    [
        ("shop.jobs.of_jobs", "of_jobs"),
        ("shop.jobs:of_jobs", "of_jobs"),
        ("shop.jobs.mail.send", "mail.send"),
        ("shop.jobs.mail:send", "mail.send"),
        ("shop.jobs.mail.Letter.post", "mail.post"),
        ("shop.jobs.mail:Letter.write", "mail.write of Letter"),
        ("shop.jobs.deep.er.run", "deeper"),
        ("shop.jobs.deep.er:run", "deeper"),
    ],
)
def test_a_star_lists_a_package_with_all_below_it(shop: Site, name: str, result: str) -> None:
    assert shop.run(name, modules="shop.jobs.*") == result


@pytest.mark.parametrize(
    "name",
    [
        "shop.of_shop",
        "shop.jobsite.run",
        "shop.jobs.__main__.run",
        "shop.jobs._internal.run",
        "shop.jobs._hidden.mail.run",
        "shop.jobs.mail.os.system",
        "shop.jobs.mail",
        "shop.jobs",
        "shop.jobs.missing.run",
        "shop.jobs.mail.Letter.Inner.post",
        "shop.jobs.__init__.of_jobs",
        "sentinel_package.below.run",
        "shop.jobs.sentinel.run",
    ],
)
def test_of_a_listed_package_private_parts_and_neighbours_are_not_even_imported(shop: Site, name: str) -> None:
    shop.refuse(name, "shop.jobs.*")
    assert shop.noted == []


def test_a_module_that_is_listed_alone_opens_no_package(shop: Site) -> None:
    assert shop.run("shop.jobs.of_jobs", modules="shop.jobs") == "of_jobs"
    shop.refuse("shop.jobs.mail.send", "shop.jobs")
    assert "shop.jobs.mail" not in sys.modules
    shop.refuse("shop.jobs.mail.Letter.post", "shop.jobs")


def test_a_private_module_runs_where_it_is_listed_by_name(shop: Site) -> None:
    shop.write("shop/jobs/_internal.py", "def run(): return 'internal'\n")
    assert shop.run("shop.jobs._internal.run", modules="shop.jobs._internal") == "internal"


@pytest.mark.parametrize("modules", ["shop.jobs.*,shop.jobs._internals.*", "shop.jobs._internals.*,shop.jobs.*"])
def test_a_private_package_runs_where_it_is_listed_by_name_whatever_else_is_listed(shop: Site, modules: str) -> None:
    shop.write("shop/jobs/_internals/__init__.py", "")
    shop.write("shop/jobs/_internals/mail.py", "def run(): return 'internal'\n")
    assert shop.run("shop.jobs._internals.mail.run", modules=modules) == "internal"
    shop.refuse("shop.jobs._hidden.mail.run", modules)
    assert shop.noted == []


def test_a_package_without_an_init_file_works(site: Site) -> None:
    site.write("namespace_site/jobs/mail.py", "def send(): return 'namespace_site'\n")
    assert site.run("namespace_site.jobs.mail.send", modules="namespace_site.jobs.*") == "namespace_site"
    site.refuse("namespace_site.jobs.send", "namespace_site.jobs.*")


def test_an_alias_in_the_table_of_modules_opens_no_other_module(shop: Site) -> None:
    shop.write("shop/jobs/__init__.py", "import os, sys\nsys.modules['shop.jobs.moved'] = os\n")
    shop.refuse("shop.jobs.moved.makedirs", "shop.jobs.*")
    shop.refuse("shop.jobs.moved.system", "shop.jobs.*")
    shop.refuse("shop.jobs.moved:PathLike.register", "shop.jobs.*")


# ---- modules that cannot be imported

FAILURES = {
    "raises": "raise ValueError('no such shop')",
    "exits": "raise SystemExit(3)",
    "lacks a package": "import a_package_that_nobody_installed",
    "lacks a name": "from os import no_such_name",
    "runs out of stack": "def f(): f()\nf()",
    "raises what exits when shown": "class Odd(Exception):\n    def __str__(self): raise SystemExit\nraise Odd",
}


@pytest.mark.parametrize("failure", FAILURES)
def test_a_module_that_fails_is_broken_and_tried_once(site: Site, failure: str) -> None:
    site.write("tasks.py", f"from note import note\nnote('tried')\n{FAILURES[failure]}\n")
    callables = Callables(("tasks",))
    for name in ("tasks.send", "tasks.send", "tasks.Letter.post", "tasks:send"):
        with pytest.raises(ModuleBroken, match="module tasks cannot be imported: "):
            callables.find(name)
    assert site.noted == ["tried"]


def test_a_broken_module_is_tried_again_a_while_later(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.write("tasks.py", "from note import note\nnote('tried')\ndef send(")
    callables = Callables(("tasks",))
    for _ in range(2):
        with pytest.raises(ModuleBroken):
            callables.find("tasks.send")
    assert not callables.would_import("tasks.send")
    site.write("tasks.py", "def send(): pass")
    passed = time.monotonic() + BROKEN_SECONDS + 1
    monkeypatch.setattr(time, "monotonic", lambda: passed)
    assert callables.would_import("tasks.send")
    callables.find("tasks.send")


def test_an_unlisted_name_is_a_bad_row_though_the_listed_module_is_broken(site: Site) -> None:
    site.write("tasks.py", "raise ValueError")
    site.refuse("os.system")
    site.refuse("tasks._private")


@pytest.mark.parametrize("broken", ["mail", "__init__"])
@pytest.mark.parametrize("name", ["mail.send", "mail:send", "mail.Letter.post"])
def test_a_broken_module_or_package_breaks_what_is_below_it_and_is_tried_once(
    shop: Site, name: str, broken: str
) -> None:
    shop.write(f"shop/jobs/{broken}.py", "from note import note\nnote('tried')\nraise SystemExit(3)\n")
    callables = Callables(("shop.jobs.*",))
    for _ in range(3):
        with pytest.raises(ModuleBroken, match=r"module shop\.jobs\S* cannot be imported: "):
            callables.find(f"shop.jobs.{name}")
    assert shop.noted == ["tried"]


def test_a_package_that_is_not_there_is_broken_for_every_form_of_a_name(site: Site) -> None:
    for name in ("nowhere.jobs.mail.send", "nowhere.jobs.mail:send", "nowhere.jobs.mail.Letter.post"):
        with pytest.raises(ModuleBroken, match="nowhere"):
            site.find(name, "nowhere.jobs.*")


# ---- functions whose arguments cannot be told


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("class Letter:\n    @classmethod\n    def write(): pass\n", "tasks.Letter.write"),
        ("class Letter:\n    @classmethod\n    def write(*, text): pass\n", "tasks.Letter.write"),
        ("def send(): pass\nsend.__signature__ = 5\n", "tasks.send"),
        ("def send(): pass\nsend.__signature__ = lambda: 1 / 0\n", "tasks.send"),
    ],
)
def test_a_function_whose_arguments_cannot_be_told_is_a_bad_task(site: Site, text: str, name: str) -> None:
    site.write("tasks.py", text)
    assert name in site.refuse(name)


def test_annotations_that_name_what_is_not_there_do_no_harm(site: Site) -> None:
    site.write("tasks.py", "from __future__ import annotations\ndef send(to: Missing = 'x') -> Absent: return to\n")
    found = site.find("tasks.send")
    found.parameters.check(["y"], {})
    assert found.call("y") == "y"
