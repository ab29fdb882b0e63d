"""An attempt at a task: its start, its end, and what came of the end."""

# Annotations are not deferred here: named tuples compile deferred ones.

from enum import Enum
from typing import NamedTuple

from .task import POSTPONED, ClaimedTask


class Start(NamedTuple):
    """The beginning of an attempt."""

    task: ClaimedTask
    max_attempts: int | None
    """The limit that was found for the task; None leaves the row's own."""


class NextStage(NamedTuple):
    """The values that a pipeline's row takes when a stage is over; None leaves the row's own."""

    task: str
    group_id: int | None = None
    priority: int | None = None
    max_attempts: int | None = None
    args: str | None = None
    """The result of the stage before, as JSON; it is known last."""


class Finish(NamedTuple):
    """The end of an attempt: it succeeded if `error_text` is None; else the task is retried, fatal or cancelled."""

    task: ClaimedTask
    error_text: str | None = None
    retry_seconds: float | None = None
    """Seconds until a failed task becomes new again; None makes it fatal, or cancelled if that is its error_text."""
    is_uncounted: bool = False
    """Whether its start is counted no more: the row was found to be bad only then, or the task is postponed."""
    next_stage: NextStage | None = None
    """The stage that follows, where the attempt succeeded and was not the last stage."""
    result: str | None = None
    """The task's result as JSON, where the attempt succeeded, no stage follows, and the row stays."""
    keep_reason: str | None = None
    """The reason why the row stays as a done one, in each mode: the database does not let it go."""

    @property
    def is_end(self) -> bool:
        """Whether the task is over with this attempt."""
        return self.next_stage is None and self.retry_seconds is None

    @property
    def is_postponed(self) -> bool:
        """Whether the task waits, and this attempt is not counted."""
        return self.is_uncounted and self.retry_seconds is not None

    @property
    def is_plain(self) -> bool:
        """Whether the task is done, and its row takes nothing more and concerns no other."""
        has_texts = self.error_text is not None or self.result is not None or self.keep_reason is not None
        return not (has_texts or self.next_stage is not None or self.task.awaited)


def postponed(task: ClaimedTask, why: str, seconds: float) -> Finish:
    """In progress → waiting, with no attempt counted: the task asked for that (Later), or cannot be run now."""
    return Finish(task, f"{POSTPONED}: {why}" if why else POSTPONED, seconds, is_uncounted=True)


class Outcome(Enum):
    """What came of a finish."""

    LOST = "lost"
    """Nothing: the claim was taken away."""
    AS_ASKED = "as asked"
    KEPT = "kept"
    """The task is done, and its row stays, marked: the database did not delete it, and did not say why."""
    RUN_AGAIN = "run again"
    """The task is new again, as it was changed while it ran."""
    CANCELLED = "cancelled"
    """The task is cancelled: a person did that while it ran, so no error retries it, and no change reruns it."""


class FailedAttempt(NamedTuple):
    """A failed attempt, as TASKSERVER_ON_FAILURE gets it; or a row that can never run, of which none was made."""

    id: int
    task: str
    attempt: int
    """The number of the attempt, from 1 on; of a row that can never run, how often it was started."""
    error: BaseException
    """The exception; a TaskServerError where the task's code raised none: a lost task, a row that can never run."""
    is_fatal: bool
    """Whether the task is fatal now; otherwise it is tried again, or what is called for fatal tasks has done it."""
