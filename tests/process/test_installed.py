"""The commands of an installed package: which deployment they take, and that they are worker.py and client.py."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest

from taskserver import __version__
from tests.support.deployment import ROOT
from tests.support.processes import assert_one_line

TASKS = """
from pathlib import Path


def note(text):
    with open(Path(__file__).parent / "notes", "a") as file:
        file.write(f"{text} in {Path.cwd()}\\n")
"""
COMMANDS = {"taskserver": "client", "taskserver-worker": "worker"}
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with only the package, as pip leaves it."""
    folder = tmp_path_factory.mktemp("site-packages")
    shutil.copytree(ROOT / "taskserver", folder / "taskserver", ignore=shutil.ignore_patterns("__pycache__"))
    return folder


@pytest.fixture
def run(packages: Path, tmp_path: Path) -> Run:
    """Runs an installed command, in the folder `site` of the test unless another one is named."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "tasks.py").write_text(TASKS)

    def run(command: str, *arguments: str, cwd: Path = tmp_path / "site", **environ: str) -> object:
        function = COMMANDS.get(command)
        start = (
            ["-m", *command.split()]
            if function is None
            else ["-c", f"import sys; from taskserver.__main__ import {function}; sys.exit({function}())"]
        )
        environ = {"PATH": os.environ["PATH"], "PYTHONPATH": str(packages), **environ}
        line = [sys.executable, *start, *arguments]
        return subprocess.run(line, cwd=cwd, env=environ, capture_output=True, text=True, timeout=60)

    return run  # type: ignore[return-value]


def notes(folder: Path) -> str:
    return (folder / "notes").read_text()


def test_the_package_names_its_two_commands() -> None:
    section = (ROOT / "pyproject.toml").read_text().partition("[project.scripts]\n")[2].partition("\n[")[0]
    scripts = dict(re.findall(r'^([\w-]+) = "(.+)"$', section, re.MULTILINE))
    assert scripts == {name: f"taskserver.__main__:{function}" for name, function in COMMANDS.items()}
    for place in scripts.values():
        module, _, name = place.partition(":")
        assert callable(getattr(import_module(module), name))


def test_the_current_folder_is_the_deployment(run: Run, tmp_path: Path) -> None:
    site = tmp_path / "site"
    assert f"wrote {site / '.env'}" in run("taskserver", "init").stdout
    assert run("taskserver", "add", "tasks.note", '["hello"]').stdout == "1\n"
    worker = run("taskserver-worker", "--verbose")
    assert worker.returncode == 0
    assert f"the deployment in {site}, with the settings of {site / '.env'}" in worker.stderr
    assert notes(site) == f"hello in {site}\n"
    assert (site / "var" / "taskserver.db").exists()


def test_a_folder_is_named_from_anywhere_before_a_command_or_behind_it(run: Run, tmp_path: Path) -> None:
    site, elsewhere, named = tmp_path / "site", tmp_path / "elsewhere", ["--folder", "../site"]
    elsewhere.mkdir()
    for command in ([*named, "init"], ["add", "tasks.note", '["hello"]', *named]):
        done = run("taskserver", *command, cwd=elsewhere)
        assert (done.returncode, done.stderr) == (0, "")
    assert run("taskserver-worker", "10", "--folder", str(site), cwd=elsewhere).returncode == 0
    assert notes(site) == f"hello in {elsewhere}\n"
    assert not list(elsewhere.iterdir())


def test_a_file_of_settings_is_named_and_the_doctor_looks_at_it(run: Run, tmp_path: Path) -> None:
    site = tmp_path / "site"
    (tmp_path / "queue.env").write_text("TASKSERVER_DSN=sqlite:///var/other.db\n")
    (tmp_path / "queue.env").chmod(0o600)
    named = ("--env", str(tmp_path / "queue.env"), "--folder", ".")
    for command in (["init"], ["add", "tasks.note", '["hello"]']):
        assert run("taskserver", *command, *named).returncode == 0
    assert run("taskserver-worker", *named).returncode == 0
    assert notes(site) == f"hello in {site}\n"
    assert (site / "var" / "other.db").exists()
    assert not (site / ".env").exists()
    (tmp_path / "queue.env").rename(site / "queue.env")  # without --folder its own is that of the deployment
    found = run("taskserver", "doctor", "--env", "site/queue.env", cwd=tmp_path).stdout
    assert f"only its owner may read {site / 'queue.env'}" in found


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "TASKSERVER_DSN is not set, neither in the environment nor in {site}/.env"),
        (["--env", "nothing.env"], "there is no file {site}/nothing.env"),
    ],
)
def test_a_wrong_place_is_one_line_that_names_it(run: Run, tmp_path: Path, arguments: list[str], words: str) -> None:
    for command in (["taskserver", "status"], ["taskserver-worker"]):
        assert_one_line(run(*command, *arguments), 2, f"{command[0]}: ", words.format(site=tmp_path / "site"))


@pytest.mark.parametrize("command", [*COMMANDS, "taskserver worker"])
def test_each_way_to_start_it_tells_the_version(run: Run, command: str) -> None:
    done = run(command, "--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"taskserver {__version__}\n", "")
