"""Slots, which limit the workers at work at once: each holds one by a lock of the kernel, which even SIGKILL frees.

A crontab starts a worker each minute, whether or not the workers of the minutes before have ended.
"""

from __future__ import annotations

import os
from binascii import crc32
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from .files import make_private_folder

FOLDER = Path("var", "slots")

TRIES = 5
LOOK_FOR_SLOT_SECONDS = 0.05

_taken: list[int] = []
"""The open lock files that this process holds."""


def _leave_to_the_parent() -> None:
    """Close the lock files in a forked child: a slot is free once its worker ends, whatever its tasks leave behind."""
    while _taken:
        with suppress(OSError):  # a task may have closed it
            os.close(_taken.pop())


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_leave_to_the_parent)


class Slots:
    """The slots for workers of one database, table and groups on this host.

    For each slot one successor may wait, which holds a second lock meanwhile: the worker in the slot looks for that.
    The methods raise OSError if a file cannot be used.
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
        """Take a slot until this process ends; False if all are taken."""
        self._make_folder()
        return any(map(self._take, self._numbers))

    def take_or_succeed(self, wait: Callable[[float], bool]) -> bool:
        """Take a slot, or wait for one as its successor until its worker leaves it.

        False if each slot has a successor already, or when `wait`, which waits for so many seconds, returns False.
        """
        self._make_folder()
        for _ in range(TRIES):  # a successor may not have seen yet that its slot is free
            if any(map(self._take_without_successor, self._numbers)):
                return True
            # The longest taken first: workers of one cron line must not wait for the slot that their line just took.
            for number in sorted(self._numbers, key=self._taken_at):
                lock = self._lock(number, "next")
                if lock is not None:
                    return self._succeed(number, lock, wait)
            if not wait(LOOK_FOR_SLOT_SECONDS):
                return False
        return any(map(self._take_from_successor, self._numbers))

    def leave(self) -> None:
        """Leave the slot before the process ends."""
        if self._lock_of_slot in _taken:
            self._unlock(self._lock_of_slot)

    def has_successor(self) -> bool:
        """Whether another worker waits for the slot of this one; False if that is unknown."""
        try:
            lock = self._lock(self._slot, "next")
        except OSError:  # somebody has deleted the folder
            return False
        if lock is not None:
            self._unlock(lock)
        return lock is None

    def _make_folder(self) -> None:
        make_private_folder(self._folder.parent)
        self._folder.mkdir(mode=0o700, exist_ok=True)

    def _take(self, number: int) -> bool:
        lock = self._lock(number, "lock")
        if lock is None:
            return False
        self._slot, self._lock_of_slot = number, lock  # the file stays open, and so locked, until the process ends
        os.utime(lock)  # _taken_at reads since when the slot is taken
        return True

    def _take_without_successor(self, number: int) -> bool:
        # Only in the slot does a newcomer look: no other worker must take it for its successor.
        if not self._take(number):
            return False
        if self.has_successor():
            self.leave()
            return False
        return True

    def _take_from_successor(self, number: int) -> bool:
        """Take a free slot whose successor is suspended, as by SIGSTOP, and so does not take it."""
        if not self._take(number):
            return False
        self._path(number, "next").unlink(missing_ok=True)  # without it no worker leaves for the suspended one
        return True

    def _succeed(self, number: int, lock: int, wait: Callable[[float], bool]) -> bool:
        try:
            while not self._take(number):
                if not wait(LOOK_FOR_SLOT_SECONDS):
                    return False
                self._make_folder()  # an upload may have deleted it
        finally:
            self._unlock(lock)
        return True

    def _taken_at(self, number: int) -> float:
        return self._path(number, "lock").stat().st_mtime

    def _path(self, number: int, kind: str) -> Path:
        return self._folder / f"{self._name}-{number}.{kind}"

    def _lock(self, number: int, kind: str) -> int | None:
        """Lock a file: its descriptor, or None if another process has the lock."""
        # A lock of the open file, not of the process: a process loses its lock as soon as one of its tasks opens and
        # closes the file, as a backup of the whole folder does.
        import fcntl  # Windows has none

        file = os.open(self._path(number, kind), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            return None
        _taken.append(file)
        return file

    def _unlock(self, file: int) -> None:
        _taken.remove(file)
        with suppress(OSError):  # a task may have closed it
            os.close(file)
