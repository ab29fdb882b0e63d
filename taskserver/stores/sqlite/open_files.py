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
    """The database's file, its log, and this process's descriptors of the file as a connection has been opened.

    Which of these descriptors is the connection's own, nobody tells: others may belong to other threads, which close
    theirs. But as long as it is open, one of them is.
    """

    def __init__(self, path: Path) -> None:
        self.database = identity_of(path)
        files = {str(file): identity_of(file) for file in (path, f"{path}-wal")}
        self._files = {file: identity for file, identity in files.items() if identity is not None}
        self._descriptors: list[int] = []
        with suppress(OSError):  # the system does not list them
            self._descriptors = [number for number in map(int, os.listdir("/dev/fd")) if self._is_open(number)]

    @property
    def are_others(self) -> bool:
        """Whether one of them is gone, or another file has its place."""
        if any(identity_of(file, identity) != identity for file, identity in self._files.items()):
            return True
        return bool(self._descriptors) and not any(map(self._is_open, self._descriptors))

    def _is_open(self, descriptor: int) -> bool:
        return identity_of(descriptor) == self.database
