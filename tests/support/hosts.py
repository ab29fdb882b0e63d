"""An account on a host: nobody if root runs the tests, else who runs them. What is uploaded there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support.deployment import ROOT
from tests.support.servers import NOBODY, find_program

BARE = ("-S", "-E")
"""Options of a Python that has its standard library alone, but nothing that is installed or set."""


def as_user() -> list[str]:
    """What makes a command run without root's rights.

    setpriv still has them while it looks for the next program, so that this is `env`, which does nothing here.
    """
    drop = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "env"]
    return drop if os.getuid() == 0 else []


def own(*paths: Path) -> None:
    """Gives them to the user, but not what is in them."""
    for path in paths:
        if os.getuid() == 0:
            os.chown(path, NOBODY, NOBODY)


def own_all(folder: Path) -> None:
    """As it is on most hosts: who uploads may write everything."""
    own(folder, *folder.rglob("*"))


@contextmanager
def open_folder() -> Iterator[Path]:
    """A folder that the user may enter too, which pytest's own is not."""
    folder = Path(tempfile.mkdtemp(prefix="taskserver-host-", dir="/tmp"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        for path in [folder, *folder.rglob("*")]:
            if path.is_dir() and not path.is_symlink():
                path.chmod(0o700)
        shutil.rmtree(folder)


def users_python() -> str:
    """One that the user may run: that of the tests, which may lie in root's home, or the system's."""
    check = "import sys, sqlite3; sys.exit(sys.version_info < (3, 10))"
    for python in (sys.executable, "/usr/bin/python3"):
        ended = subprocess.run([*as_user(), python, *BARE, "-c", check], cwd="/", env={}, capture_output=True)
        if ended.returncode == 0:
            return python
    pytest.skip("no Python of 3.10 or newer that an unprivileged user may run")


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
