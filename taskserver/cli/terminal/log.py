"""The log of our own programs: warnings go to standard error, everything goes to TASKSERVER_LOG.

The package logs to the logger `taskserver` as any library does. Here its lines are limited, so that cron sends no mail
without need, and no endless mail; and they come whatever a task does to the module `logging`. What tasks themselves
log and print comes from task_output.py.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from ...interrupts.stopping import TaskInterrupted
from ...messages.log_records import FOR_LOG_ALONE
from ...messages.programs import CLIENT
from ...settings.load import Settings
from .log_lines import OwnRecord, TaskRecord, deliver, lines_of
from .task_output import TaskOutput

LOG = logging.getLogger("taskserver")

FATAL, BY_TASKS = "fatal", "by_tasks"
MAX_LINES = {FATAL: 20, BY_TASKS: 20}
"""Lines of a run on standard error: about fatal tasks, and those that tasks log where no file and no handler of theirs
takes them."""


class Tokens:
    """So many lines that may be written."""

    def __init__(self, count: int) -> None:
        self._count = count

    def take(self) -> bool:
        """Take a line. Whether one was left."""
        self._count -= 1
        return self._count >= 0


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

    def makeRecord(  # noqa: N802
        self,
        name: str,
        level: int,
        fn: str,
        lno: int,
        msg: object,
        args: Any,
        exc_info: Any,
        func: str | None = None,
        extra: Mapping[str, object] | None = None,
        sinfo: str | None = None,
    ) -> logging.LogRecord:
        """Make a record as `logging` does, but not by the factory that a tasks module may have set.

        A factory may raise, or set an attribute that is in our `extra`, which `logging` takes for a mistake.
        """
        record = OwnRecord(name, level, fn, lno, msg, args, exc_info, func, sinfo)
        for key, value in (extra or {}).items():
            record.__dict__.setdefault(key, value)
        return record

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

    `tell_more` counts the rest. `before_line` runs before each line, to clear the live line on the terminal.
    """

    def __init__(self, verbose: bool, before_line: Callable[[], None], lines_left: Mapping[str, Tokens]) -> None:
        super().__init__(logging.DEBUG if verbose else logging.WARNING)
        self._is_verbose = verbose
        self._lines_left = lines_left
        self.untold = dict.fromkeys(MAX_LINES, 0)
        """How many records of each kind got no line."""
        # A copy of the descriptor: a task may close standard error itself.
        self._descriptor = os.dup(2)
        self._opened = os.fstat(2)
        self._before_line = before_line

    def emit(self, record: logging.LogRecord) -> None:
        if self._is_verbose:
            for line in lines_of(record):
                self._say(line)
        elif not getattr(record, FOR_LOG_ALONE, False) and self._has_room(record):
            self._say(lines_of(record)[0])

    def _has_room(self, record: logging.LogRecord) -> bool:
        kind = BY_TASKS if isinstance(record, TaskRecord) else FATAL if getattr(record, "is_fatal", False) else None
        if kind is None or self._lines_left[kind].take():
            return True
        self.untold[kind] += 1
        return False

    def tell_more(self, untold: Mapping[str, int]) -> None:
        """Count in one line each what got none."""
        if untold[FATAL]:
            self._say(f"and {untold[FATAL]} more became fatal: see {CLIENT} list --status fatal")
        if untold[BY_TASKS]:
            self._say(f"and {untold[BY_TASKS]} more warnings of tasks: with TASKSERVER_LOG a file has them all")

    def _say(self, line: str) -> None:
        self._before_line()
        for descriptor in (self._descriptor, 2):
            # Nobody may read standard error any more, which must not end the run. A task may have closed descriptors,
            # and another file, or the database's connection, have got their numbers.
            with suppress(OSError):
                if os.path.samestat(os.fstat(descriptor), self._opened):
                    os.write(descriptor, f"{line}\n".encode())
                    return


def set_up(
    verbose: bool,
    settings: Settings,
    before_line: Callable[[], None],
    lines_left: Mapping[str, Tokens] | None = None,
) -> tuple[StandardError, TaskOutput]:
    """Send the package's log to standard error, and to a file where one is set; what tasks log goes there, too.

    `lines_left` is for workers that share their lines. Raises SettingError.
    """
    logging.raiseExceptions = False  # a full disk under the log file must not fill cron's mail with tracebacks
    sys.unraisablehook = _hear_of_clean_up
    own_lines = {kind: Tokens(count) for kind, count in MAX_LINES.items()}
    standard_error = StandardError(verbose, before_line, lines_left or own_lines)
    file = _file_of(settings)
    steady_logger().send_to(standard_error, *filter(None, (file,)))
    screen = standard_error if verbose or file is None else None
    output = TaskOutput(file, screen, _least_of(settings, verbose))
    output.begin()
    return standard_error, output


def _hear_of_clean_up(unraisable: sys.UnraisableHookArgs) -> None:
    """Say in the log, and not by a traceback, that the `__del__` of something that a task made was interrupted."""
    if issubclass(unraisable.exc_type, TaskInterrupted):
        LOG.info("a clean-up that a task left took too long, and was interrupted")
    else:
        sys.__unraisablehook__(unraisable)


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
