"""Slots, which limit the workers at work at once: each holds one by a lock of the kernel, which even SIGKILL frees.

A crontab starts a worker each minute, whether or not the workers of the minutes before have ended.
"""

from __future__ import annotations

import errno
import fcntl
import os
from binascii import crc32
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ..errors import DatabaseError, SettingError
from .files import make_private_folder

IN_USE = frozenset({errno.EACCES, errno.EAGAIN})
DISK_IS_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
FOLDER = Path("var", "slots")

SUCCESSOR_TRIES = 5
SUCCESSOR_LOOKS_SECONDS = 0.05

_taken: list[int] = []
"""The open lock files that this process holds."""


def _leave_to_the_parent() -> None:
    """Close the lock files in a forked child: a slot is free once its worker ends, whatever its tasks leave behind."""
    while _taken:
        with suppress(OSError):  # a task may have closed it
            os.close(_taken.pop())


os.register_at_fork(after_in_child=_leave_to_the_parent)


class Slots:
    """The slots for workers of one database, table and groups on this host.

    For each slot one successor may wait, which holds a second lock meanwhile: the worker in the slot looks for that.
    """

    def __init__(self, folder: Path, host: str, queue: str, groups: str, most: int) -> None:
        """`queue` names database and table, `folder` is the program's, `most` is the number of slots."""
        # With the host's name: several hosts may share a home folder.
        self._name = f"{crc32(repr((host, queue, groups)).encode()):08x}"
        self._folder = folder / FOLDER
        self._numbers = range(1, most + 1)
        self._slot = 0
        """The number of this process's slot."""
        self._lock_of_slot = -1

    def take(self) -> bool:
        """Take a slot until this process ends; False if all are taken. Raises SettingError, DatabaseError."""
        with self._explained():
            self._make_folder()
            return any(map(self._take, self._numbers))

    def take_or_succeed(self, wait: Callable[[float], bool]) -> bool:
        """Take a slot, or wait for one as its successor until its worker leaves it.

        False if each slot has a successor already, or when `wait`, which waits for so many seconds, returns False.
        Raises like `take`.
        """
        with self._explained():
            self._make_folder()
            if any(self._take_free(number, wait) for number in self._numbers):
                return True
            successor = self._become_successor(wait)
            if successor is None:
                return False
            number, lock = successor
            try:
                while not self._take(number):
                    if not wait(SUCCESSOR_LOOKS_SECONDS):
                        return False
                    self._make_folder()  # somebody may have deleted it
            finally:
                self._unlock(lock)
        return True

    def leave(self) -> None:
        """Leave the slot before the process ends."""
        if self._lock_of_slot in _taken:
            self._unlock(self._lock_of_slot)

    def has_successor(self) -> bool:
        """Whether another worker waits for the slot of this one; False if that is unknown."""
        try:
            lock = self._lock(self._path(self._slot, "next"))
        except OSError:
            return False
        if lock is not None:
            self._unlock(lock)
        return lock is None

    def _make_folder(self) -> None:
        make_private_folder(self._folder.parent)
        self._folder.mkdir(mode=0o700, exist_ok=True)

    def _take(self, number: int) -> bool:
        lock = self._lock(self._path(number, "lock"))
        if lock is None:
            return False
        self._slot, self._lock_of_slot = number, lock  # the file stays open, and so locked, until the process ends
        os.utime(lock)  # _taken_at reads since when the slot is taken
        return True

    def _take_free(self, number: int, wait: Callable[[float], bool]) -> bool:
        """Take a free slot, unless a successor takes it: a process that waits for it goes first."""
        if not self._take(number):
            return False
        # Only in the slot does a newcomer look: no other worker must take it for its successor.
        if self.has_successor():
            self.leave()
            if not (wait(4 * SUCCESSOR_LOOKS_SECONDS) and self._take(number)):
                return False
            if self.has_successor():
                # It is suspended, as by SIGSTOP. With its file gone no worker leaves for it, and another may wait.
                self._path(number, "next").unlink(missing_ok=True)
        return True

    def _become_successor(self, wait: Callable[[float], bool]) -> tuple[int, int] | None:
        """The number of a slot whose successor this process is now, and the lock that says so; None without one."""
        for _ in range(SUCCESSOR_TRIES):  # the worker of a slot locks the file, too, for the instant of its look
            # The longest taken first: workers of one cron line must not wait for the slot that their line just took.
            for number in sorted(self._numbers, key=self._taken_at):
                lock = self._lock(self._path(number, "next"))
                if lock is not None:
                    return number, lock
            if not wait(SUCCESSOR_LOOKS_SECONDS):
                break
        return None

    def _taken_at(self, number: int) -> float:
        try:
            return self._path(number, "lock").stat().st_mtime
        except OSError:
            return 0.0

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            is_full = error.errno in DISK_IS_FULL
            fix = "free some space" if is_full else "make it writable for their user"
            raise (DatabaseError if is_full else SettingError)(
                f"{error.filename or self._folder} cannot be used ({error.strerror}): workers are counted there; "
                f"{fix}, or count none with --slots 0"
            ) from None

    def _path(self, number: int, kind: str) -> Path:
        return self._folder / f"{self._name}-{number}.{kind}"

    def _lock(self, path: Path) -> int | None:
        """Lock a file: its descriptor, or None if another process has the lock. Raises OSError."""
        # A lock of the open file, not of the process: a process loses its lock as soon as one of its tasks opens and
        # closes the file, as a backup of the whole folder does.
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(file)
            if error.errno in IN_USE:
                return None
            raise
        _taken.append(file)
        return file

    def _unlock(self, file: int) -> None:
        _taken.remove(file)
        with suppress(OSError):  # a task may have closed it
            fcntl.flock(file, fcntl.LOCK_UN)  # a child that a thread forked just now has the same lock
            os.close(file)
