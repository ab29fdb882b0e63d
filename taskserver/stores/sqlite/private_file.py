"""The file that stands for a database in memory: this process's own, in memory where the host allows it."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path

from ...errors import DatabaseError

IN_MEMORY = "/dev/shm"


def private_file() -> Path:
    """A path for a new file, which is removed when the process ends that asked for it. Raises DatabaseError."""
    try:
        folder = tempfile.mkdtemp(prefix="taskserver-", dir=IN_MEMORY if os.access(IN_MEMORY, os.W_OK) else None)
    except OSError as error:
        raise DatabaseError(f"no file can be made for :memory: ({error}): name a file in TASKSERVER_DSN") from None
    atexit.register(_remove, folder, os.getpid())
    return Path(folder, "memory.db")


def _remove(folder: str, pid: int) -> None:
    if os.getpid() == pid:  # a forked child uses the same file, and ends before
        shutil.rmtree(folder, ignore_errors=True)
