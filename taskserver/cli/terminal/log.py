"""The log of our own programs: warnings go to standard error, everything goes to TASKSERVER_LOG.

The package logs to the logger `taskserver`, like any library. In our programs its lines are limited, so that cron sends
no endless mail, and a tasks module cannot disable them.

What tasks log and print goes the same way, with their ids. A handler at the root would disable `logging.basicConfig`,
and dictConfig would remove it. So we hook `Logger.callHandlers`: all records pass it before the site's handlers.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from typing import TYPE_CHECKING, Any, BinaryIO, TextIO

from ...host.once_an_hour import OnceAnHour
from ...interrupts.stop import TaskInterrupted
from ...messages.log_records import LOG_ONLY, ONCE_AN_HOUR
from ...messages.programs import CLIENT, WORKER
from ...messages.text import shown
from ...settings.load import Settings
from .log_lines import MAX_MESSAGE, TaskRecord, lines_of
from .program import say

if TYPE_CHECKING:
    from ...worker.task_context import TaskLabel

LOG = logging.getLogger("taskserver")
CALL_HANDLERS, BASIC_CONFIG = logging.Logger.callHandlers, logging.basicConfig
"""Python's own, as a worker of --processes replaces the hooks of its supervisor."""

MAX_WARNINGS = 20
"""Lines of a run on standard error about fatal tasks, and of what tasks log without a file or a handler."""
FATAL = f"became fatal: see {CLIENT} list --status fatal"
BY_TASKS = "warnings of tasks: set TASKSERVER_LOG to log them all to a file"


def set_up(verbose: bool, settings: Settings, workers: int = 1) -> tuple[StandardError, Log]:
    """Send the package's log, and what tasks log, to standard error, and to a file if one is set.

    `workers` share the lines of standard error. Raises SettingError.
    """
    logging.raiseExceptions = False  # a broken handler of a site must not fill cron's mail with tracebacks
    sys.unraisablehook = _log_interrupted_clean_up
    once = OnceAnHour(settings.folder, WORKER, settings.queue)
    standard_error = StandardError(verbose, max(MAX_WARNINGS // workers, 1), once)
    return standard_error, Log(settings, standard_error, verbose or settings.log_file is None)


@contextmanager
def showing_all(screen: logging.Handler, settings: Settings) -> Iterator[None]:
    """In the `with`, this handler also gets the package's log, and what tasks log. Raises SettingError."""
    log = Log(settings, screen, True)
    try:
        yield
    finally:
        log.close()


def _log_interrupted_clean_up(unraisable: sys.UnraisableHookArgs) -> None:
    """Log, without a traceback, that the `__del__` of a task's object was interrupted."""
    if issubclass(unraisable.exc_type, TaskInterrupted):
        LOG.info("a clean-up that a task left took too long, and was interrupted")
    else:
        sys.__unraisablehook__(unraisable)


class RootLevel(int):
    """The level that we gave the root logger: if it still has it, the site has set none."""


class Log:
    """Routes records: the package's own, and what tasks log and print."""

    def __init__(self, settings: Settings, screen: logging.Handler, shows_tasks: bool) -> None:
        """Catch the records of all loggers until `close`. Raises SettingError.

        The file of TASKSERVER_LOG gets all of its level. `screen` gets the package's records, and with `shows_tasks`
        also prints and records of tasks without a handler of the site.
        """
        self._file: list[logging.Handler] = []
        if settings.log_file is not None:
            from .log_file import file_handler  # most workers have no log file

            self._file = [file_handler(settings)]
        self._of_tasks = [*self._file, screen] if shows_tasks else self._file
        self._in_handlers = threading.local()

        def call_handlers(logger: logging.Logger, record: logging.LogRecord) -> None:
            self._catch(logger, record)

        logging.Logger.callHandlers = call_handlers  # type: ignore[method-assign, assignment]
        logging.basicConfig = self._configure
        if self._file or screen.level < logging.WARNING:
            logging.root.setLevel(RootLevel(getattr(logging, settings.log_level.upper())))
        # Other modules have the logger already, so change its class.
        LOG.__class__ = OurLogger
        LOG.propagate = False
        assert isinstance(LOG, OurLogger)
        LOG.outlets = [*self._file, screen]

    def close(self) -> None:
        """Restore `logging`."""
        logging.Logger.callHandlers, logging.basicConfig = CALL_HANDLERS, BASIC_CONFIG  # type: ignore[method-assign]
        if isinstance(logging.root.level, RootLevel):
            logging.root.setLevel(logging.WARNING)
        LOG.__class__ = logging.Logger
        LOG.propagate = True

    def _catch(self, logger: logging.Logger, record: logging.LogRecord) -> None:
        has_handlers, least = logger.hasHandlers(), logger.getEffectiveLevel()
        if not isinstance(logger, OurLogger):  # that one has its own outlets
            outlets = self._file if has_handlers else self._of_tasks
            if any(record.levelno >= outlet.level for outlet in outlets):
                with suppress(Exception):  # str() of a task's own objects may raise
                    deliver(_task_record(record), outlets)
        if has_handlers and record.levelno >= (logging.WARNING if isinstance(least, RootLevel) else least):
            self._in_handlers.is_true = True
            try:
                CALL_HANDLERS(logger, record)
            finally:
                self._in_handlers.is_true = False

    def _configure(self, **options: Any) -> None:
        # Not if `logging.warning` calls it: that would write to standard error.
        if options or sys._getframe(1).f_globals is not vars(logging):
            BASIC_CONFIG(**options)

    def print(self, line: str, by: TaskLabel | None) -> None:
        """Log a line that a task printed, but not what a site's handler prints: the log has that record already."""
        if line and not getattr(self._in_handlers, "is_true", False):
            deliver(TaskRecord("printed", logging.INFO, line, by), self._of_tasks)


class OurLogger(logging.Logger):
    """The package's logger in our own programs: `logging.disable` and `dictConfig` cannot disable it."""

    outlets: Sequence[logging.Handler] = ()
    disabled = property(lambda self: False, lambda self, value: None)

    def isEnabledFor(self, level: int) -> bool:  # noqa: N802
        return any(level >= outlet.level for outlet in self.outlets) or (
            bool(self.handlers) and super().isEnabledFor(level)
        )

    def makeRecord(self, *values: Any) -> logging.LogRecord:  # noqa: N802
        """Make a record without the site's factory, as it may set a key of our `extra`, which Python refuses."""
        *what, extra, stack = values
        record = logging.LogRecord(*what, stack)  # type: ignore[call-arg]
        vars(record).update(extra or {})
        return record

    def handle(self, record: logging.LogRecord) -> None:
        deliver(record, self.outlets)
        with suppress(Exception):  # filters and handlers of the site, and Sentry's hook
            super().handle(record)


class StandardError(logging.Handler):
    """Writes one line for each record; unless verbose, limits those about fatal tasks and those of tasks."""

    def __init__(self, verbose: bool, max_lines: int, once: OnceAnHour) -> None:
        super().__init__(logging.DEBUG if verbose else logging.WARNING)
        self._is_verbose = verbose
        self._max_lines = max_lines
        self._once = once
        self._counts = {FATAL: 0, BY_TASKS: 0}

    def emit(self, record: logging.LogRecord) -> None:
        if self._is_verbose:
            for line in lines_of(record):
                say(line)
        elif not getattr(record, LOG_ONLY, False) and self._has_room(record):
            first = lines_of(record)[0]
            if getattr(record, ONCE_AN_HOUR, False):
                self._once.write_once(first, re.sub("^task [0-9]+ ", "", first), say)
            else:
                say(first)

    def _has_room(self, record: logging.LogRecord) -> bool:
        kind = BY_TASKS if isinstance(record, TaskRecord) else FATAL if getattr(record, "is_fatal", False) else None
        if kind is None:
            return True
        self._counts[kind] += 1
        return self._counts[kind] <= self._max_lines

    def count_rest(self) -> None:
        """Write how many records got no line."""
        for kind, count in self._counts.items():
            if count > self._max_lines:
                say(f"and {count - self._max_lines} more {kind}")


def deliver(record: logging.LogRecord, outlets: Sequence[logging.Handler]) -> None:
    """Pass a record to each outlet of its level; errors never reach the code that logs.

    Each writes a record by one call, so none needs the lock of `Handler.handle`, which an interrupt could leave locked.
    """
    for outlet in outlets:
        if record.levelno >= outlet.level:
            with suppress(Exception):
                if outlet.filter(record):
                    outlet.emit(record)


def _task_record(record: logging.LogRecord) -> TaskRecord:
    from ...worker.task_context import running_task

    try:
        message = str(record.getMessage())
    except Exception as fault:  # e.g. arguments that do not fit
        message = f"{shown(record.msg)} ({type(fault).__name__} while it was formatted)"
    error = record.exc_info[1] if isinstance(record.exc_info, tuple) else None
    if error is None:
        return TaskRecord(record.name, record.levelno, message, running_task(), full_text=record.stack_info or "")
    from ...messages.error_text import describe, full_traceback  # most runs log no error

    first_line = describe(error).partition("\n")[0]
    return TaskRecord(record.name, record.levelno, message, running_task(), first_line, full_traceback(error))


# ---- what tasks print


@contextmanager
def prints_to_log(stdout: TextIO, log: Log) -> Iterator[None]:
    """In the `with`, prints go to the log; what is written to the descriptor is discarded."""
    if stdout.isatty():
        yield
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stdout.fileno())  # for bytes, and for programs that tasks start
    os.close(nowhere)
    prints = PrintsToLog(stdout, log)
    try:
        with redirect_stdout(prints):
            yield
    finally:
        prints.end()


class PrintsToLog:
    """Logs text line by line; all other attributes are those of the real standard output."""

    def __init__(self, real: TextIO, log: Log) -> None:
        self._real = real
        self._log = log
        self._begun: dict[int, tuple[TaskLabel | None, str]] = {}
        """The unfinished line of each thread, and its task."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def detach(self) -> BinaryIO:
        """For modules that wrap it in their own writer; the worker keeps the real one."""
        return self._real.buffer

    def write(self, text: str) -> int:
        from ...worker.task_context import running_task  # not imported in an empty run

        thread, now = threading.get_ident(), running_task()
        by, begun = self._begun.pop(thread, (now, ""))
        if by != now:
            self._log.print(begun, by)
            begun = ""
        *ended, rest = (begun + text).split("\n")
        for line in ended:
            self._log.print(line, now)
        if len(rest) > MAX_MESSAGE:  # it may never end
            self._log.print(rest, now)
        elif rest:
            self._begun[thread] = now, rest
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        self.write("".join(lines))

    def end(self) -> None:
        """Log unfinished lines."""
        while self._begun:
            by, begun = self._begun.popitem()[1]
            self._log.print(begun, by)
