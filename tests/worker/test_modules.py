"""Modules of callables: packages, __all__, inheritance across modules, odd objects, and imports that fail."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from taskserver.errors import ModuleBroken
from taskserver.worker.callables import BROKEN_SECONDS, Callables
from tests.support.modules import SENTINEL, Modules, importable

TASKS = """
def send(to="nobody"): return f"sent to {to}"
also_send = send
class Base:
    @staticmethod
    def inherited(): return "inherited"
class Letter(Base):
    @staticmethod
    def post(to="nobody"): return f"posted to {to}"
class Nosy:
    @property
    def __class__(self): from note import note; note("__class__ asked"); return list
nosy = Nosy()
"""
MAIL = """
import os
def send(): return "mail.send"
class Letter:
    @staticmethod
    def post(): return "mail.post"
    @classmethod
    def write(cls): return f"mail.write of {cls.__name__}"
"""
FILES = {
    "tasks.py": TASKS,
    "shop/__init__.py": "def of_shop(): pass\n",
    "shop/other.py": SENTINEL,
    "shop/jobsite.py": SENTINEL,
    "shop/jobs/__init__.py": "import os, string\ndef of_jobs(): return 'of_jobs'\n",
    "shop/jobs/__main__.py": SENTINEL,
    "shop/jobs/_internal.py": SENTINEL,
    "shop/jobs/_hidden/__init__.py": SENTINEL,
    "shop/jobs/_hidden/mail.py": SENTINEL,
    "shop/jobs/deep/__init__.py": "",
    "shop/jobs/deep/er.py": "def run(): return 'deeper'\n",
    "shop/jobs/mail.py": MAIL,
}
"""shop is not listed, shop.jobs.* is."""


@pytest.fixture
def modules(tmp_path: Path) -> Iterator[Modules]:
    with importable(tmp_path / "site") as made:
        for name, text in FILES.items():
            made.write(name, text)
        yield made


# ---- a look-up runs nothing of what it looks at


@pytest.mark.parametrize(("module", "listed"), [("tasks", "tasks"), ("shop.jobs.lazy", "shop.jobs.*")])
def test_a_modules_getattr_is_not_run(modules: Modules, module: str, listed: str) -> None:
    modules.write(
        f"{module.replace('.', '/')}.py",
        "from note import note\ndef __getattr__(name): note(name); return ['/']\n"
        "def __dir__(): note('__dir__')\ndef send(): return 'sent'\n"
        "class Letter:\n    @staticmethod\n    def post(): return 'posted'\n",
    )
    assert modules.run(f"{module}.send", listed=listed) == "sent"
    for separator in ".:":
        assert modules.run(f"{module}{separator}Letter.post", listed=listed) == "posted"
    for name in ("missing", "missing.too", "Letter.missing", "os.system"):
        modules.refuse(f"{module}.{name}", listed)
    assert modules.noted == []


def test_a_module_that_put_another_module_in_its_place_lends_it_no_right_to_run(modules: Modules) -> None:
    modules.write("tasks.py", "import os, sys\nsys.modules[__name__] = os\n")
    assert "comes from os" in modules.refuse("tasks.makedirs")
    modules.refuse("tasks.system")
    modules.refuse("tasks.PathLike.register")
    modules.write("shop/jobs/__init__.py", "import os, sys\nsys.modules['shop.jobs.moved'] = os\n")
    for name in ("shop.jobs.moved.makedirs", "shop.jobs.moved.system", "shop.jobs.moved:PathLike.register"):
        modules.refuse(name, "shop.jobs.*")


# ---- __all__


@pytest.mark.parametrize("exported", ["['send', 'Letter']", "('send', 'Letter')", "['Letter', 'send', 'missing']"])
def test_where_a_module_has_all_only_what_it_names_runs(modules: Modules, exported: str) -> None:
    modules.write("tasks.py", f"{TASKS}\n__all__ = {exported}\n")
    assert modules.run("tasks.send") == "sent to nobody"
    assert modules.run("tasks.Letter.post") == "posted to nobody"
    for name in ("tasks.also_send", "tasks.Base.inherited"):
        assert "not in __all__ of tasks" in modules.refuse(name)


@pytest.mark.parametrize(
    "exported", ["[]", "()", "'send'", "5", "{'send': 1}", "[b'send']", "[None]", "[['send']]", "nosy"]
)
def test_an_odd_all_exports_nothing(modules: Modules, exported: str) -> None:
    modules.write("tasks.py", f"{TASKS}\n__all__ = {exported}\n")
    assert "__all__" in modules.refuse("tasks.send")
    assert modules.noted == []


# ---- inheritance and imports across modules


def test_a_method_inherited_from_another_listed_module_runs_on_the_named_class(modules: Modules) -> None:
    modules.write("tasks.py", "from shop.jobs.mail import Letter\nclass Bill(Letter): pass\n")
    assert modules.run("tasks.Bill.post", listed="tasks,shop.jobs.*") == "mail.post"
    assert modules.run("tasks.Bill.write", listed="tasks,shop.jobs.mail") == "mail.write of Bill"
    assert "of a listed module" in modules.refuse("tasks.Bill.post")


def test_an_unlisted_class_that_overrides_a_listed_method_hides_it(modules: Modules) -> None:
    modules.write("mixins.py", "class Mixin:\n    @staticmethod\n    def post(): return 'of the mixin'\n")
    modules.write(
        "tasks.py",
        "from mixins import Mixin\nclass Base:\n    @staticmethod\n    def post(): return 'of the base'\n"
        "class Letter(Mixin, Base): pass\n",
    )
    assert "of a listed module" in modules.refuse("tasks.Letter.post")
    assert modules.run("tasks.Base.post") == "of the base"


def test_a_function_of_another_listed_module_runs_only_under_its_own_module_s_name(modules: Modules) -> None:
    modules.write("tasks.py", "from shop.jobs.mail import send\n")
    refusal = modules.refuse("tasks.send", "tasks,shop.jobs.*")
    assert "comes from shop.jobs.mail" in refusal
    assert refusal.endswith("; name it shop.jobs.mail.send")
    assert modules.run("shop.jobs.mail.send", listed="tasks,shop.jobs.*") == "mail.send"


# ---- packages


BELOW = {
    "shop.jobs:of_jobs": "of_jobs",
    "shop.jobs.mail:send": "mail.send",
    "shop.jobs.mail:Letter.write": "mail.write of Letter",
    "shop.jobs.deep.er:run": "deeper",
}


def test_a_star_lists_a_package_with_all_below_it(modules: Modules) -> None:
    for name, result in BELOW.items():
        for spelling in (name, name.replace(":", ".")):
            assert modules.run(spelling, listed="shop.jobs.*") == result


PRIVATE = (
    "shop.of_shop shop.jobsite.run shop.jobs.__main__.run shop.jobs._internal.run shop.jobs._hidden.mail.run "
    "shop.jobs.mail.os.system shop.jobs.mail shop.jobs shop.jobs.missing.run shop.jobs.mail.Letter.Inner.post "
    "shop.jobs.__init__.of_jobs sentinel_package.below.run shop.jobs.sentinel.run"
)


def test_of_a_listed_package_private_parts_and_neighbours_are_not_even_imported(modules: Modules) -> None:
    for name in PRIVATE.split():
        modules.refuse(name, "shop.jobs.*")
        assert (name, modules.noted) == (name, [])


def test_a_package_that_is_listed_without_a_star_opens_nothing_below_it(modules: Modules) -> None:
    assert modules.run("shop.jobs.of_jobs", listed="shop.jobs") == "of_jobs"
    modules.refuse("shop.jobs.mail.send", "shop.jobs")
    assert "shop.jobs.mail" not in sys.modules
    modules.refuse("shop.jobs.mail.Letter.post", "shop.jobs")


@pytest.mark.parametrize(
    "listed", ["shop.jobs._own.mail", "shop.jobs.*,shop.jobs._own.*", "shop.jobs._own.*,shop.jobs.*"]
)
def test_what_is_private_runs_if_it_is_listed_by_name(modules: Modules, listed: str) -> None:
    modules.write("shop/jobs/_own/__init__.py", "")
    modules.write("shop/jobs/_own/mail.py", "def run(): return 'internal'\n")
    assert modules.run("shop.jobs._own.mail.run", listed=listed) == "internal"
    modules.refuse("shop.jobs._hidden.mail.run", listed)
    assert modules.noted == []


def test_a_package_without_an_init_file_works(modules: Modules) -> None:
    modules.write("namespace_site/jobs/mail.py", "def send(): return 'namespace_site'\n")
    assert modules.run("namespace_site.jobs.mail.send", listed="namespace_site.jobs.*") == "namespace_site"
    modules.refuse("namespace_site.jobs.send", "namespace_site.jobs.*")


# ---- modules that cannot be imported


def test_it_is_known_beforehand_whether_finding_a_name_runs_the_code_of_its_module(modules: Modules) -> None:
    callables = Callables(("tasks", "shop.*"))
    assert [
        name for name in ("tasks.send", "tasks.missing", "shop.mail.send") if not callables.would_import(name)
    ] == []
    assert not callables.would_import("os.remove")
    assert not callables.would_import("no name at all")
    callables.find("tasks.send")
    assert not callables.would_import("tasks.send")
    assert not callables.would_import("tasks.missing")


FAILURES = {
    "raises": "raise ValueError('no such shop')",
    "exits": "raise SystemExit(3)",
    "lacks a package": "import a_package_that_nobody_installed",
    "lacks a name": "from os import no_such_name",
    "runs out of stack": "def f(): f()\nf()",
    "raises what exits when shown": "class Odd(Exception):\n    def __str__(self): raise SystemExit\nraise Odd",
}


@pytest.mark.parametrize("failure", FAILURES)
def test_a_module_that_fails_is_broken_and_tried_once(modules: Modules, failure: str) -> None:
    modules.write("tasks.py", f"from note import note\nnote('tried')\n{FAILURES[failure]}\n")
    callables = Callables(("tasks",))
    for name in ("tasks.send", "tasks.send", "tasks.Letter.post", "tasks:send"):
        with pytest.raises(ModuleBroken, match="module tasks cannot be imported: "):
            callables.find(name)
    assert modules.noted == ["tried"]


def test_a_broken_module_is_tried_again_a_while_later(modules: Modules, monkeypatch: pytest.MonkeyPatch) -> None:
    modules.write("tasks.py", "from note import note\nnote('tried')\ndef send(")
    callables = Callables(("tasks",))
    for _ in range(2):
        with pytest.raises(ModuleBroken):
            callables.find("tasks.send")
    assert not callables.would_import("tasks.send")
    modules.write("tasks.py", "def send(): pass")
    passed = time.monotonic() + BROKEN_SECONDS + 1
    monkeypatch.setattr(time, "monotonic", lambda: passed)
    assert callables.would_import("tasks.send")
    callables.find("tasks.send")


def test_an_unlisted_name_is_a_bad_row_though_the_listed_module_is_broken(modules: Modules) -> None:
    modules.write("tasks.py", "raise ValueError")
    modules.refuse("os.system")
    modules.refuse("tasks._private")


@pytest.mark.parametrize("broken", ["mail", "__init__"])
def test_a_broken_module_or_package_breaks_what_is_below_it_and_is_tried_once(modules: Modules, broken: str) -> None:
    modules.write(f"shop/jobs/{broken}.py", "from note import note\nnote('tried')\nraise SystemExit(3)\n")
    for name in ("mail.send", "mail:send", "mail.Letter.post"):
        callables = Callables(("shop.jobs.*",))
        for _ in range(3):
            with pytest.raises(ModuleBroken, match=r"module shop\.jobs\S* cannot be imported: "):
                callables.find(f"shop.jobs.{name}")
        assert modules.noted == ["tried"]
        modules.noted.clear()


# ---- functions whose arguments cannot be read


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("class Letter:\n    @classmethod\n    def write(): pass\n", "tasks.Letter.write"),
        ("class Letter:\n    @classmethod\n    def write(*, text): pass\n", "tasks.Letter.write"),
        ("def send(): pass\nsend.__signature__ = 5\n", "tasks.send"),
        ("def send(): pass\nsend.__signature__ = lambda: 1 / 0\n", "tasks.send"),
    ],
)
def test_a_function_whose_arguments_cannot_be_read_is_a_bad_task(modules: Modules, text: str, name: str) -> None:
    modules.write("tasks.py", text)
    assert name in modules.refuse(name)
