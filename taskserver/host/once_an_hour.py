"""The same words at most once an hour: cron starts a worker each minute, and mails what it says.

An empty file stands for each error, named by a checksum; its time is that of the last mail. Empty files can be made on
a full disk, too. One more stands for an outage of the database, so that its end is said.
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
"""A program that has said nothing for so long is another one by now."""
OUTAGE = "outage"
LONG_SECONDS = 100.0
"""The end of an outage that was over sooner is worth no mail."""
OVER = "the database can be used again"


Write = Callable[[str], object]


def place_for(deployment: Path) -> Path:
    """The folder for the files of a deployment: at home if another account has its var/."""
    var = deployment / "var"
    if os.path.isdir(var) and not os.access(var, os.W_OK | os.X_OK):
        return Path(os.path.expanduser("~"), f".taskserver-{crc32(bytes(deployment)):08x}")
    return var / "outages"


def kind_of(error: Exception) -> str:
    """What is the same in errors that are said together: a database may be away in many ways, and name numbers."""
    if isinstance(error, Unavailable):
        return "away"
    return re.sub("[^ ]*[0-9][^ ]*", "", str(error)) if isinstance(error, DatabaseError) else str(error)


class OnceAnHour:
    """What a program has said on this host of one deployment."""

    def __init__(self, deployment: Path, *who: str) -> None:
        """`who` names the program, and its line if each is to say it itself."""
        self._folder = place_for(deployment)
        # With the host's name: several hosts may share a home folder.
        self._name = _checksum(host_name(), *who)

    def report(self, error: Exception, write: Write) -> None:
        """Say an error in one line; one of the database begins an outage, so that its end is said."""
        self.say(printable(str(error)), kind_of(error), write, isinstance(error, DatabaseError))

    def say(self, words: str, kind: str, write: Write, is_outage: bool = False) -> None:
        """Have the words written, unless this kind was said within the hour; where `write` raises, it was not said.

        A person at a terminal gets them each time, and so does everybody if there is no place for the files.
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

    def is_over(self) -> bool:
        """Note that the database was there. Whether a long outage, which was said, ends here: for one process only."""
        is_news = False
        with suppress(OSError):
            began_at = self._path(OUTAGE).stat().st_mtime
            self._path(OUTAGE).unlink()
            is_news = time.time() - began_at >= LONG_SECONDS
        with suppress(OSError):
            self._clean_up()
        return is_news

    def _note(self, kind: str) -> bool:
        """Note that this kind is said now; False if that was within the hour. Raises OSError."""
        self._folder.mkdir(mode=0o700, exist_ok=True)  # not var/ itself: a folder without it may be no deployment
        path, now = self._path_of(kind), time.time()
        try:
            path.touch(0o600, exist_ok=False)
        except FileExistsError:
            if 0 <= now - path.stat().st_mtime < AN_HOUR:
                return False
        os.utime(path, (now, now))  # a network file system has a clock of its own
        return True

    def _clean_up(self) -> None:
        """Delete the files that no longer count, and the folder with the last one. Raises OSError."""
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
