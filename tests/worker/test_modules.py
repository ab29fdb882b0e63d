"""Modules of callables: packages, __all__, functions of other modules, and imports that fail."""

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
"""
MAIL = """
import os
def send(): return "mail.send"
class Letter:
    @classmethod
    def write(cls): return f"mail.write of {cls.__name__}"
"""
FILES = {
    "tasks.py": TASKS,
    "shop/__init__.py": "def of_shop(): pass\n",
    "shop/jobsite.py": SENTINEL,
    "shop/jobs/__init__.py": "def of_jobs(): return 'of_jobs'\n",
    "shop/jobs/__main__.py": SENTINEL,
    "shop/jobs/_internal.py": SENTINEL,
    "shop/jobs/_hidden/__init__.py": SENTINEL,
    "shop/jobs/_hidden/mail.py": SENTINEL,
    "shop/jobs/deep/er.py": "def run(): return 'deeper'\n",
    "shop/jobs/mail.py": MAIL,
}
"""shop is not listed, shop.jobs.* is; deep has no __init__.py."""


@pytest.fixture
def modules(tmp_path: Path) -> Iterator[Modules]:
    with importable(tmp_path / "site") as made:
        for name, text in FILES.items():
            made.write(name, text)
        yield made


# ---- what a module exports


@pytest.mark.parametrize("exported", ["['send', 'missing']", "[['send']]", "'send'"])
def test_where_a_module_has_all_only_what_it_names_runs(modules: Modules, exported: str) -> None:
    modules.write("tasks.py", f"{TASKS}\n__all__ = {exported}\n")
    if "missing" in exported:
        assert modules.run("tasks.send") == "sent to nobody"
    else:  # no list of names
        assert "not in __all__ of tasks" in modules.refuse("tasks.send")
    assert "not in __all__ of tasks" in modules.refuse("tasks.also_send")


def test_a_function_of_another_listed_module_runs_only_under_its_own_module_s_name(modules: Modules) -> None:
    modules.write("tasks.py", "from shop.jobs.mail import send\n")
    refusal = modules.refuse("tasks.send", "tasks,shop.jobs.*")
    assert "comes from shop.jobs.mail" in refusal
    assert refusal.endswith("; name it shop.jobs.mail.send")


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
    "shop.jobs.mail.os.system shop.jobs.mail shop.jobs shop.jobs.missing.run sentinel_package.below.run"
)


def test_of_a_listed_package_private_parts_and_neighbours_are_not_even_imported(modules: Modules) -> None:
    for name in PRIVATE.split():
        modules.refuse(name, "shop.jobs.*")
        assert (name, modules.noted) == (name, [])


def test_a_package_that_is_listed_without_a_star_opens_nothing_below_it(modules: Modules) -> None:
    assert modules.run("shop.jobs.of_jobs", listed="shop.jobs") == "of_jobs"
    modules.refuse("shop.jobs.mail.send", "shop.jobs")
    assert "shop.jobs.mail" not in sys.modules


# ---- modules that cannot be imported


@pytest.mark.parametrize(
    "failure",
    [
        "raise SystemExit(3)",
        "import a_package_that_nobody_installed",
        "class Odd(Exception):\n    def __str__(self): raise SystemExit\nraise Odd",
    ],
)
def test_a_module_that_fails_is_broken_and_tried_once(modules: Modules, failure: str) -> None:
    modules.write("tasks.py", f"from note import note\nnote('tried')\n{failure}\n")
    callables = Callables(("tasks",))
    for name in ("tasks.send", "tasks.send", "tasks.Letter.post"):
        with pytest.raises(ModuleBroken, match="module tasks cannot be imported: "):
            callables.find(name)
    assert modules.noted == ["tried"]
    assert "none of the modules" in modules.refuse("os.system")


def test_a_broken_module_is_tried_again_a_while_later(modules: Modules, monkeypatch: pytest.MonkeyPatch) -> None:
    """`would_import` knows beforehand whether finding a name runs the code of its module."""
    modules.write("tasks.py", "def send(")
    callables = Callables(("tasks",))
    assert (callables.would_import("tasks.send"), callables.would_import("os.remove")) == (True, False)
    for _ in range(2):
        with pytest.raises(ModuleBroken):
            callables.find("tasks.send")
    assert not callables.would_import("tasks.send")
    modules.write("tasks.py", "def send(): pass")
    passed = time.monotonic() + BROKEN_SECONDS + 1
    monkeypatch.setattr(time, "monotonic", lambda: passed)
    assert callables.would_import("tasks.send")
    callables.find("tasks.send")
    assert not callables.would_import("tasks.send")
