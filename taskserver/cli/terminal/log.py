"""The log of our own programs: warnings go to standard error, everything goes to TASKSERVER_LOG.

The package logs to the logger `taskserver` as any library does. Here its lines are limited, so that cron sends no mail
without need, and no endless mail; and they come whatever a task does to the module `logging`.
"""

from __future__ import annotations

import io
import logging
import os
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, TextIO

from ...errors import SettingError
from ...messages.printable import Lines, escaped, printable

LOG = logging.getLogger("taskserver")

MAX_FATAL_LINES = 20
MAX_FILE_BYTES = 10_000_000
KEPT_FILES = 3
MAX_PRINTED_LINE = 10_000
"""Characters of one line; a task may print without ever ending a line."""


INDENT = "    "


def lines_of(record: logging.LogRecord) -> list[str]:
    """The lines that a record takes: one, and the indented lines of its traceback.

    Rows and tasks choose names and error texts; none of these may look like a line of ours.
    """
    message, last = record.getMessage(), record.args[-1] if isinstance(record.args, tuple) and record.args else None
    if not isinstance(last, Lines):
        return [printable(message)]
    return [printable(message.removesuffix(last).removesuffix("\n")), *indented(last)]


def indented(text: str) -> list[str]:
    """The lines of a text as they stand below the line that they belong to."""
    return [f"{INDENT}{escaped(line)}" for line in text.split("\n")]


class SteadyLogger(logging.Logger):
    """The logger of the package in our own programs: has outlets that nothing done to `logging` takes away.

    A tasks module may call `logging.disable`, or `logging.config.dictConfig`, which disables all loggers that it finds.
    """

    _outlets: Sequence[logging.Handler] = ()

    def send_to(self, *outlets: logging.Handler) -> None:
        """Send each record to these handlers, by their levels."""
        self._outlets = outlets

    def isEnabledFor(self, level: int) -> bool:  # noqa: N802
        return any(level >= outlet.level for outlet in self._outlets)

    def handle(self, record: logging.LogRecord) -> None:
        for outlet in self._outlets:
            if record.levelno >= outlet.level:
                outlet.handle(record)
        if self.handlers:  # added by a task, whose filters may raise anything
            with suppress(Exception):
                super().handle(record)


def steady_logger() -> SteadyLogger:
    """The package's logger, made steady; other parts of the package have it already, so it changes its class."""
    LOG.__class__ = SteadyLogger
    LOG.propagate = False
    assert isinstance(LOG, SteadyLogger)
    return LOG


@contextmanager
def sending_to(*outlets: logging.Handler) -> Iterator[None]:
    """In the `with`, the package's log goes to these handlers."""
    steady_logger().send_to(*outlets)
    try:
        yield
    finally:
        LOG.__class__ = logging.Logger
        LOG.propagate = True


class StandardError(logging.Handler):
    """Writes one line for each record; unless verbose, only MAX_FATAL_LINES about fatal tasks: `end` counts the rest.

    `before_line` runs before each line, to clear the live line on the terminal.
    """

    def __init__(self, verbose: bool, before_line: Callable[[], None], may_tell: Callable[[], bool] | None) -> None:
        """`may_tell` says of one more fatal task whether it gets a line."""
        super().__init__(logging.DEBUG if verbose else logging.WARNING)
        self._lines_left = sys.maxsize if verbose else MAX_FATAL_LINES
        self._may_tell = may_tell or self._has_line_left
        # A copy of the descriptor: a task may close standard error itself.
        self._descriptor = os.dup(2)
        self._opened = os.fstat(2)
        self.untold = 0
        """Fatal tasks that got no line."""
        self._before_line = before_line

    def _has_line_left(self) -> bool:
        self._lines_left -= 1
        return self._lines_left >= 0

    def emit(self, record: logging.LogRecord) -> None:
        if getattr(record, "is_fatal", False) and not self._may_tell():
            self.untold += 1
            return
        for line in lines_of(record):
            self._say(line)

    def tell_more(self, untold: int) -> None:
        """Count the fatal tasks that got no line in one."""
        if untold:
            self._say(f"and {untold} more became fatal: see client.py list --status fatal")

    def _say(self, line: str) -> None:
        self._before_line()
        for descriptor in (self._descriptor, 2):
            # Nobody may read standard error any more, which must not end the run. A task may have closed descriptors,
            # and another file, or the database's connection, have got their numbers.
            with suppress(OSError):
                if os.path.samestat(os.fstat(descriptor), self._opened):
                    os.write(descriptor, f"{line}\n".encode())
                    return


class PrintsToLog(io.TextIOBase):
    """Replaces standard output where it is no terminal: the prints of tasks go to the log, line by line.

    Bytes, and the output of programs that a task starts, go where the descriptor leads.
    """

    def __init__(self, real: TextIO) -> None:
        self._real = real
        self._pieces: list[str] = []
        self._length = 0

    @property
    def buffer(self) -> BinaryIO:
        return self._real.buffer

    def fileno(self) -> int:
        return self._real.fileno()

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if LOG.isEnabledFor(logging.INFO):
            *lines, rest = text.split("\n")
            for line in lines:
                self._gather(line)
                self.end()
            self._gather(rest)
        return len(text)

    def _gather(self, text: str) -> None:
        """Add to the line so far; log it first where it would grow too long."""
        for first in range(0, len(text), MAX_PRINTED_LINE):
            piece = text[first : first + MAX_PRINTED_LINE]
            if self._length + len(piece) > MAX_PRINTED_LINE:
                self.end()
            self._pieces.append(piece)
            self._length += len(piece)

    def end(self) -> None:
        """Log the line that is gathered so far."""
        if self._pieces:
            LOG.info("printed: %s", "".join(self._pieces))
        self._pieces, self._length = [], 0


def set_up(
    verbose: bool,
    file: Path | None,
    folder: Path,
    before_line: Callable[[], None],
    may_tell: Callable[[], bool] | None = None,
) -> StandardError:
    """Send the package's log to standard error, and to a file where one is set; `folder` is the program's.

    `may_tell` is as in StandardError.

    Raises SettingError.
    """
    logging.raiseExceptions = False  # a full disk under the log file must not fill cron's mail with tracebacks
    standard_error = StandardError(verbose, before_line, may_tell)
    steady_logger().send_to(standard_error, *([file_handler(file, folder)] if file else ()))
    return standard_error


def file_handler(path: Path, folder: Path) -> logging.Handler:
    """The handler that writes a log file and rotates it; `folder` is the program's. Raises SettingError."""
    # Imported here: this costs as much as a connection, and most workers have no log file.
    from logging.handlers import RotatingFileHandler

    class PrivateFile(RotatingFileHandler):
        """A rotated file that only its owner may read; the workers of a host share it."""

        def _open(self) -> io.TextIOWrapper:
            descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            _make_private(descriptor)
            return open(descriptor, "a", encoding="utf-8", errors="backslashreplace")

        def shouldRollover(self, record: logging.LogRecord) -> int:  # noqa: N802
            self._follow_other_workers()
            return super().shouldRollover(record)

        def _follow_other_workers(self) -> None:
            """Where another worker rotated the file, go on in the new file instead of rotating it away."""
            if self.stream is not None and not _is_at(path, self.stream):
                self.stream.close()
                self.stream = self._open()

    try:
        _refuse_open_folder(path, folder)
        _make_rotated_private(path)
        handler = PrivateFile(path, maxBytes=MAX_FILE_BYTES, backupCount=KEPT_FILES)
    except OSError as error:
        raise SettingError(
            f"TASKSERVER_LOG: {path} cannot be written: {error.strerror}: let this user write its folder, "
            "or name another file"
        ) from None
    handler.setFormatter(_FileFormat("%(asctime)s %(process)d %(levelname)s %(message)s"))
    return handler


def _refuse_open_folder(path: Path, folder: Path) -> None:
    """Raise SettingError where others could have the log written into any file of ours, by a link in its place."""
    from ...host.file_rights import who_else_may_replace  # most workers have no log file

    who = who_else_may_replace(path, folder)
    if who:
        raise SettingError(
            f"TASKSERVER_LOG: {who}, on the way to the log: name a file in var/, or let nobody else write there"
        )


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


def _is_at(path: Path, stream: io.TextIOWrapper) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(stream.fileno()))
    except OSError:
        return False


class _FileFormat(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        record.message, *more = lines_of(record)
        record.asctime = self.formatTime(record)
        if record.exc_info:  # of a task that logs here
            more += indented(self.formatException(record.exc_info))
        return "\n".join((self.formatMessage(record), *more))
