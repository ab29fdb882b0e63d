"""The backend for Django's own Tasks API, by a Python that has Django 6: django_site/suite.py, and docs/django.md.

The suite runs on both databases, by the pytest that runs this.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest

from tests.support.deployment import ROOT, Deployment
from tests.support.documents import blocks, sections
from tests.support.servers import needs_version
from tests.support.shops import NEEDED_BY_DJANGO_6, Shop

SITE = Path(__file__).parent / "django_site"
PYTHON = ROOT / ".servers" / "django6" / "bin" / "python"


@pytest.fixture
def django6() -> str:
    if not PYTHON.exists():  # .ci/setup fails if it could not install it
        pytest.skip("this machine has no Python 3.12 or newer, which Django 6 needs")
    return str(PYTHON)


@pytest.fixture
def pytest_path(tmp_path: Path) -> Path:
    """Has the pytest that runs this, for another Python: all of it is Python code."""
    folder = tmp_path / "pytest"
    folder.mkdir()
    for name in ("pytest", "_pytest", "py", "pluggy", "iniconfig", "packaging", "pygments"):
        file = Path(str(import_module(name).__file__))
        source = file.parent if file.name == "__init__.py" else file
        (folder / source.name).symlink_to(source)
    return folder


Run = Callable[..., str]


@pytest.fixture
def run(django6: str, deployment: Deployment, pytest_path: Path, dsn: str) -> Run:
    """Runs this Python in the folder of a site whose orders lie beside the queue; what it prints."""
    shop = Shop(deployment, dsn)
    if not shop.is_sqlite:
        needs_version(shop.sql("SELECT VERSION()")[0][0], **NEEDED_BY_DJANGO_6)
    deployment.write_env(TASKSERVER_DSN=dsn, TASKSERVER_MODULES="shop.tasks,shop.deployed", TASKSERVER_MODE="mark")

    def run(*arguments: str, **environ: str) -> str:
        environ |= {"PATH": os.defpath, "HOME": str(deployment.home), "PYTHONPATH": str(pytest_path)}
        environ["SHOP_DATABASE"] = json.dumps(shop.place_in_django)
        command = [django6, *arguments]
        ended = subprocess.run(command, cwd=deployment.folder, env=environ, capture_output=True, text=True, timeout=100)
        assert (ended.returncode, ended.stderr) == (0, ""), ended.stdout
        return ended.stdout

    return run


def test_django_s_tasks_run_here_as_django_promises(run: Run, deployment: Deployment) -> None:
    shutil.copytree(SITE, deployment.folder, dirs_exist_ok=True)
    printed = run("-m", "pytest", "-q", "-p", "no:cacheprovider", "suite.py", DJANGO_SETTINGS_MODULE="shop.settings")
    assert re.search(r"^\d\d passed\b", printed, re.MULTILINE)


PROGRAM = """
from shop.worker import setup
setup()
{view}
from taskserver import TaskServer
with TaskServer.from_env() as server:
    print(server.run().done)
    result.refresh()
    print(result.status, result.return_value)
"""
EMAIL = 'EMAIL_BACKEND = "django.core.mail.backends.dummy.EmailBackend"\n'


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_a_site_as_the_document_has_it_runs_its_tasks(run: Run, deployment: Deployment) -> None:
    settings, tasks, view, logging = [block.text for block in dict(sections("docs/django.md"))["Django's own tasks"]]
    (worker,) = [block.text for block in blocks("docs/django.md") if block.text.startswith("# shop/worker.py")]
    shutil.copytree(SITE, deployment.folder, dirs_exist_ok=True)
    own = (SITE / "shop" / "settings.py").read_text().partition("TASKS =")[0]
    (deployment.folder / "project").mkdir()
    (deployment.folder / "project" / "settings.py").write_text(own + EMAIL + settings + logging + "DEBUG = True\n")
    deployment.write_tasks(tasks, "shop/tasks.py")
    deployment.write_tasks(worker, "shop/worker.py")
    deployment.write_tasks(PROGRAM.format(view=view), "program.py")
    env = deployment.folder / ".env"
    dsn = env.read_text().splitlines()[0]
    env.write_text(f"{dsn}\nTASKSERVER_MODULES=shop.tasks\nTASKSERVER_MODE=mark\n")
    assert run("program.py").split() == ["2", "SUCCESSFUL", "{'sum':", "6,", "'attempt':", "1}"]
