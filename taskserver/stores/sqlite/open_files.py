"""The files that a connection has open: whether they are still those of its path.

A task may close descriptors that are not its own: the next file that it opens has the number that SQLite writes to.
When it opens the database's file by other means than SQLite, closing it drops this process's locks, and another process
removes the log that is in use here. And a person may put another file in the place.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def identity_of(file: str | Path | int) -> tuple[int, int] | None:
    """What tells a file, by its path or descriptor, from all others; None where there is none."""
    try:
        found = os.stat(file)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def descriptors_of(path: Path) -> set[int]:
    """The descriptors of this process that are open on a file; none where the system does not list them."""
    database = identity_of(path)
    with suppress(OSError):
        return {int(name) for name in os.listdir("/dev/fd") if identity_of(int(name)) == database}
    return set()


class OpenFiles:
    """The database's file, its log, and the descriptors that its connection has of it."""

    def __init__(self, path: Path, descriptors: set[int]) -> None:
        self.database = identity_of(path)
        files: list[str | Path | int] = [path, f"{path}-wal", *descriptors]
        found = {file: identity_of(file) for file in files}
        self._known = {file: identity for file, identity in found.items() if identity is not None}

    @property
    def are_others(self) -> bool:
        """Whether one of them is gone, or another file has its place."""
        return any(identity_of(file) != identity for file, identity in self._known.items())
