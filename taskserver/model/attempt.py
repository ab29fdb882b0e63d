"""An attempt at a task: its start, its end, and the outcome."""

# Annotations are not deferred here: named tuples compile deferred ones.

from enum import Enum
from typing import NamedTuple

from .task import POSTPONED, ClaimedTask


class Start(NamedTuple):
    """The beginning of an attempt."""

    task: ClaimedTask
    max_attempts: int | None
    """The task's limit; None keeps the row's own."""


class NextStage(NamedTuple):
    """The values that a pipeline's row gets after a stage; None keeps the row's own."""

    task: str
    group_id: int | None = None
    priority: int | None = None
    max_attempts: int | None = None
    args: str | None = None
    """The result of the stage before, as JSON; it becomes known last."""


class Finish(NamedTuple):
    """The end of an attempt: it succeeded if `error_text` is None; else it is retried, fatal or cancelled."""

    task: ClaimedTask
    error_text: str | None = None
    retry_seconds: float | None = None
    """Seconds until a failed task becomes new again; None: it is fatal, or cancelled if that is its error_text."""
    is_uncounted: bool = False
    """Whether to uncount the start: the row turned out to be bad, or the task is postponed."""
    next_stage: NextStage | None = None
    """The next stage, if the attempt succeeded."""
    result: str | None = None
    """The task's result as JSON, if the attempt succeeded, no stage follows, and the row is kept."""
    keep_reason: str | None = None
    """Why the row is kept and marked done in every mode: the database did not delete it."""

    @property
    def is_end(self) -> bool:
        return self.next_stage is None and self.retry_seconds is None

    @property
    def is_postponed(self) -> bool:
        return self.is_uncounted and self.retry_seconds is not None

    @property
    def is_plain(self) -> bool:
        """Whether the task is done, without a text for its row and without children."""
        has_texts = self.error_text is not None or self.result is not None or self.keep_reason is not None
        return not (has_texts or self.next_stage is not None or self.task.awaited)


def postponed(task: ClaimedTask, why: str, seconds: float) -> Finish:
    """In progress → waiting, with no attempt counted: the task raised Later, or cannot run now."""
    return Finish(task, f"{POSTPONED}: {why}" if why else POSTPONED, seconds, is_uncounted=True)


class Outcome(Enum):
    """The outcome of a finish."""

    LOST = "lost"
    """Nothing was written: the claim was lost."""
    AS_ASKED = "as asked"
    KEPT = "kept"
    """The task is done, but its row is kept and marked: the database silently did not delete it."""
    RUN_AGAIN = "run again"
    """The task is new again, because a rerun came while it ran."""
    CANCELLED = "cancelled"
    """The task is cancelled, because a cancel came while it ran: no retry, no rerun."""


class FailedAttempt(NamedTuple):
    """A failed attempt, as TASKSERVER_ON_FAILURE gets it; or a bad row, which had no attempt."""

    id: int
    task: str
    attempt: int
    """The number of the attempt, from 1 on; for a bad row, how often it was started."""
    error: BaseException
    """The exception; a TaskServerError for a lost task or a bad row."""
    is_fatal: bool
    """Whether the task is now fatal; otherwise it will be retried, or its on_fatal has completed it."""
