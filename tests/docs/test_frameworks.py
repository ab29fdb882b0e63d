"""docs/django.md, docs/flask.md and docs/testing.md: their code is that of whole projects, and their commands run."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from taskserver import TaskServer
from tests.support.deployment import ROOT, TIMEOUT_SECONDS
from tests.support.documents import blocks
from tests.support.reader import command_of
from tests.support.shops import PREPARED
from tests.support.websites import EXAMPLES, MINIMAL

ADDS = {
    "docs/django.md": "queue().add_task(tasks.reserve, [Order.objects.create(book=Book.objects.create(copies=1)).pk])",
    "docs/flask.md": "db = session(); db.add(Order(title='A')); db.commit()\n"
    "queue().add_task(tasks.write_receipt, [1])",
}
PROJECTS = {"docs/django.md": "django_project", "docs/flask.md": "flask_app"}
DATABASES = {"docs/django.md": "db.sqlite3", "docs/flask.md": "shop.db"}


@pytest.mark.parametrize("document", PROJECTS)
def test_its_code_stands_in_the_project(document: str) -> None:
    shown = [block.text for block in blocks(document) if re.match(r"# \S+\.py\n", block.text)]
    assert len(shown) >= 4
    for text in shown:
        name, _, code = text.removeprefix("# ").partition("\n")
        in_project = (EXAMPLES / PROJECTS[document] / name).read_text()
        for part in code.strip().split("\n\n\n"):
            assert part in in_project, f"{name} has no\n{part}"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home folder whose site has a virtual environment with the commands."""
    programs = tmp_path / "home" / "site" / ".venv" / "bin"
    programs.mkdir(parents=True)
    for name, more in {
        "python": "",
        "taskserver": "-m taskserver",
        "taskserver-worker": "-m taskserver worker",
    }.items():
        line = f'PYTHONPATH={ROOT} exec {shlex.quote(sys.executable)} {more} "$@"'
        (programs / name).write_text(f"#!/bin/sh\n{line}\n")
        (programs / name).chmod(0o755)
    return tmp_path / "home"


def typed(home: Path, text: str) -> subprocess.CompletedProcess[str]:
    """What the shell says to these lines, as cron starts it: in the home folder, with next to no environment."""
    return subprocess.run(
        ["/bin/sh", "-e", "-c", text.replace("/home/you", str(home))],
        cwd=home,
        env={"HOME": str(home), **MINIMAL},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
    )


@pytest.mark.parametrize("document", ["docs/django.md", pytest.param("docs/flask.md", marks=pytest.mark.long)])
def test_its_commands_lead_to_a_task_that_cron_s_worker_runs(document: str, home: Path) -> None:
    site, name = home / "site", PROJECTS[document]
    shutil.copytree(EXAMPLES / name, site, dirs_exist_ok=True)
    (dotenv,) = [block.text for block in blocks(document) if block.kind == "dotenv"]
    at_sqlite = re.sub(r"DSN=.*\nTASKSERVER_PASSWORD=.*", f"DSN=sqlite:///{DATABASES[document]}", dotenv)
    (site / ".env").write_text(f"SECRET_KEY=x\n{at_sqlite}")
    (site / ".env").chmod(0o600)
    for block in blocks(document):
        if block.kind == "sh":
            done = typed(home, block.text)
            assert (done.returncode in (0, 1), done.stderr) == (True, ""), done
            assert "critical" not in re.sub(r"^0 critical,", "", done.stdout, flags=re.MULTILINE), done.stdout
    added = typed(home, f"cd site; .venv/bin/python -c {shlex.quote(PREPARED[name] + ADDS[document])}")
    assert (added.returncode, added.stderr) == (0, "")
    (line,) = [block.text.strip() for block in blocks(document) if block.kind == "crontab"]
    with TaskServer.from_env(site) as server:
        assert server.get(1) is not None
        done = typed(home, re.sub(r"--linger \d+", "--linger 1", command_of(line)))
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        assert server.get(1) is None


# ---- docs/testing.md: its files are tests of a site, which pytest and Django themselves run here


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
    with open(folder / "settings.py", "a") as file:
        file.write(SETTINGS_OF_DJANGO.replace("TEST}", f"{str(folder / 'test.sqlite3')!r}}}"))
    (folder / ".env").write_text("TASKSERVER_DSN=sqlite:///real.db\nTASKSERVER_MODULES=accounts\n")
    with TaskServer.from_env(folder) as server:
        server.store.tables.create()
        django = ("-W", "error", "-m", "django", "test", "--pattern", "tests_of_*.py")
        assert "Ran 2 tests" in run_in(folder, *django, DJANGO_SETTINGS_MODULE="settings")
        assert list(server.list()) == []
