"""Records of the log, and their lines.

Rows and tasks choose texts in a record: these must not look like our own lines.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ...messages.log_records import FULL_TEXT
from ...messages.text import escaped, printable

if TYPE_CHECKING:
    from ...worker.task_context import TaskLabel

LEVELS = ((50, "CRITICAL"), (40, "ERROR"), (30, "WARNING"), (20, "INFO"))
MAX_MESSAGE = 100_000
"""Characters that a task logs or prints in one record."""


class TaskRecord(logging.LogRecord):
    """A record of what a task printed or logged."""

    def __init__(
        self, name: str, level: int, message: str, by: TaskLabel | None, error: str = "", full_text: str = ""
    ) -> None:
        """`by` is the task, if it is known; `error` and `full_text` belong to a logged exception."""
        super().__init__(name, level, "", 0, message[:MAX_MESSAGE], None, None)
        self.by = by
        if by is not None:
            self.task_id, self.task, self.attempt = by.id, by.task, by.attempt
        if error:
            self.error = error
        setattr(self, FULL_TEXT, full_text)


def level_name(record: logging.LogRecord) -> str:
    """One of Python's five level names, even if a module renamed or added levels."""
    return next((name for least, name in LEVELS if record.levelno >= least), "DEBUG")


def lines_of(record: logging.LogRecord) -> list[str]:
    """The first line, and indented those of its text or traceback, so that a task's text can't look like our lines."""
    first, more = record.getMessage(), getattr(record, FULL_TEXT, "")
    if isinstance(record, TaskRecord):
        first, _, others = first.partition("\n")
        first = f"{f'{record.by}, ' if record.by else ''}{record.name}: {first}"
        more = "\n".join(filter(None, (others, more)))
    return [printable(first), *(f"    {escaped(line)}" for line in more.split("\n") if more)]
