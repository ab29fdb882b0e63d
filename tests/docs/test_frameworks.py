"""docs/django.md and docs/flask.md: their code is that of the projects in examples/, their commands are run there."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from taskserver import TaskServer
from tests.support.deployment import ROOT, TIMEOUT_SECONDS
from tests.support.documents import blocks
from tests.support.projects import PREPARED
from tests.support.reader import command_of
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


@pytest.mark.parametrize("document", PROJECTS)
def test_its_settings_are_those_of_the_project(document: str) -> None:
    (shown,) = [block.text for block in blocks(document) if block.kind == "dotenv"]
    lines = (EXAMPLES / PROJECTS[document] / ".env.example").read_text().splitlines()
    assert [line for line in lines if line.startswith("TASKSERVER_")] == shown.splitlines()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home folder whose site has a virtual environment with the commands."""
    packages, programs = tmp_path / "packages", tmp_path / "home" / "site" / ".venv" / "bin"
    shutil.copytree(ROOT / "taskserver", packages / "taskserver", ignore=shutil.ignore_patterns("__pycache__"))
    programs.mkdir(parents=True)
    for name, more in {
        "python": "",
        "taskserver": "-m taskserver",
        "taskserver-worker": "-m taskserver worker",
    }.items():
        line = f'PYTHONPATH={packages} exec {shlex.quote(sys.executable)} {more} "$@"'
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
