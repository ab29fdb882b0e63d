"""The log of our own programs: warnings go to standard error, everything goes to TASKSERVER_LOG.

The package logs to the logger `taskserver` as any library does. Here its lines are limited, so that cron sends no mail
without need, and no endless mail; and they come whatever a task does to the module `logging`. What tasks themselves
log and print comes from task_output.py.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from ...interrupts.stopping import TaskInterrupted
from ...messages.log_records import FOR_LOG_ALONE
from ...settings.load import Settings
from .log_lines import TaskRecord, deliver, lines_of
from .task_output import TaskOutput

LOG = logging.getLogger("taskserver")

MAX_FATAL_LINES = 20
MAX_WARNING_LINES = 20
"""Lines that tasks log, where no file and no handler of theirs takes them."""


class SteadyLogger(logging.Logger):
    """The logger of the package in our own programs: has outlets that nothing done to `logging` takes away.

    A tasks module may call `logging.disable`, or `logging.config.dictConfig`, which disables all loggers that it finds.
    """

    _outlets: Sequence[logging.Handler] = ()
    _least = logging.CRITICAL + 1

    def send_to(self, *outlets: logging.Handler) -> None:
        """Send each record to these handlers, by their levels."""
        self._outlets = outlets
        self._least = min(outlet.level for outlet in outlets)

    def isEnabledFor(self, level: int) -> bool:  # noqa: N802
        return level >= self._least or (bool(self.handlers) and super().isEnabledFor(level))

    def handle(self, record: logging.LogRecord) -> None:
        deliver(record, self._outlets)
        # Handlers that a task added, and Sentry's SDK, which hooks into callHandlers of all loggers: foreign code.
        try:
            if self.filter(record):
                self.callHandlers(record)
        except TaskInterrupted:
            raise
        except BaseException:
            pass


def steady_logger() -> SteadyLogger:
    """The package's logger, made steady; other parts of the package have it already, so it changes its class."""
    LOG.__class__ = SteadyLogger
    LOG.propagate = False
    assert isinstance(LOG, SteadyLogger)
    return LOG


class StandardError(logging.Handler):
    """Writes one line for each record; unless verbose, only so many about fatal tasks, and so many that tasks log.

    `end` counts the rest. `before_line` runs before each line, to clear the live line on the terminal.
    """

    def __init__(self, verbose: bool, before_line: Callable[[], None]) -> None:
        super().__init__(logging.DEBUG if verbose else logging.WARNING)
        self._is_verbose = verbose
        # A copy of the descriptor: a task may close standard error itself.
        self._descriptor = os.dup(2)
        self._opened = os.fstat(2)
        self._fatal = 0
        self._by_tasks = 0
        self._before_line = before_line

    def emit(self, record: logging.LogRecord) -> None:
        if self._is_verbose:
            for line in lines_of(record):
                self._say(line)
        elif not getattr(record, FOR_LOG_ALONE, False) and self._has_room(record):
            self._say(lines_of(record)[0])

    def _has_room(self, record: logging.LogRecord) -> bool:
        if isinstance(record, TaskRecord):
            self._by_tasks += 1
            return self._by_tasks <= MAX_WARNING_LINES
        self._fatal += getattr(record, "is_fatal", False)
        return self._fatal <= MAX_FATAL_LINES or not getattr(record, "is_fatal", False)

    def end(self) -> None:
        if self._fatal > MAX_FATAL_LINES:
            self._say(f"and {self._fatal - MAX_FATAL_LINES} more became fatal: see client.py list --status fatal")
        if self._by_tasks > MAX_WARNING_LINES:
            more = self._by_tasks - MAX_WARNING_LINES
            self._say(f"and {more} more warnings of tasks: with TASKSERVER_LOG a file has them all")

    def _say(self, line: str) -> None:
        self._before_line()
        for descriptor in (self._descriptor, 2):
            # Nobody may read standard error any more, which must not end the run. A task may have closed descriptors,
            # and another file, or the database's connection, have got their numbers.
            with suppress(OSError):
                if os.path.samestat(os.fstat(descriptor), self._opened):
                    os.write(descriptor, f"{line}\n".encode())
                    return


def set_up(verbose: bool, settings: Settings, before_line: Callable[[], None]) -> tuple[StandardError, TaskOutput]:
    """Send the package's log to standard error, and to a file where one is set; what tasks log goes there, too.

    Raises SettingError.
    """
    logging.raiseExceptions = False  # a full disk under the log file must not fill cron's mail with tracebacks
    standard_error = StandardError(verbose, before_line)
    file = _file_of(settings)
    steady_logger().send_to(standard_error, *filter(None, (file,)))
    screen = standard_error if verbose or file is None else None
    output = TaskOutput(file, screen, _least_of(settings, verbose))
    output.begin()
    return standard_error, output


@contextmanager
def showing_all(screen: logging.Handler, settings: Settings) -> Iterator[None]:
    """In the `with`, the package's log, and what tasks log, goes to this handler, too. Raises SettingError."""
    file = _file_of(settings)
    steady_logger().send_to(screen, *filter(None, (file,)))
    output = TaskOutput(file, screen, _least_of(settings, True))
    output.begin()
    try:
        yield
    finally:
        output.end()
        LOG.__class__ = logging.Logger
        LOG.propagate = True


def _file_of(settings: Settings) -> logging.Handler | None:
    if settings.log_file is None:
        return None
    from .log_file import file_handler  # it costs as much as a connection, and most workers have no log file

    return file_handler(settings)


def _least_of(settings: Settings, verbose: bool) -> int:
    """The level from which on records of tasks are wanted whatever level their root logger has."""
    is_wanted = verbose or settings.log_file is not None
    return level_of(settings) if is_wanted else sys.maxsize


def level_of(settings: Settings) -> int:
    """TASKSERVER_LOG_LEVEL as the module `logging` counts levels."""
    level: int = getattr(logging, settings.log_level.upper())
    return level
