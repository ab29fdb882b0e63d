"""The files that the page keeps in var/page/: its secret, guesses at the password, sign-outs, and what visitors did."""

from __future__ import annotations

import fcntl
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ..host.private_folder import make_private_folder

SECRET_BYTES = 32
MAX_LOG_BYTES = 1_000_000
FORGOTTEN_SECONDS = 2 * 86_400.0
"""Guesses and sign-outs are older than any that still count."""


class PrivateFiles:
    """The page's own folder."""

    def __init__(self, folder: Path) -> None:
        """`folder` is the deployment's. Makes the page's folder; raises OSError."""
        self._folder = folder / "var" / "page"
        make_private_folder(folder / "var")
        self._folder.mkdir(mode=0o700, exist_ok=True)

    def secret(self) -> bytes:
        """The page's secret, which is made once. Raises OSError."""
        path = self._folder / "secret"
        with suppress(FileNotFoundError):
            if len(found := path.read_bytes()) == SECRET_BYTES:
                return found
        # Complete before it has its name. Where two processes make one at once, the last one counts.
        draft = path.with_name(f"secret.{os.getpid()}")
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(secrets.token_bytes(SECRET_BYTES))
        draft.replace(path)
        return path.read_bytes()

    # ---- numbers that several processes change

    @contextmanager
    def numbers(self, name: str) -> Iterator[list[float]]:
        """In the `with`, this process alone has the numbers of that name, and may change them. Raises OSError."""
        descriptor = os.open(self._folder / name, os.O_RDWR | os.O_CREAT, 0o600)
        with open(descriptor, "r+", encoding="ascii") as file:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            found = _numbers_in(file.read())
            yield found
            file.seek(0)
            file.truncate()
            file.write(" ".join(map(repr, found)))

    def mark(self, name: str) -> None:
        """Make an empty file of that name. Raises OSError."""
        os.close(os.open(self._folder / name, os.O_WRONLY | os.O_CREAT, 0o600))

    def is_marked(self, name: str) -> bool:
        """Whether there is a file of that name."""
        return (self._folder / name).exists()

    def count(self, prefix: str) -> int:
        """How many files have a name that begins so."""
        return sum(name.startswith(prefix) for name in os.listdir(self._folder))

    def clean_up(self, *prefixes: str) -> None:
        """Remove old files whose names begin so."""
        oldest = time.time() - FORGOTTEN_SECONDS
        for name in os.listdir(self._folder):
            path = self._folder / name
            with suppress(OSError):
                if name.startswith(prefixes) and path.stat().st_mtime < oldest:
                    path.unlink()

    # ---- what visitors did

    def log(self, line: str) -> None:
        """Write a line to the log of what visitors did. Raises OSError."""
        path = self._folder / "actions.log"
        with suppress(FileNotFoundError):
            if path.stat().st_size > MAX_LOG_BYTES:
                path.replace(path.with_name("actions.log.1"))
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with open(descriptor, "wb", buffering=0) as file:
            file.write(f"{line}\n".encode("utf-8", "backslashreplace"))


def _numbers_in(text: str) -> list[float]:
    try:
        return [float(one) for one in text.split()]
    except ValueError:  # it was cut off while it was written
        return []
