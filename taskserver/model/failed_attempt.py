"""A failed attempt, as TASKSERVER_ON_FAILURE gets it."""

# Annotations are not deferred here: named tuples compile deferred ones.

from typing import NamedTuple


class FailedAttempt(NamedTuple):
    """An attempt at a task that failed; or a row that can never run, of which none was made."""

    id: int
    task: str
    attempt: int
    """The number of the attempt, from 1 on; of a row that can never run, how often it was started."""
    error: BaseException
    """The exception; a TaskServerError where the task's code raised none: a lost task, a row that can never run."""
    is_fatal: bool
    """Whether the task is fatal now; otherwise it is tried again, or what is called for fatal tasks has done it."""
