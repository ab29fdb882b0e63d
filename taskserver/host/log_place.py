"""Whether a file may be a log: appended to, renamed and, three rotations later, deleted."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

SQLITE_BEGIN = b"SQLite format 3\0"
OF_SQLITE = ("-wal", "-shm", "-journal")
OF_PROGRAMS = (".py", ".pyc", ".php", ".sql", ".env", ".htaccess")
OF_SYSTEM = ("/dev/", "/proc/")
"""`/dev/stderr` may be a pipe, which is open already."""


def why_no_log(path: Path) -> str:
    """Why a file must not be a log, as a slip in its name may have it: it goes on after that name. Empty if it may."""
    if str(path).startswith(OF_SYSTEM):
        return ""
    if path.name.endswith(OF_SQLITE):
        return "belongs to a database"
    if path.name.endswith(OF_PROGRAMS):
        return "is named as code or settings are"
    with suppress(OSError):  # there is none, or it cannot be read
        mode = path.stat().st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISCHR(mode)):  # a pipe would have its writer wait for a reader
            return "is no file"
        if stat.S_ISREG(mode) and _begin_of(path) == SQLITE_BEGIN:
            return "is a database"
    return ""


def _begin_of(path: Path) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        return os.read(descriptor, len(SQLITE_BEGIN))
    finally:
        os.close(descriptor)
