"""The files of the page in var/page/: its secret, counts, sign-outs, and a log of what visitors did."""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from ..host.files import make_private_folder, write_atomically

SECRET_CHARACTERS = 64
MAX_LOG_BYTES = 1_000_000
FORGOTTEN_SECONDS = 2 * 86_400.0
"""Older than any valid session."""
PLACE = Path("var", "page")


class PrivateFiles:
    """The page's own folder. All methods raise OSError."""

    def __init__(self, folder: Path) -> None:
        """`folder` is the deployment's. Makes the page's folder."""
        self.mark_of_deployment = hashlib.sha256(os.fsencode(folder)).hexdigest()[:6]
        """For names of cookies, as several deployments may share one host."""
        self._folder = folder / PLACE
        make_private_folder(folder / "var")
        self._folder.mkdir(mode=0o700, exist_ok=True)

    def secret(self) -> bytes:
        """The page's secret, created once, and again if a full disk truncated it."""
        path = self._folder / "secret"
        if not path.exists() or path.stat().st_size != SECRET_CHARACTERS:
            # This may replace the secret of another process, whose visitor signs in again.
            write_atomically(path, secrets.token_hex(SECRET_CHARACTERS // 2), 0o600)
        return path.read_bytes()

    @contextmanager
    def locked(self, name: str) -> Iterator[TextIO]:
        """A file that is locked for this process in the `with`."""
        descriptor = os.open(self._folder / name, os.O_RDWR | os.O_CREAT, 0o600)
        with open(descriptor, "r+", encoding="utf-8", errors="backslashreplace") as file:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield file

    # ---- ended sessions

    def end_session(self, session: str) -> None:
        """Mark a session as ended, and delete marks of expired ones."""
        oldest = time.time() - FORGOTTEN_SECONDS
        for path in self._folder.glob("ended-*"):
            with suppress(OSError):
                if path.stat().st_mtime < oldest:
                    path.unlink()
        os.close(os.open(self._ended(session), os.O_WRONLY | os.O_CREAT, 0o600))

    def has_ended(self, session: str) -> bool:
        """Whether the visitor signed out."""
        return self._ended(session).exists()

    def _ended(self, session: str) -> Path:
        return self._folder / f"ended-{session}"

    # ---- what visitors did

    def log(self, line: str) -> None:
        """Write a line to the log of actions."""
        path = self._folder / "actions.log"
        with self.locked(path.name) as file:
            if path.stat().st_size > MAX_LOG_BYTES:
                shutil.copy(path, path.with_name("actions.log.1"))
                file.truncate(0)
            file.seek(0, os.SEEK_END)
            file.write(f"{line}\n")
