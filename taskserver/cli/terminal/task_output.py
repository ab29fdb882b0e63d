"""What tasks print, and log by the module `logging`: both go to TASKSERVER_LOG, with the task's id, name and attempt.

Python has no place for a handler that a tasks module could not take away (`logging.config.dictConfig` removes all), or
whose presence would not break that module's own logging (`logging.basicConfig` does nothing where the root has one, and
the level of the root is that of everybody's handlers). So no logger gets a handler or a level here. Instead, in our own
programs alone, these parts of `logging` are replaced:

    Logger.callHandlers       the records of all loggers come by here, and then reach the handlers that tasks made
    Logger.getEffectiveLevel  has records made that the log wants, and that the root's level would suppress
    basicConfig               not where `logging.warning` calls it by itself: that would write to standard error
    lastResort                does not print what our own logger says, which has outlets of its own
"""

from __future__ import annotations

import io
import logging
import sys
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, BinaryIO, TextIO

from ...messages.printable import shown
from .log_lines import TaskRecord, deliver

if TYPE_CHECKING:
    from ...worker.task_context import TaskLabel

MAX_PRINTED_LINE = 10_000
"""Characters of one line; a task may print without ever ending a line."""
MAX_MESSAGE = 100_000
"""Characters of a logged message."""


def running_task() -> TaskLabel | None:
    """The task whose code runs here, if any."""
    # No task runs before this module is imported, and a run that finds none does not import it.
    module: Any = sys.modules.get("taskserver.worker.task_context")
    return None if module is None else module.running_task()


class TaskOutput:
    """Hands what tasks print and log to the log."""

    def __init__(self, file: logging.Handler | None, screen: logging.Handler | None, least: int) -> None:
        """`file` gets all from its level on; `screen` gets prints, and records for which tasks made no handler.

        Records from the level `least` on are made whatever level the root logger has.
        """
        self._file = [file] if file else []
        self._all = [*self._file, screen] if screen else self._file
        self._has_prints = any(outlet.level <= logging.INFO for outlet in self._all)
        self._least = least
        self._theirs = threading.local()

    # ---- what tasks print

    @property
    def keeps_prints(self) -> bool:
        """Whether what is printed now is to be logged.

        Not what a task's own handler prints of a record: the log has the record itself.
        """
        return self._has_prints and not getattr(self._theirs, "is_called", False)

    def print(self, line: str, by: TaskLabel | None) -> None:
        """Log a line that a task printed."""
        deliver(TaskRecord("printed", logging.INFO, line, by), self._all)

    # ---- what tasks log

    def begin(self) -> None:
        """Take in the records of all loggers but our own, until `end`."""
        self._replaced = logging.Logger.callHandlers, logging.Logger.getEffectiveLevel
        self._replaced_functions = logging.basicConfig, logging.lastResort
        self._install()
        logging.root.setLevel(logging.root.level)  # makes loggers forget what they found to be enabled

    def _install(self) -> None:
        call_handlers, level_of = self._replaced
        basic_config, _ = self._replaced_functions

        def catch(logger: logging.Logger, record: logging.LogRecord) -> None:
            if logger.name == "taskserver":  # has its outlets
                call_handlers(logger, record)
                return
            is_configured = logger.hasHandlers()
            self._say(record, self._file if is_configured else self._all)
            if is_configured and record.levelno >= level_of(logger):
                self._theirs.is_called = True
                try:
                    call_handlers(logger, record)
                finally:
                    self._theirs.is_called = False

        def effective_level(logger: logging.Logger) -> int:
            one = logger
            while one.parent is not None:
                if one.level:
                    return one.level
                one = one.parent
            return min(one.level, self._least)

        def configure(**options: Any) -> None:
            if options or sys._getframe(1).f_globals is not vars(logging):
                basic_config(**options)

        logging.Logger.callHandlers = catch  # type: ignore[method-assign, assignment]
        logging.Logger.getEffectiveLevel = effective_level  # type: ignore[method-assign, assignment]
        logging.basicConfig = configure
        logging.lastResort = logging.NullHandler()

    def end(self) -> None:
        """Leave the records of all loggers alone again."""
        logging.Logger.callHandlers, logging.Logger.getEffectiveLevel = self._replaced  # type: ignore[method-assign]
        logging.basicConfig, logging.lastResort = self._replaced_functions
        logging.root.setLevel(logging.root.level)

    def _say(self, record: logging.LogRecord, outlets: Sequence[logging.Handler]) -> None:
        """Log what a task logs. Its words are made before they are delivered: they may run the task's own code."""
        if not any(record.levelno >= outlet.level for outlet in outlets):
            return
        try:
            own = _own_record(record)
        except Exception as fault:  # arguments that do not fit, say: no reason to fail the task
            message = f"{shown(record.msg)} ({type(fault).__name__} as it is formatted)"
            own = TaskRecord(record.name, record.levelno, message, running_task())
        deliver(own, outlets)


def _own_record(record: logging.LogRecord) -> TaskRecord:
    """The record in plain words. Raises whatever the objects in it raise."""
    message, by = str(record.getMessage())[:MAX_MESSAGE], running_task()
    error = record.exc_info[1] if isinstance(record.exc_info, tuple) else None
    if error is None and not record.stack_info:
        return TaskRecord(record.name, record.levelno, message, by)
    from ...messages.error_text import describe, full_traceback, stack_without_callers  # most runs log no error

    if error is None:
        stack = stack_without_callers(str(record.stack_info))
        return TaskRecord(record.name, record.levelno, message, by, full_text=stack)
    first_line = describe(error).partition("\n")[0]
    return TaskRecord(record.name, record.levelno, message, by, first_line, full_traceback(error))


class PrintsToLog(io.TextIOBase):
    """Replaces standard output where it is no terminal: the prints of tasks go to the log, line by line.

    Bytes, and the output of programs that a task starts, go where the descriptor leads. Modules are written at a
    terminal, where standard output is a `TextIOWrapper`: what they ask of that, they may ask of this.
    """

    encoding = "utf-8"
    errors = "backslashreplace"  # any text can be printed

    def __init__(self, real: TextIO, output: TaskOutput) -> None:
        self._real = real
        self._output = output
        self._lines: dict[int, _Line] = {}
        """The line that each thread has not ended yet."""

    def __getattr__(self, name: str) -> Any:
        """What is not here, as `name` and `mode`, is that of the real one."""
        return getattr(self._real, name)

    def reconfigure(self, **options: object) -> None:
        """Do nothing: the log has an encoding, and lines, of its own."""

    def detach(self) -> BinaryIO:
        return self._real.buffer

    @property
    def buffer(self) -> BinaryIO:
        return self._real.buffer

    def fileno(self) -> int:
        return self._real.fileno()

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if self._output.keeps_prints:
            thread, by = threading.get_ident(), running_task()
            line = self._lines.pop(thread, None) or _Line(by)
            if line.by != by:  # another task's
                self._log(line)
                line = _Line(by)
            *ended, rest = text.split("\n")
            for piece in ended:
                self._gather(line, piece)
                self._log(line)
            self._gather(line, rest)
            if line.pieces:
                self._lines[thread] = line
        return len(text)

    def _gather(self, line: _Line, text: str) -> None:
        """Add to the line so far; log it first where it would grow too long."""
        for first in range(0, len(text), MAX_PRINTED_LINE):
            piece = text[first : first + MAX_PRINTED_LINE]
            if line.length + len(piece) > MAX_PRINTED_LINE:
                self._log(line)
            line.pieces.append(piece)
            line.length += len(piece)

    def _log(self, line: _Line) -> None:
        if line.pieces:
            self._output.print("".join(line.pieces), line.by)
        line.pieces, line.length = [], 0

    def end(self) -> None:
        """Log what no end of a line followed."""
        while self._lines:
            self._log(self._lines.popitem()[1])


class _Line:
    """What a thread has printed of a line so far, for this task."""

    def __init__(self, by: TaskLabel | None) -> None:
        self.by = by
        self.pieces: list[str] = []
        self.length = 0
