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

from tests.support.servers import NOBODY

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
