"""An old Python is told which one is needed, in a line, by both scripts; tests/unit/test_old_forms.py has the rest."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.deployment import Deployment
from tests.support.processes import assert_one_line

SCRIPTS = pytest.mark.parametrize("script", ["worker.py", "client.py"])
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
@pytest.mark.parametrize("version", [(3, 9), (3, 10)], ids=str)
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
