"""Prints each error at most once an hour: cron starts a worker each minute, and mails what it prints.

Each error has an empty file, named by a checksum, with the time of the last mail. Empty files work even on a full disk.
One more marks an outage of the database, so that its end is reported.
"""

from __future__ import annotations

import os
import re
import time
from binascii import crc32
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from ..errors import DatabaseError, Unavailable
from ..messages.text import printable
from .process_identity import host_name

AN_HOUR = 3600.0
MAX_SILENT_SECONDS = 8 * 86_400.0
"""Files of programs that were silent for longer are deleted."""
OUTAGE = "outage"
LONG_SECONDS = 100.0
"""The end of a shorter outage is not reported."""
OVER = "the database can be used again"


Write = Callable[[str], object]


def folder_for(deployment: Path) -> Path:
    """The folder for the files of a deployment; in the home folder if var/ belongs to another account."""
    var = deployment / "var"
    if os.path.isdir(var) and not os.access(var, os.W_OK | os.X_OK):
        return Path(os.path.expanduser("~"), f".taskserver-{crc32(bytes(deployment)):08x}")
    return var / "outages"


def kind_of(error: Exception) -> str:
    """The same for errors that are reported once: without numbers, and one for all ways to be away."""
    if isinstance(error, Unavailable):
        return "away"
    return re.sub("[^ ]*[0-9][^ ]*", "", str(error)) if isinstance(error, DatabaseError) else str(error)


class OnceAnHour:
    """What a program of one deployment has reported on this host."""

    def __init__(self, deployment: Path, *who: str) -> None:
        """`who` names the program, and its line of the crontab if each line reports by itself."""
        self._folder = folder_for(deployment)
        # With the host's name: several hosts may share a home folder.
        self._name = _checksum(host_name(), *who)

    def report(self, error: Exception, write: Write) -> None:
        """Report an error in one line; one of the database begins an outage, whose end is reported."""
        self.write_once(printable(str(error)), kind_of(error), write, isinstance(error, DatabaseError))

    def write_once(self, words: str, kind: str, write: Write, is_outage: bool = False) -> None:
        """Write the words, unless this kind was written within the hour. If `write` raises, it does not count.

        A person at a terminal always gets them, and so does everybody if the files can't be written.
        """
        if not os.isatty(2):
            with suppress(OSError):
                if not self._note(kind):
                    return
                if is_outage and not self._path(OUTAGE).exists():
                    self._path(OUTAGE).touch(0o600)
                words = f"{words} (said once an hour)"
        try:
            write(words)
        except OSError:
            for path in (self._path_of(kind), self._path(OUTAGE)):
                with suppress(OSError):
                    path.unlink()
            raise

    def end_outage(self) -> bool:
        """End an outage, as the database answered. True if it was long and reported, but for one process only."""
        is_news = False
        with suppress(OSError):
            began_at = self._path(OUTAGE).stat().st_mtime
            self._path(OUTAGE).unlink()
            is_news = time.time() - began_at >= LONG_SECONDS
        with suppress(OSError):
            self._clean_up()
        return is_news

    def _note(self, kind: str) -> bool:
        """Record that this kind is written now; False if it was within the hour. Raises OSError."""
        self._folder.mkdir(mode=0o700, exist_ok=True)  # not var/ itself: without it this may be no deployment
        path, now = self._path_of(kind), time.time()
        try:
            path.touch(0o600, exist_ok=False)
        except FileExistsError:
            if 0 <= now - path.stat().st_mtime < AN_HOUR:
                return False
        os.utime(path, (now, now))  # a network file system has its own clock
        return True

    def _clean_up(self) -> None:
        """Delete stale files, and the folder with the last one. Raises OSError."""
        now = time.time()
        for path in self._folder.iterdir():
            if now - path.stat().st_mtime >= (AN_HOUR if path.stem == self._name else MAX_SILENT_SECONDS):
                path.unlink()
        self._folder.rmdir()

    def _path_of(self, kind: str) -> Path:
        return self._path(_checksum(kind))

    def _path(self, name: str) -> Path:
        return self._folder / f"{self._name}.{name}"


def _checksum(*words: str) -> str:
    return f"{crc32(repr(words).encode()):08x}"
