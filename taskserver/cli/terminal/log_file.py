"""The file of TASKSERVER_LOG: private, rotated, shared by the workers of a host. Imported only if it is set."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import stat
import time
from contextlib import suppress
from pathlib import Path

from ...errors import SettingError
from ...host.files import OF_SYSTEM, why_no_log
from ...messages.log_records import FULL_TEXT, ONCE_AN_HOUR
from ...settings.load import Settings
from .log_lines import level_name, lines_of

LOG = logging.getLogger("taskserver")

MAX_FILE_BYTES = 10_000_000
KEPT_FILES = 3
WRITABLE = "let this user write its folder, or name another file"
ROOM = "make room, or name another file"
FIELDS_OF_TASK = ("task_id", "task", "attempt", "error", "is_fatal")


def file_handler(settings: Settings) -> LogFile:
    """The handler that writes TASKSERVER_LOG, from TASKSERVER_LOG_LEVEL on, and rotates it. Raises SettingError."""
    path = settings.log_file
    assert path is not None
    try:
        if fault := why_no_log(path, settings.folder):
            raise SettingError(f"TASKSERVER_LOG: {fault.what}: {fault.fix}")
        for number in range(1, KEPT_FILES + 1):
            with suppress(OSError):  # it may be missing, or a link
                os.close(_opened(f"{path}.{number}", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK))
        return LogFile(path, settings.log_level.upper(), settings.log_format == "json")
    except OSError as error:
        raise SettingError(f"TASKSERVER_LOG: {path} cannot be written: {error.strerror}: {WRITABLE}") from None


class LogFile(logging.Handler):
    """Appends each record by one write, so that threads, processes and interrupts need no lock to keep lines whole."""

    def __init__(self, path: Path, level: str, is_json: bool) -> None:
        super().__init__(level)
        self._path = path
        self._is_json = is_json
        # Tasks may change the time zone later, as django.setup() does.
        self._zone_seconds = time.localtime().tm_gmtoff
        self._descriptor = _opened(path)
        self._is_rotated = not str(path).startswith(OF_SYSTEM)  # nobody may rename /dev/stderr
        self._is_written = True

    def emit(self, record: logging.LogRecord) -> None:
        text = _as_json(record) if self._is_json else _as_text(record, self._zone_seconds)
        rest = f"{text}\n".encode(errors="backslashreplace")
        try:
            if not _is_at(self._path, self._descriptor):  # another worker has rotated it
                new = _opened(self._path)
                os.dup2(new, self._descriptor, inheritable=False)  # other threads use this number
                os.close(new)
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
        except OSError as error:
            if self._is_written:  # warn once, as cron would mail each line
                self._is_written = False
                self._warn("cannot be written, and what this run logs may be lost", error, ROOM)
            return
        if self._is_rotated and os.fstat(self._descriptor).st_size > MAX_FILE_BYTES:
            try:
                self._rotate()
            except FileNotFoundError:  # another worker has renamed it
                pass
            except OSError as error:
                self._is_rotated = False
                self._warn("cannot be rotated, and grows", error, WRITABLE)

    def _warn(self, words: str, error: OSError, fix: str) -> None:
        extra = {ONCE_AN_HOUR: True}
        LOG.warning("TASKSERVER_LOG: %s %s: %s: %s", self._path, words, error.strerror, fix, extra=extra)

    def _rotate(self) -> None:
        """Rename the file, unless another worker does."""
        # Open it again: a process that a task forked would share the lock of the old descriptor.
        held = os.open(self._path, os.O_RDONLY)
        try:
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return
            except OSError:  # a file system without locks
                pass
            if os.fstat(held).st_size <= MAX_FILE_BYTES or not _is_at(self._path, held):
                return
            for number in range(KEPT_FILES - 1, 0, -1):
                with suppress(FileNotFoundError):
                    os.replace(f"{self._path}.{number}", f"{self._path}.{number + 1}")
            os.replace(self._path, f"{self._path}.1")
        finally:
            os.close(held)


def _opened(path: str | Path, flags: int = os.O_WRONLY | os.O_APPEND | os.O_CREAT) -> int:
    """Open a log, and make it private if it is ours."""
    descriptor = os.open(path, flags, 0o600)
    found = os.fstat(descriptor)
    if stat.S_ISREG(found.st_mode) and found.st_mode & 0o077 and found.st_uid == os.geteuid():
        os.fchmod(descriptor, 0o600)
    return descriptor


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except OSError:
        return False


def _as_text(record: logging.LogRecord, zone_seconds: int) -> str:
    began = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(record.created + zone_seconds))
    begin = f"{began},{int(record.msecs):03d} {record.process} {level_name(record)} "
    return begin + "\n".join(lines_of(record))


def _as_json(record: logging.LogRecord) -> str:
    """An object in ASCII: no text in it can end the line, or control a terminal."""
    fields: dict[str, object] = {
        "time": f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(record.created))}.{int(record.msecs):03d}Z",
        "level": level_name(record).lower(),
        "logger": record.name,
        "pid": record.process,
        "message": record.getMessage(),
    }
    fields |= {name: getattr(record, name) for name in FIELDS_OF_TASK if hasattr(record, name)}
    if full_text := getattr(record, FULL_TEXT, ""):
        fields["traceback"] = full_text
    return json.dumps(fields)
