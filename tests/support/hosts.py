"""An account on a host: a user without rights elsewhere. Where root runs the tests it is nobody, else who runs them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.servers import NOBODY, find_program

BARE = ("-S", "-E")
"""Options of a Python that has its standard library alone, whatever is installed and set."""
VERSIONS = [f"python3.{minor}" for minor in range(10, 20)]
IS_USABLE = "import sys, sqlite3; sys.exit(sys.version_info < (3, 10))"


def as_user() -> list[str]:
    """What makes a command run without root's rights.

    setpriv still has them while it looks for the next program, so that this is `env`, which does nothing here.
    """
    if os.getuid() != 0:
        return []
    setpriv = find_program("setpriv")
    if setpriv is None:
        pytest.skip("setpriv of util-linux is needed to give up root's rights")
    return [setpriv, f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "env"]


def own(*paths: Path) -> None:
    """Gives them to the user, but not what is in them."""
    for path in paths:
        if os.getuid() == 0:
            os.chown(path, NOBODY, NOBODY)


def own_all(folder: Path) -> None:
    """As it is on most hosts: whoever uploads may write everything."""
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
    """The first that the user may run: that of the tests, which may lie in root's home, or another one."""
    for name in (sys.executable, "/usr/bin/python3", *VERSIONS):
        path = shutil.which(name)
        if path and is_usable(path):
            return path
    pytest.skip("no Python of 3.10 or newer that an unprivileged user may run")


def is_usable(python: str) -> bool:
    """Whether the user may run it, and it is new enough."""
    command = [*as_user(), python, *BARE, "-c", IS_USABLE]
    return subprocess.run(command, cwd="/", env={}, capture_output=True).returncode == 0
