"""Git, as a stranger to this machine's settings runs it, all commits of one instant; and copies of this repository."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.deployment import ROOT
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


def copy_of_repository(folder: Path) -> Path:
    """What `make bundle` reads of this repository, in a new folder."""
    folder.mkdir()
    for path in ROOT.iterdir():
        if path.is_file() and path.name != ".git":  # a work tree's, which would lead git back into its repository
            shutil.copy2(path, folder)
    for name in ("taskserver", "docs", "examples", "packaging", ".ci"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    return folder
