"""Slots, which limit the workers at work at once: each worker holds one by a kernel lock, which even SIGKILL frees.

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

    For each slot one successor may wait, which holds a lock of its own meanwhile. The worker in the slot looks whether
    somebody holds that lock.
    """

    def __init__(self, folder: Path, host: str, queue: str, groups: str, most: int) -> None:
        """`queue` names database and table, `folder` is the program's, `most` is the number of slots."""
        # With the host's name: several hosts may share a home folder.
        self._name = f"{crc32(repr((host, queue, groups)).encode()):08x}"
        self._folder = folder / FOLDER
        self._most = most
        self._slot = 0
        """The number of the slot that this process has; they count from 1."""
        self._lock_of_slot = -1
        self._heeds_successor = False
        """Whether this worker makes room for a successor. A process that waited while the slot was free, and did not
        take it, stands still, as by SIGSTOP: nobody makes room for that one."""

    def take(self) -> bool:
        """Take a slot until this process ends; False where all are taken. Raises SettingError, DatabaseError."""
        with self._explained():
            self._make_folder()
            return any(self._take(number) for number in range(1, self._most + 1))

    def take_or_succeed(self, wait: Callable[[float], bool]) -> bool:
        """Take a slot, or wait for one as its successor until its worker leaves it.

        False where each slot has a successor already, and once `wait`, which waits for so many seconds, says that the
        wait is to end. Raises as `take` does.
        """
        with self._explained():
            self._make_folder()
            if any(self._take_alone(number, wait) for number in range(1, self._most + 1)):
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
                self._heeds_successor = True
            finally:
                self._unlock(lock)
        return True

    def leave(self) -> None:
        """Leave the slot before the process ends."""
        if self._lock_of_slot in _taken:
            self._unlock(self._lock_of_slot)

    def has_successor(self) -> bool:
        """Whether another worker waits for the slot of this one; False where that cannot be found out."""
        try:
            lock = self._lock(self._path(self._slot, "next"))
        except OSError:
            return False
        if lock is not None:
            self._unlock(lock)
            self._heeds_successor = True
        return lock is None and self._heeds_successor

    def _make_folder(self) -> None:
        make_private_folder(self._folder.parent)
        self._folder.mkdir(mode=0o700, exist_ok=True)

    def _take(self, number: int) -> bool:
        lock = self._lock(self._path(number, "lock"))
        if lock is None:
            return False
        self._slot, self._lock_of_slot = number, lock  # the file stays open, and so locked, until the process ends
        os.utime(lock)  # _oldest_first reads since when the slot is taken
        return True

    def _take_alone(self, number: int, wait: Callable[[float], bool]) -> bool:
        """Take a free slot. A process that waits for it goes first, unless it stands still."""
        for is_last in (False, False, True):
            if not self._take(number):
                return False
            # Only while it has the slot does a newcomer look: no other worker is to take it for its successor.
            waiting = self._lock(self._path(number, "next"))
            self._heeds_successor = waiting is not None
            if waiting is not None:
                self._unlock(waiting)
            if waiting is not None or is_last:
                return True
            self.leave()
            if not wait(2 * SUCCESSOR_LOOKS_SECONDS):
                return False
        return False

    def _become_successor(self, wait: Callable[[float], bool]) -> tuple[int, int] | None:
        """The number of a slot whose successor this process is now, and the lock that says so; None without one."""
        for _ in range(SUCCESSOR_TRIES):  # the worker of a slot locks the file, too, for the instant of its look
            for number in self._oldest_first():
                lock = self._lock(self._path(number, "next"))
                if lock is not None:
                    return number, lock
            if not wait(SUCCESSOR_LOOKS_SECONDS):
                break
        return None

    def _oldest_first(self) -> list[int]:
        """The numbers of the slots, the one first that was taken first.

        The workers of one line come one after the other: none is to wait for the slot that its line has just taken.
        """

        def taken_at(number: int) -> float:
            try:
                return self._path(number, "lock").stat().st_mtime
            except OSError:
                return 0.0

        return sorted(range(1, self._most + 1), key=taken_at)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            is_full = error.errno in DISK_IS_FULL
            mend = "free some space" if is_full else "make it writable for their user"
            raise (DatabaseError if is_full else SettingError)(
                f"{error.filename or self._folder} cannot be used ({error.strerror}): workers are counted there; "
                f"{mend}, or count none with --slots 0"
            ) from None

    def _path(self, number: int, kind: str) -> Path:
        return self._folder / f"{self._name}-{number}.{kind}"

    def _lock(self, path: Path) -> int | None:
        """Lock a file: its descriptor, or None where another process has the lock. Raises OSError."""
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
