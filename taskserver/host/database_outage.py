"""An outage of the database as the workers of this host meet it: told once an hour, and its end once.

Cron starts a worker each minute, and mails whatever that one says. What is known stands in the times of empty files,
which can be made on a full disk, too: since when a queue's database is away, and when each kind of error was told last.
"""

from __future__ import annotations

import os
import re
import time
from binascii import crc32
from contextlib import suppress
from pathlib import Path

from .files import make_private_folder

TELL_EVERY_SECONDS = 3600.0
TELL_END_SECONDS = 100.0
"""The end of an outage that was over sooner is worth no mail."""
FORGOTTEN_SECONDS = 8 * 86_400.0
"""A queue of which nobody has heard for so long has another address by now."""
MAX_FILES = 20
"""An error may have words of its own each time: then all others are told together."""
BEGAN, MORE = "began", "more"
_FORM = r"[0-9a-f]{8}\.[0-9a-z]+"


class DatabaseOutage:
    """The outage of one queue's database on this host."""

    def __init__(self, folder: Path, host: str, queue: str) -> None:
        """`queue` names database and table, `folder` is for these files alone."""
        # With the host's name: several hosts may share a home folder.
        self._folder = folder
        self._name = f"{crc32(repr((host, queue)).encode()):08x}"

    def fail(self, kind: str) -> float | None:
        """Note a failure: for how many seconds the outage has lasted, where it is to be told now; else None.

        Each kind is told once an hour; in the hour after the end of an outage, that goes for the next one, too: a
        server without free connections turns away one start in two. Raises OSError.
        """
        make_private_folder(self._folder.parent)
        self._folder.mkdir(mode=0o700, exist_ok=True)
        now = time.time()
        began_at = min(_made(self._path(BEGAN), now), now)
        if not self._path(kind).exists() and len(self._own_files()) >= MAX_FILES:
            kind = MORE
        told_at = _made(self._path(kind), now)
        if told_at != now:
            if 0 <= now - told_at < TELL_EVERY_SECONDS:
                return None
            os.utime(self._path(kind), (now, now))
        return now - began_at

    def was_told(self, kind: str) -> bool:
        """Whether this kind was told within the hour."""
        with suppress(OSError):
            return 0 <= time.time() - self._path(kind).stat().st_mtime < TELL_EVERY_SECONDS
        return False

    def succeed(self) -> float | None:
        """Note that the database was there: how many seconds ago the outage began that ends here, if that is news."""
        now, began_at, was_told = time.time(), float("inf"), False
        with suppress(OSError):
            began_at = self._path(BEGAN).stat().st_mtime
            self._path(BEGAN).unlink()  # by one worker alone
            was_told = any(path.stat().st_mtime >= began_at for path in self._own_files())
        self._clean_up(now)
        return now - began_at if was_told and now - began_at >= TELL_END_SECONDS else None

    def forget(self, kind: str) -> None:
        """Forget that this kind was told: nobody heard it."""
        with suppress(OSError):
            self._path(kind).unlink()

    def _own_files(self) -> list[Path]:
        return [self._folder / name for name in _names_in(self._folder) if name.startswith(f"{self._name}.")]

    def _clean_up(self, now: float) -> None:
        files = [self._folder / name for name in _names_in(self._folder) if re.fullmatch(_FORM, name)]
        for path in files:
            is_own = path.stem == self._name and path.suffix != f".{BEGAN}"
            with suppress(OSError):
                age = now - path.stat().st_mtime
                # Another host, which has this folder, too, may have a clock that is ahead.
                if age >= FORGOTTEN_SECONDS or (is_own and not 0 <= age < TELL_EVERY_SECONDS):
                    path.unlink()
        with suppress(OSError):  # that of another queue is there
            self._folder.rmdir()

    def _path(self, kind: str) -> Path:
        return self._folder / f"{self._name}.{kind}"


def _names_in(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _made(path: Path, now: float) -> float:
    """The time of a file, which is made with the time `now` where it is not there. Raises OSError."""
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:
        return path.stat().st_mtime
    os.utime(path, (now, now))  # a network file system has a clock of its own
    return now
