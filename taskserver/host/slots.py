"""Slots, which limit the workers at work at once: each worker holds one by a kernel lock, which even SIGKILL frees.

A crontab starts a worker each minute, whether or not the workers of the minutes before have ended.
"""

from __future__ import annotations

import errno
import fcntl
import os
from binascii import crc32
from contextlib import suppress
from pathlib import Path

from ..errors import DatabaseError, SettingError
from .private_folder import make_private_folder

IN_USE = frozenset({errno.EACCES, errno.EAGAIN})
DISK_IS_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
FOLDER = Path("var", "slots")

_taken: list[int] = []
"""The open lock files of the slots that this process holds."""


def _leave_to_the_parent() -> None:
    """Close the lock files in a forked child: a slot is free once its worker ends, whatever its tasks leave behind."""
    while _taken:
        with suppress(OSError):  # a task may have closed it
            os.close(_taken.pop())


os.register_at_fork(after_in_child=_leave_to_the_parent)


class Slots:
    """The slots for workers of one database, table and groups on this host."""

    def __init__(self, folder: Path, host: str, queue: str, groups: str, most: int) -> None:
        """`queue` names database and table, `folder` is the program's, `most` is the number of slots."""
        # With the host's name: several hosts may share a home folder.
        self._name = f"{crc32(repr((host, queue, groups)).encode()):08x}"
        self._folder = folder / FOLDER
        self._most = most

    def take(self) -> bool:
        """Take a slot until this process ends; False where all are taken. Raises SettingError, DatabaseError."""
        try:
            make_private_folder(self._folder.parent)
            self._folder.mkdir(mode=0o700, exist_ok=True)
            return any(self._lock(self._folder / f"{self._name}-{number}.lock") for number in range(1, self._most + 1))
        except OSError as error:
            is_full = error.errno in DISK_IS_FULL
            mend = "free some space" if is_full else "make it writable for their user"
            raise (DatabaseError if is_full else SettingError)(
                f"{error.filename or self._folder} cannot be used ({error.strerror}): workers are counted there; "
                f"{mend}, or count none with --slots 0"
            ) from None

    def _lock(self, path: Path) -> bool:
        # A lock of the open file, not of the process: a process loses its lock as soon as one of its tasks opens and
        # closes the file, as a backup of the whole folder does.
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(file)
            if error.errno in IN_USE:
                return False
            raise
        _taken.append(file)  # open, and so locked, until the process ends
        return True
