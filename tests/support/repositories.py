"""Git without this machine's settings; copies of this repository; and virtual environments."""

from __future__ import annotations

import os
import shutil
import subprocess
import venv
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support.deployment import ROOT
from tests.support.servers import find_program


def in_git(folder: Path, *arguments: str) -> str:
    """Runs git in a folder of any owner, all commits at one instant; what it printed."""
    program = find_program("git") or pytest.skip("git is not installed")
    env = {"PATH": os.defpath, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    env |= {f"GIT_{who}_DATE": "1700000000 +0100" for who in ("AUTHOR", "COMMITTER")}
    settings = ("gc.auto=0", "safe.directory=*", "user.name=Ada", "user.email=ada@example.org")
    command = [program, *(word for setting in settings for word in ("-c", setting)), *arguments]
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


def make_venv(folder: Path) -> Path:
    """A virtual environment with the pip of this one: to unpack another takes ten times as long. Its Python."""
    venv.create(folder, with_pip=False)
    spec = find_spec("pip")
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "pip").symlink_to(Path(str(spec and spec.origin)).parent)
    return folder / "bin" / "python"
