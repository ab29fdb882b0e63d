"""docs/testing.md: its files are tests of a site, which pytest and Django themselves run here."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from taskserver import TaskServer
from tests.support.deployment import ROOT
from tests.support.documents import blocks

PAGE = "docs/testing.md"
FILES = {
    str(found[1]): block.text
    for block in blocks(PAGE)
    if (found := re.match(r"# (\w+\.py)\n", block.text)) and block.kind == "python"
}
OF_DJANGO = ("accounts.py", "tests_of_accounts.py", "settings.py")
SETTINGS_OF_DJANGO = """
SECRET_KEY = "of a test"
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "unused.sqlite3", "TEST": {"NAME": TEST}}}
INSTALLED_APPS = ["django.contrib.auth", "django.contrib.contenttypes"]
USE_TZ = True
"""
OPENS_NO_TASK_QUEUE = """
import unittest
from pathlib import Path
from taskserver import TaskServer

class Test(unittest.TestCase):
    def test_it_adds_elsewhere(self):
        self.assertEqual(TaskServer.from_env(Path(__file__).parent).add_task("accounts.welcome", [1]), 1)
"""
Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes some of the page's files into a project, whose folder it returns."""

    def write(*names: str) -> Path:
        for name in names:
            (tmp_path / name).write_text(FILES[name].replace("/home/you/taskserver", str(tmp_path)))
        return tmp_path

    return write


def run_in(folder: Path, *command: str, **environ: str) -> str:
    """What a program of Python says that ends well."""
    path = {"PATH": "/usr/bin:/bin", "PYTHONPATH": f"{folder}:{ROOT}", "PYTHONDONTWRITEBYTECODE": "1"}
    ended = subprocess.run(
        [sys.executable, *command], cwd=folder, env=path | environ, capture_output=True, text=True, timeout=120
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout + ended.stderr


def test_every_block_of_the_page_is_a_file_that_is_run_here() -> None:
    assert len(FILES) == len(blocks(PAGE))


def test_pytest_runs_the_tests_of_the_page(write: Write) -> None:
    folder = write(*(name for name in FILES if name not in OF_DJANGO))
    (folder / ".env").write_text("TASKSERVER_DSN=mysql://nobody@127.0.0.1:1/nothing\n")
    named = re.findall(r"^ *def test_", "".join(FILES.values()), re.MULTILINE)
    of_django = re.findall(r"^ *def test_", FILES["tests_of_accounts.py"], re.MULTILINE)
    said = run_in(folder, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error")
    assert f"{len(named) - len(of_django)} passed" in said


def test_a_conftest_that_imports_the_site_leaves_its_queue_alone_where_the_plugin_comes_before_it(write: Write) -> None:
    folder = write("shop.py", "tasks.py")
    (folder / ".env").write_text("TASKSERVER_DSN=mysql://nobody@127.0.0.1:1/nothing\n")
    (folder / "conftest.py").write_text("import shop\n")
    (folder / "pytest.ini").write_text("[pytest]\naddopts = -p taskserver.testing.fixtures\n")
    (folder / "test_it.py").write_text(
        "import shop\n"
        "def test_it():\n    shop.sign_up('a')\n    assert len(shop.server.list()) == 2\n"
        "def test_queue(task_queue):\n    shop.sign_up('a')\n    assert len(task_queue.added) == 2\n"
    )
    assert "2 passed" in run_in(folder, "-m", "pytest", "-q", "-p", "no:cacheprovider")


def test_django_runs_its_tests_of_the_page(write: Write) -> None:
    folder = write(*OF_DJANGO)
    (folder / "tests_of_nobody.py").write_text(OPENS_NO_TASK_QUEUE)
    with open(folder / "settings.py", "a") as file:
        file.write(SETTINGS_OF_DJANGO.replace("TEST}", f"{str(folder / 'test.sqlite3')!r}}}"))
    (folder / ".env").write_text("TASKSERVER_DSN=sqlite:///real.db\nTASKSERVER_MODULES=accounts\n")
    with TaskServer.from_env(folder) as server:
        server.store.tables.create()
        django = ("-W", "error", "-m", "django", "test", "--pattern", "tests_of_*.py")
        assert "Ran 3 tests" in run_in(folder, *django, DJANGO_SETTINGS_MODULE="settings")
        assert list(server.list()) == []
