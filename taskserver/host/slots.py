"""Slots limit the number of running workers. Each worker locks one; the kernel frees the lock even after SIGKILL.

Cron starts a worker each minute, even if the workers before still run.
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


def _close_in_child() -> None:
    """Close the lock files in a forked child, so that the slot is free when its worker ends."""
    while _taken:
        with suppress(OSError):  # a task may have closed it
            os.close(_taken.pop())


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_close_in_child)


class Slots:
    """The slots for workers of one database, table and groups on this host.

    One successor may wait for each slot. It holds a second lock, which the worker in the slot sees. The methods raise
    OSError if a file cannot be used.
    """

    def __init__(self, folder: Path, host: str, queue: str, groups: str, most: int) -> None:
        """`queue` is database and table, `folder` the program's, `most` the number of slots."""
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

    def take_or_wait(self, wait: Callable[[float], bool]) -> bool:
        """Take a slot, or wait as a successor until a worker leaves its slot.

        False if all slots have successors, or if `wait`, which sleeps for some seconds, returns False.
        """
        self._make_folder()
        for _ in range(TRIES):  # a successor may not know yet that its slot is free
            if any(map(self._take_without_successor, self._numbers)):
                return True
            # Oldest first: workers of one cron line must not wait for the slot that their line just took.
            for number in sorted(self._numbers, key=self._taken_at):
                lock = self._lock(number, "next")
                if lock is not None:
                    return self._wait_as_successor(number, lock, wait)
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
        except OSError:  # the folder was deleted
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
        os.utime(lock)  # for _taken_at
        return True

    def _take_without_successor(self, number: int) -> bool:
        # Look only from inside the slot: else a worker might take us for its successor.
        if not self._take(number):
            return False
        if self.has_successor():
            self.leave()
            return False
        return True

    def _take_from_successor(self, number: int) -> bool:
        """Take a free slot whose successor is suspended, for example by SIGSTOP."""
        if not self._take(number):
            return False
        self._path(number, "next").unlink(missing_ok=True)  # so that no worker makes room for the suspended one
        return True

    def _wait_as_successor(self, number: int, lock: int, wait: Callable[[float], bool]) -> bool:
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
        """Lock a file. Returns its descriptor, or None if another process has the lock."""
        # flock, not a POSIX lock: a process loses that when one of its tasks opens and closes the file, e.g. for a
        # backup of the folder.
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
