"""The lines of a log record, and its delivery.

Rows and tasks choose names and texts in a record; none of these may look like a line of ours.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ...messages.log_records import FULL_TEXT
from ...messages.printable import escaped, printable

if TYPE_CHECKING:
    from ...worker.task_context import TaskLabel

INDENT = "    "
LEVELS = ((50, "CRITICAL"), (40, "ERROR"), (30, "WARNING"), (20, "INFO"))


class OwnRecord(logging.LogRecord):
    """A record whose words are made here: a module may have replaced `LogRecord.getMessage`."""

    def getMessage(self) -> str:  # noqa: N802
        text = str(self.msg)
        if not self.args:
            return text
        try:
            return text % self.args
        except Exception:  # a task logs by our logger, and its arguments do not fit
            return text


class TaskRecord(OwnRecord):
    """A record of what a task printed, or logged by a logger of that name."""

    def __init__(
        self, name: str, level: int, message: str, by: TaskLabel | None = None, error: str = "", full_text: str = ""
    ) -> None:
        """`by` is the task, where that is known; `error` and `full_text` are those of an exception that it logged."""
        super().__init__(name, level, "", 0, message, None, None)
        self.by = by
        if by is not None:
            self.task_id, self.task, self.attempt = by.id, by.task, by.attempt
        if error:
            self.error = error
        setattr(self, FULL_TEXT, full_text)


def level_name(record: logging.LogRecord) -> str:
    """One of Python's five names of levels, also where a module has given a level another name, or its own number."""
    return next((name for least, name in LEVELS if record.levelno >= least), "DEBUG")


def lines_of(record: logging.LogRecord) -> list[str]:
    """The lines that a record takes: the first one, and the indented lines below it, as those of a traceback."""
    first, more = record.getMessage(), getattr(record, FULL_TEXT, "")
    if isinstance(record, TaskRecord):
        first, _, others = first.partition("\n")
        by = f"{record.by}, " if record.by else ""
        first = f"{by}{record.name}: {first}"
        more = "\n".join(filter(None, (others, more)))
    return [printable(first), *(indented(more) if more else ())]


def indented(text: str) -> list[str]:
    """The lines of a text as they stand below the line that they belong to."""
    return [f"{INDENT}{escaped(line)}" for line in text.split("\n")]


def deliver(record: logging.LogRecord, outlets: Sequence[logging.Handler]) -> None:
    """Hand a record to each of these handlers that wants its level."""
    for outlet in outlets:
        if record.levelno >= outlet.level:
            lock: Any = outlet.lock
            # Not Handler.handle(): before Python 3.13 an interrupt could leave the lock held there, and the heartbeat
            # would wait for it for ever. A task may hand anything to our logger as the attributes of a record.
            with suppress(Exception), lock:
                outlet.emit(record)
