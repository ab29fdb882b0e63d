"""The files that the page keeps in var/page/: its secret, counters, sign-outs, and what visitors did."""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from errno import EIO
from pathlib import Path
from threading import get_ident
from typing import NamedTuple

from ..host.files import make_private_folder

SECRET_BYTES = 32
MAX_LOG_BYTES = 1_000_000
MAX_COUNTERS_BYTES = 2_000_000
FORGOTTEN_SECONDS = 2 * 86_400.0
"""Sign-outs are older than any session that still counts."""
PLACE = Path("var", "page")


class Counter(NamedTuple):
    """How often something happened of late."""

    times: float
    last: float
    """When it happened last, in seconds since 1970."""
    forgets_seconds: float
    """After so long, one of them is forgotten."""


class PrivateFiles:
    """The page's own folder."""

    def __init__(self, folder: Path) -> None:
        """`folder` is the deployment's. Makes the page's folder; raises OSError."""
        self._folder = folder / PLACE
        make_private_folder(folder / "var")
        self._folder.mkdir(mode=0o700, exist_ok=True)

    def secret(self) -> bytes:
        """The page's secret, which is made once. Raises OSError."""
        path = self._folder / "secret"
        is_spoiled = False
        with suppress(FileNotFoundError):
            if len(found := path.read_bytes()) == SECRET_BYTES:
                return found
            is_spoiled = True  # as a host leaves a file whose disk was full, or that was restored
        # Complete before it has its name, which only the first one gets.
        draft = path.with_name(f"secret.{os.getpid()}.{get_ident()}")
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(secrets.token_bytes(SECRET_BYTES))
            file.flush()
            os.fsync(file.fileno())
        try:
            if is_spoiled:
                draft.replace(path)
            else:
                os.link(draft, path)
        except FileExistsError:
            pass
        except OSError:  # a file system without links
            draft.replace(path)
        with suppress(FileNotFoundError):
            draft.unlink()
        if len(found := path.read_bytes()) != SECRET_BYTES:
            raise OSError(EIO, "no secret can be kept", str(path))
        return found

    # ---- counters that several processes change

    @contextmanager
    def counters(self, name: str) -> Iterator[dict[str, Counter]]:
        """In the `with`, this process alone has the counters of that name, and may change them. Raises OSError."""
        descriptor = os.open(self._folder / name, os.O_RDWR | os.O_CREAT, 0o600)
        with open(descriptor, "r+", encoding="ascii", errors="replace") as file:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            found = _counters_in(file.read(MAX_COUNTERS_BYTES))
            before = dict(found)
            yield found
            if found != before:
                # Written before the rest is cut off: on a full disk what was there stays.
                file.seek(0)
                json.dump(found, file)
                file.flush()
                file.truncate()

    def mark(self, name: str) -> bool:
        """Make an empty file of that name; whether there was none. Raises OSError."""
        try:
            os.close(os.open(self._folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        except FileExistsError:
            return False
        return True

    def is_marked(self, name: str) -> bool:
        """Whether there is a file of that name."""
        return (self._folder / name).exists()

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
        with self.counters("actions.lock"):  # of two processes that rotate it at once, the second would lose the log
            with suppress(FileNotFoundError):
                if path.stat().st_size > MAX_LOG_BYTES:
                    path.replace(path.with_name("actions.log.1"))
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            with open(descriptor, "wb", buffering=0) as file:
                file.write(f"{line}\n".encode("utf-8", "backslashreplace"))


def _counters_in(text: str) -> dict[str, Counter]:
    try:
        return {str(name): Counter(*map(float, values)) for name, values in json.loads(text).items()}
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError):  # empty, cut off, or another's
        return {}
