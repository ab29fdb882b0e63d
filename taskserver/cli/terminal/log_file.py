"""The file of TASKSERVER_LOG: private, rotated, shared by the workers of a host. Imported where one is set."""

from __future__ import annotations

import fcntl
import io
import logging
import os
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from logging.handlers import RotatingFileHandler
from pathlib import Path

from ...errors import SettingError
from ...host.files import OF_SYSTEM, why_no_log
from ...settings.load import Settings
from .log_lines import level_name, lines_of

LOG = logging.getLogger("taskserver")

MAX_FILE_BYTES = 10_000_000
KEPT_FILES = 3
WRITABLE = "let this user write its folder, or name another file"


def file_handler(settings: Settings) -> logging.Handler:
    """The handler that writes TASKSERVER_LOG, from TASKSERVER_LOG_LEVEL on, and rotates it. Raises SettingError."""
    path = settings.log_file
    assert path is not None
    try:
        if why_not := why_no_log(path, settings.folder):
            raise SettingError(f"TASKSERVER_LOG: {why_not}")
        _make_rotated_private(path)
        handler = _PrivateFile(path, maxBytes=MAX_FILE_BYTES, backupCount=KEPT_FILES)
    except OSError as error:
        raise SettingError(f"TASKSERVER_LOG: {path} cannot be written: {error.strerror}: {WRITABLE}") from None
    handler.setLevel(settings.log_level.upper())
    handler.setFormatter(_format_of(settings))
    return handler


def _format_of(settings: Settings) -> logging.Formatter:
    if settings.log_format == "json":
        from .log_json import JsonFormat  # others do without json

        return JsonFormat()
    return _TextFormat()


class _TextFormat(logging.Formatter):
    def __init__(self) -> None:
        super().__init__()
        # Kept for the whole process: code of tasks may set another zone, as django.setup() does.
        self._zone_seconds = time.localtime().tm_gmtoff
        self.converter = lambda seconds: time.gmtime((seconds or 0) + self._zone_seconds)

    def format(self, record: logging.LogRecord) -> str:
        """The lines of a record, which stays as it is: other handlers show all of its attributes, as Sentry's does."""
        first, *more = lines_of(record)
        return "\n".join((f"{self.formatTime(record)} {record.process} {level_name(record)} {first}", *more))


class _PrivateFile(RotatingFileHandler):
    """A rotated file that only its owner may read; the workers of a host share it."""

    _is_rotated = True
    """Whether it can be rotated, as far as is known: its folder may be another account's."""

    def _open(self) -> io.TextIOWrapper:
        descriptor = os.open(self.baseFilename, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        _make_private(descriptor)
        self._pid = os.getpid()
        return open(descriptor, "a", encoding="utf-8", errors="backslashreplace")

    _is_written = True
    """Whether nothing was lost so far."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        """Say once that a record could not be written, as on a full disk; a traceback each would fill cron's mail."""
        error = sys.exc_info()[1]
        if self._is_written and isinstance(error, OSError):
            self._is_written = False
            LOG.warning(
                "TASKSERVER_LOG: %s cannot be written, and what this run logs may be lost: %s: %s",
                *(self.baseFilename, error.strerror, "make room, or name another file"),
            )

    def shouldRollover(self, record: logging.LogRecord) -> int:  # noqa: N802
        self._follow_other_workers()
        is_systems = self.baseFilename.startswith(OF_SYSTEM)  # nobody may rename /dev/stderr
        return int(self._is_rotated and not is_systems and super().shouldRollover(record))

    def doRollover(self) -> None:  # noqa: N802
        """Rotate the file, unless another worker does; where that cannot be done, go on in it."""
        with self._locked() as is_ours:
            if not is_ours:
                return
            try:
                super().doRollover()
            except FileNotFoundError:  # another worker has renamed it, where the file system has no locks
                self.stream = self.stream or self._open()
            except OSError as error:
                self._is_rotated = False
                self.stream = self.stream or self._open()
                LOG.warning(
                    "TASKSERVER_LOG: %s cannot be rotated, and grows: %s: %s",
                    *(self.baseFilename, error.strerror, WRITABLE),
                )

    @contextmanager
    def _locked(self) -> Iterator[bool]:
        """In the `with`, no other worker rotates this file; False where one does, or has."""
        if self.stream is None:
            yield True
            return
        try:
            # A copy of the descriptor: the rotation closes the stream first, and the lock holds until both are closed.
            held = os.dup(self.stream.fileno())
        except OSError:  # a task has taken the last one: the file grows on
            yield False
            return
        try:
            yield self._lock(held)
        finally:
            os.close(held)

    def _lock(self, descriptor: int) -> bool:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:  # a file system without locks
            return True
        is_ours = self.stream is not None and _is_at(self.baseFilename, self.stream)
        self._follow_other_workers()
        return is_ours

    def _follow_other_workers(self) -> None:
        """Where another worker rotated the file, go on in the new file instead of rotating it away.

        A process that a task forked opens it itself: a lock belongs to all who share what one of them opened.
        """
        if self.stream is not None and not (os.getpid() == self._pid and _is_at(self.baseFilename, self.stream)):
            self.stream.close()
            self.stream = self._open()


def _make_rotated_private(path: Path) -> None:
    for number in range(1, KEPT_FILES + 1):
        with suppress(OSError):  # there is none, or only a link
            descriptor = os.open(f"{path}.{number}", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            _make_private(descriptor)
            os.close(descriptor)


def _make_private(descriptor: int) -> None:
    """Take the rights of others away from a log of ours that another program made, or an older version."""
    found = os.fstat(descriptor)
    if stat.S_ISREG(found.st_mode) and found.st_mode & 0o077 and found.st_uid == os.geteuid():
        os.fchmod(descriptor, 0o600)


def _is_at(path: str, stream: io.TextIOWrapper) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(stream.fileno()))
    except OSError:
        return False
