"""The files that a connection has open: whether they are still those of its path.

A task may close descriptors that are not its own: the next file that it opens has the number that SQLite writes to.
When it opens the database's file by other means than SQLite, closing it drops this process's locks, and another process
removes the log that is in use here. And a person may put another file in the place.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

Identity = tuple[int, int]
"""What tells a file from all others."""


def identity_of(file: str | Path | int, if_unseen: Identity | None = None) -> Identity | None:
    """The identity of a file, by its path or descriptor; None where there is none.

    `if_unseen` is for one that this process may not look at, as once a task has changed rights or accounts.
    """
    try:
        found = os.stat(file)
    except PermissionError:
        return if_unseen
    except OSError:
        return None
    return found.st_dev, found.st_ino


class OpenFiles:
    """The database's file and its log, and this process's descriptors of each as a connection has been opened.

    Which of these descriptors are the connection's own, nobody tells: others may belong to other threads, which close
    theirs. But as long as it is open, one of them is.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        real = os.path.realpath(path)  # a link's log lies beside the file that it leads to
        self.database = identity_of(real)
        files = {file: identity_of(file) for file in (str(path), f"{real}-wal")}
        self._files = {file: identity for file, identity in files.items() if identity is not None}
        opened = descriptors()
        self._descriptors = {
            identity: [number for number, other in opened.items() if other == identity]
            for identity in self._files.values()
        }
        self._names = [{number: _name_of(number) for number in numbers} for numbers in self._descriptors.values()]

    @property
    def are_others(self) -> bool:
        """Whether one of them is gone, or another file has its place."""
        if self._have_their_names:
            return False
        return self.were_closed or any(
            identity_of(file, identity) != identity for file, identity in self._files.items()
        )

    @property
    def _have_their_names(self) -> bool:
        """Whether descriptors have the names that they were opened by: a file that is moved or deleted has another.

        To look at the log itself would make each commit a third slower: Linux gives a file that was looked at exact
        times, and has to write these.
        """
        return identity_of(self._path, self.database) == self.database and all(
            any(name is not None and _name_of(number) == name for number, name in names.items())
            for names in self._names
        )

    @property
    def were_closed(self) -> bool:
        """Whether none of this process's descriptors leads to one of them any more."""
        return any(
            numbers and not any(identity_of(number) == identity for number in numbers)
            for identity, numbers in self._descriptors.items()
        )


def _name_of(descriptor: int) -> str | None:
    """The name of an open file; None where the system does not tell."""
    try:
        return os.readlink(f"/dev/fd/{descriptor}")
    except OSError:
        return None


def descriptors() -> dict[int, Identity | None]:
    """The files of this process's descriptors; empty where the system does not list them, as at their limit.

    A part of them would not do: the connection's own may be missing.
    """
    with suppress(OSError):
        return {number: identity_of(number) for number in map(int, os.listdir("/dev/fd"))}
    return {}
