"""Git, as a stranger to this machine's settings runs it: all commits are of one instant."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.support.servers import find_program

INSTANT = 1700000000


def in_git(folder: Path, *arguments: str) -> str:
    """Runs git in a folder, whoever owns it; what it printed."""
    program = find_program("git")
    if program is None:
        pytest.skip("git is not installed")
    env = {"PATH": os.defpath, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    for who in ("AUTHOR", "COMMITTER"):
        env |= {f"GIT_{who}_NAME": "Ada", f"GIT_{who}_EMAIL": "ada@example.org"}
        env |= {f"GIT_{who}_DATE": f"{INSTANT} +0100"}
    command = [program, "-c", "gc.auto=0", "-c", "safe.directory=*", *arguments]
    return subprocess.run(command, cwd=folder, env=env, check=True, capture_output=True, text=True).stdout
