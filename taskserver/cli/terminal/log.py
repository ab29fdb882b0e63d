"""The log of our own programs: warnings go to standard error, everything goes to TASKSERVER_LOG.

The package logs to the logger `taskserver` as any library does. In our programs its lines are limited, so that cron
sends no endless mail, and a tasks module cannot switch them off.

What tasks log and print goes the same way, with their ids. A handler at the root would keep `logging.basicConfig` from
doing anything, and dictConfig would remove it. So no logger gets one: all records pass one hook, `Logger.callHandlers`,
and then reach the handlers that the site set up.
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
"""Python's own: a worker of --processes takes the place of its supervisor's."""

MAX_WARNINGS = 20
"""Lines of a run on standard error about fatal tasks, and as many that tasks log if neither a file nor a handler of
theirs takes them."""
FATAL = f"became fatal: see {CLIENT} list --status fatal"
BY_TASKS = "warnings of tasks: set TASKSERVER_LOG to have them all in a file"


def set_up(verbose: bool, settings: Settings, workers: int = 1) -> tuple[StandardError, Log]:
    """Send the package's log, and what tasks log, to standard error, and to a file if one is set.

    So many workers share the lines of standard error. Raises SettingError.
    """
    logging.raiseExceptions = False  # a handler of a site that fails must not fill cron's mail with tracebacks
    sys.unraisablehook = _log_interrupted_clean_up
    once = OnceAnHour(settings.folder, WORKER, settings.queue)
    standard_error = StandardError(verbose, max(MAX_WARNINGS // workers, 1), once)
    return standard_error, Log(settings, standard_error, verbose or settings.log_file is None)


@contextmanager
def showing_all(screen: logging.Handler, settings: Settings) -> Iterator[None]:
    """In the `with`, the package's log, and what tasks log, goes to this handler, too. Raises SettingError."""
    log = Log(settings, screen, True)
    try:
        yield
    finally:
        log.close()


def _log_interrupted_clean_up(unraisable: sys.UnraisableHookArgs) -> None:
    """Log, without a traceback, that the `__del__` of something that a task made was interrupted."""
    if issubclass(unraisable.exc_type, TaskInterrupted):
        LOG.info("a clean-up that a task left took too long, and was interrupted")
    else:
        sys.__unraisablehook__(unraisable)


class RootLevel(int):
    """The level that we gave the root logger: while it has this one, the site has set none."""


class Log:
    """Where records go: the package's own, and what tasks log and print."""

    def __init__(self, settings: Settings, screen: logging.Handler, shows_tasks: bool) -> None:
        """Take in the records of all loggers until `close`. Raises SettingError.

        The file of TASKSERVER_LOG gets all of its level; `screen` the package's records, and if it `shows_tasks` also
        prints, and the records of tasks for which the site made no handler.
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
            # From this level on, unless the site sets one.
            logging.root.setLevel(RootLevel(getattr(logging, settings.log_level.upper())))
        # Other parts of the package have the logger already: it changes its class.
        LOG.__class__ = OurLogger
        LOG.propagate = False
        assert isinstance(LOG, OurLogger)
        LOG.outlets = [*self._file, screen]

    def close(self) -> None:
        """Leave `logging` as it was."""
        logging.Logger.callHandlers, logging.basicConfig = CALL_HANDLERS, BASIC_CONFIG  # type: ignore[method-assign]
        if isinstance(logging.root.level, RootLevel):
            logging.root.setLevel(logging.WARNING)
        LOG.__class__ = logging.Logger
        LOG.propagate = True

    def _catch(self, logger: logging.Logger, record: logging.LogRecord) -> None:
        has_handlers, least = logger.hasHandlers(), logger.getEffectiveLevel()
        if not isinstance(logger, OurLogger):  # which has its outlets
            outlets = self._file if has_handlers else self._of_tasks
            if any(record.levelno >= outlet.level for outlet in outlets):
                with suppress(Exception):  # the task's own objects may raise as they are put in words
                    deliver(_task_record(record), outlets)
        if has_handlers and record.levelno >= (logging.WARNING if isinstance(least, RootLevel) else least):
            self._in_handlers.is_true = True
            try:
                CALL_HANDLERS(logger, record)
            finally:
                self._in_handlers.is_true = False

    def _configure(self, **options: Any) -> None:
        # `logging.warning` calls it by itself: that would write to standard error.
        if options or sys._getframe(1).f_globals is not vars(logging):
            BASIC_CONFIG(**options)

    def print(self, line: str, by: TaskLabel | None) -> None:
        """Log a line that a task printed. Not what a site's handler prints of a record: the log has the record."""
        if line and not getattr(self._in_handlers, "is_true", False):
            deliver(TaskRecord("printed", logging.INFO, line, by), self._of_tasks)


class OurLogger(logging.Logger):
    """The package's logger in our own programs: neither `logging.disable` nor a `dictConfig` switches it off."""

    outlets: Sequence[logging.Handler] = ()
    disabled = property(lambda self: False, lambda self, value: None)

    def isEnabledFor(self, level: int) -> bool:  # noqa: N802
        return any(level >= outlet.level for outlet in self.outlets) or (
            bool(self.handlers) and super().isEnabledFor(level)
        )

    def makeRecord(self, *values: Any) -> logging.LogRecord:  # noqa: N802
        """Make a record without the site's factory, which may set an attribute of our `extra`: an error for Python."""
        *what, extra, stack = values
        record = logging.LogRecord(*what, stack)  # type: ignore[call-arg]
        vars(record).update(extra or {})
        return record

    def handle(self, record: logging.LogRecord) -> None:
        deliver(record, self.outlets)
        with suppress(Exception):  # filters and handlers that a site added, and Sentry's hook
            super().handle(record)


class StandardError(logging.Handler):
    """Writes one line for each record; unless verbose, a limited number about fatal tasks, and of what tasks log."""

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

    def say_rest(self) -> None:
        """Count the records that got no line."""
        for kind, count in self._counts.items():
            if count > self._max_lines:
                say(f"and {count - self._max_lines} more {kind}")


def deliver(record: logging.LogRecord, outlets: Sequence[logging.Handler]) -> None:
    """Hand a record to each of these that wants its level; none of them fails the code that logs.

    Each writes a record by one call, so none needs the lock of `Handler.handle`, which an interrupt could leave held.
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
    except Exception as fault:  # arguments that do not fit, for example
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
    """In the `with`, send prints to the log, and to nowhere what is written to the descriptor."""
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
    """Takes text line by line; the rest of what a text file has is that of the real standard output."""

    def __init__(self, real: TextIO, log: Log) -> None:
        self._real = real
        self._log = log
        self._begun: dict[int, tuple[TaskLabel | None, str]] = {}
        """The line that each thread has not ended yet, and its task."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def detach(self) -> BinaryIO:
        """Give what modules wrap in a writer of their own; the worker goes on with the real one."""
        return self._real.buffer

    def write(self, text: str) -> int:
        from ...worker.task_context import running_task  # a run that finds no task does without it

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
        """Log what no end of a line followed."""
        while self._begun:
            by, begun = self._begun.popitem()[1]
            self._log.print(begun, by)
