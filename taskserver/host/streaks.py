"""How often something failed in a row on this host, across processes: a file for each name, a byte for each failure.

An appended byte needs no lock, and the place at which it lands tells each writer its own count. Where nothing fails
there is no file.
"""

from __future__ import annotations

import os
import socket
import time
from binascii import crc32
from contextlib import suppress
from pathlib import Path

from .private_folder import make_private_folder

FOLDER = Path("var", "failing")
LOOK_EVERY_SECONDS = 1.0
MAX_NAMES = 500
"""Whoever adds tasks may choose names, and must not fill the folder."""


class Streaks:
    """The streaks of one queue on this host; a name is of any text."""

    def __init__(self, folder: Path, queue: str) -> None:
        """`queue` names database and table, `folder` is the program's."""
        self._folder = folder / FOLDER
        self._queue = queue
        self._looked_at = float("-inf")
        self._files: frozenset[str] = frozenset()
        """The files that were there at the last look, and those made since."""

    def add(self, name: str, most: int) -> int:
        """Count a failure; how often the name has failed in a row. Nothing is counted beyond `most`: 0 then.

        Raises OSError.
        """
        self._look()
        path = self._path(name)
        if path.name not in self._files:
            if len(self._files) >= MAX_NAMES:
                return 0
            make_private_folder(self._folder.parent)
            self._folder.mkdir(mode=0o700, exist_ok=True)
            self._files |= {path.name}
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            if os.fstat(file).st_size >= most:
                return 0
            os.write(file, b".")
            count = os.lseek(file, 0, os.SEEK_CUR)
            return count if count <= most else 0
        finally:
            os.close(file)

    def end(self, name: str) -> bool:
        """End a name's streak; whether there was one. Costs next to nothing where nothing fails."""
        self._look()
        if not self._files:
            return False
        path = self._path(name)
        if path.name not in self._files:
            return False
        self._files -= {path.name}
        with suppress(OSError):  # another worker ended it
            path.unlink()
            return True
        return False

    def _path(self, name: str) -> Path:
        # With the host's name: several hosts may share a home folder.
        return self._folder / f"{crc32(repr((socket.gethostname(), self._queue, name)).encode()):08x}"

    def _look(self) -> None:
        if time.monotonic() - self._looked_at < LOOK_EVERY_SECONDS:
            return
        self._looked_at = time.monotonic()
        try:
            self._files = frozenset(os.listdir(self._folder))
        except OSError:  # nothing has failed yet
            self._files = frozenset()
