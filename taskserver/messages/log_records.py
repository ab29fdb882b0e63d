"""The extra attributes of the package's log records, for logs and Sentry; and steps whose errors are only logged."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from logging import INFO, getLogger

from ..errors import DatabaseError, Unavailable

LOG = getLogger("taskserver")

FULL_TEXT = "_full_text"
"""The traceback as text. Sentry's SDK shows all attributes except those with a leading underscore."""
LOG_ONLY = "_log_only"
"""Marks an error that needs nobody yet: it is not on standard error, and so not in cron's mail."""
ONCE_AN_HOUR = "_once_an_hour"
"""Marks a warning that each run would repeat until it is fixed: standard error has it once an hour."""


def about_task(
    task_id: int,
    task: str,
    attempt: int,
    error: str = "",
    full_text: str = "",
    is_fatal: bool = False,
    log_only: bool = False,
) -> dict[str, object]:
    """The `extra` of a record about a task; `error` is the first line of its error, `full_text` the traceback."""
    extra: dict[str, object] = {"task_id": task_id, "task": task, "attempt": attempt}
    if error:
        extra |= {"error": error, FULL_TEXT: full_text, LOG_ONLY: log_only}
    return extra | {"is_fatal": True} if is_fatal else extra


@contextmanager
def optional_step(words: str, level: int = INFO) -> Iterator[None]:
    """The `with` is a step that a run can skip if it lacks the right: errors are logged. Raises Unavailable."""
    try:
        yield
    except Unavailable:
        raise
    except DatabaseError as error:
        LOG.log(level, "%s: %s", words, error, extra={ONCE_AN_HOUR: True})
