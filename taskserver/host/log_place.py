"""Whether a file may be a log: appended to, renamed and, three rotations later, deleted; and what to do if not."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

from ..messages.programs import CLIENT
from .file_rights import account_name, trusted_accounts

SQLITE_BEGIN = b"SQLite format 3\0"
OF_SQLITE = ("-wal", "-shm", "-journal")
OF_PROGRAMS = (".py", ".pyc", ".php", ".sql", ".env", ".htaccess")
OF_SYSTEM = ("/dev/", "/proc/")
"""`/dev/stderr` may be a pipe, which is open already."""
CLOSE = "let nobody else write there, or name a file in a private folder, as var/ is"


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


def mend_of_var(path: Path, folder: Path) -> str:
    """What to do where a log is to lie in var/ and that is missing, or another account's; empty where it is neither.

    `folder` is the program's.
    """
    var = folder / "var"
    if path.parent != var:
        return ""
    if not var.is_dir():
        return f"there is no folder {var}: {CLIENT} init makes it"
    owner = var.stat().st_uid
    if owner in trusted_accounts(folder):
        return ""
    return f"{var} belongs to {account_name(owner)}: rename it by FTP and run {CLIENT} init, or ask your host"


def in_words(rights: str, path: Path) -> str:
    """The command that gives a file or folder these rights, and how somebody without a shell does."""
    return f"chmod {rights} {path} (by FTP: file permissions {rights})"


def _begin_of(path: Path) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        return os.read(descriptor, len(SQLITE_BEGIN))
    finally:
        os.close(descriptor)
