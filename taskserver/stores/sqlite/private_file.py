"""The file that stands for a database in memory: this process's own, in memory where the host allows it."""

from __future__ import annotations

import os
import shutil
import weakref
from pathlib import Path

from ...errors import DatabaseError
from ...host.memory_folder import make_folder_in_memory

PREFIX, NAME = "taskserver-", "memory.db"


def make_private_file() -> Path:
    """A path for a new file, in a folder of its own. Raises DatabaseError."""
    try:
        folder = make_folder_in_memory(PREFIX)
    except OSError as error:
        raise DatabaseError(f"no file can be made for :memory: ({error}): name a file in TASKSERVER_DSN") from None
    return folder / NAME


def is_private_file(path: Path) -> bool:
    """Whether a path looks as one of these."""
    return path.name == NAME and path.parent.name.startswith(PREFIX)


def remove_with(owner: object, path: Path) -> None:
    """Remove the file with its folder once the owner is gone, or this process ends."""
    weakref.finalize(owner, _remove, path.parent, os.getpid())


def _remove(folder: Path, pid: int) -> None:
    if os.getpid() == pid:  # a forked child uses its parent's file
        shutil.rmtree(folder, ignore_errors=True)
