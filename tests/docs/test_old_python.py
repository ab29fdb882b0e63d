"""An old Python is told which one is needed, in a line, by both scripts; tests/unit/test_old_forms.py has the rest."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

from tests.support.deployment import Deployment
from tests.support.processes import assert_one_line

SCRIPTS = pytest.mark.parametrize("script", ["worker.py", "client.py"])
NAMES = ("python", "python2", "python3", "python2.7", *(f"python3.{minor}" for minor in range(10)))
IS_OLD = "import sys; sys.exit(sys.version_info >= (3, 10))"


def _old_interpreters() -> list[str]:
    """Those in PATH. They are asked: one of pyenv's names may stand for nothing."""
    found = sorted({path for name in NAMES if (path := shutil.which(name))})
    return [path for path in found if subprocess.run([path, "-c", IS_OLD], capture_output=True).returncode == 0]


@SCRIPTS
def test_an_old_python_says_which_one_is_needed(deployment: Deployment, script: str) -> None:
    interpreters = _old_interpreters()
    if not interpreters:
        pytest.skip("no Python before 3.10 in PATH")
    for python in interpreters:
        deployment.python = python
        assert_one_line(deployment.run(script, "status"), 2, script, "3.10 or newer", "/usr/bin/python3.11")


# This Python, told that it is another.
PRETEND = """
import runpy, sys
sys.argv = sys.argv[1:]
sys.version_info = {version!r}
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
finally:
    assert {is_new} or "taskserver" not in sys.modules
"""


@SCRIPTS
@pytest.mark.parametrize("version", [(2, 7), (3, 9), (3, 10)], ids=str)
def test_the_line_names_the_version_that_runs(deployment: Deployment, script: str, version: tuple[int, int]) -> None:
    program = deployment.home / "pretend.py"
    is_new = version >= (3, 10)
    program.write_text(PRETEND.format(version=(*version, 18, "final", 0), is_new=is_new))
    command = [sys.executable, "-S", str(program), str(deployment.folder / script), "--help"]
    ended = subprocess.run(command, capture_output=True, text=True, env={})
    if is_new:
        assert (ended.returncode, ended.stderr) == (0, "")
        assert ended.stdout.startswith(f"usage: {script}")
    else:
        assert_one_line(ended, 2, script, "this is {}.{}: ".format(*version), "3.10 or newer", "/usr/bin/python3.11")
