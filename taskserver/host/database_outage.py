"""An outage of the database as the workers of this host meet it: told once an hour, and once more when it is over.

Cron starts a worker each minute, and mails whatever that one says. A file for each queue holds since when its database
is away, and when that was told last; it is as old as the last failure. Where all goes well there is no file.
"""

from __future__ import annotations

import fcntl
import os
import time
from binascii import crc32
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from .private_folder import make_private_folder

TELL_EVERY_SECONDS = 3600.0
OVER_AFTER_SECONDS = 150.0
"""So long no worker has failed, where one succeeds: a server without a free connection turns away one start in two."""


class _Told(NamedTuple):
    """What a file holds; instants are seconds since 1970."""

    began_at: float
    told_at: float
    kind: str


class DatabaseOutage:
    """The outage of one queue's database on this host."""

    def __init__(self, folder: Path, host: str, queue: str) -> None:
        """`queue` names database and table, `folder` is for these files alone."""
        # With the host's name: several hosts may share a home folder.
        self._path = folder / f"{crc32(repr((host, queue)).encode()):08x}"

    def fail(self, kind: str) -> float | None:
        """Note a failure: for how many seconds the outage has lasted, where it is to be told now; else None.

        A failure of another kind is told at once. Raises OSError.
        """
        make_private_folder(self._path.parents[1])
        self._path.parent.mkdir(mode=0o700, exist_ok=True)
        with open(os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600), "r+", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # the workers of one line fail together
            now, told = time.time(), _told(file.read())
            os.utime(self._path)
            if told is not None and told.kind == kind and told.told_at <= now < told.told_at + TELL_EVERY_SECONDS:
                return None
            began_at = min(told.began_at, now) if told is not None else now
            file.seek(0)
            file.truncate()
            file.write(f"{int(began_at)} {int(now)} {kind}\n")
        return now - began_at

    def succeed(self) -> float | None:
        """Note that the database was there: for how many seconds it had been away, where this ends the outage."""
        try:
            told, failed_at = _told(self._path.read_text(encoding="utf-8")), self._path.stat().st_mtime
            if 0 <= time.time() - failed_at < OVER_AFTER_SECONDS:
                return None
            self._path.unlink()  # by one worker alone
        except OSError:
            return None
        with suppress(OSError):  # that of another queue is there
            self._path.parent.rmdir()
        return None if told is None else max(failed_at - told.began_at, 0.0)


def _told(text: str) -> _Told | None:
    """What the text of a file says; None of a new file, and of one that was cut off."""
    with suppress(ValueError):
        began_at, told_at, kind = text.split()
        return _Told(float(began_at), float(told_at), kind)
    return None
