"""A task: its limits, its statuses, and what a worker holds of it.

Imported by the stores and by everything above them; knows no database.
"""

# Annotations are not deferred here: named tuples compile deferred ones, which each empty run would pay for.

from enum import IntEnum
from typing import NamedTuple

MAX_TASK_LENGTH = 255
MAX_ID = 2**63 - 1
MAX_GROUP_ID = 2**32 - 1
MAX_PRIORITY = 2**31 - 1
MIN_PRIORITY = -(2**31)


class Status(IntEnum):
    """What the column `status` says."""

    NEW = 0
    IN_PROGRESS = 1
    DONE = 2
    ERROR = 3
    """Failed, and will be retried at due_at."""
    FATAL = 4
    """Failed, and will not be retried."""
    WAITING = 5


CANCELLED = "cancelled"
"""The error_text of a task that a person cancelled: fatal, or still running until its worker hears of it."""


class NewTask(NamedTuple):
    """A checked task, as a producer gave it."""

    task: str
    args: str | None
    group_id: int
    priority: int
    max_attempts: int | None = None
    delay_seconds: float | None = None
    """It waits for so long, by the database's clock, or"""
    due_at: str | None = None
    """until then: YYYY-MM-DD HH:MM:SS.ffffff in UTC."""
    unique_key: str | None = None
    rerun: bool = False
    """Whether a row that has the key becomes new again; else it stays as it is."""
    version: int | None = None
    """A rerun changes no row of this version or a newer one."""
    stages: str | None = None
    """Those of a pipeline, as JSON; what stands above is the first one's."""
    depends_on: str | None = None
    """Ids of the tasks that it waits for, as 3,5."""


class ClaimedTask(NamedTuple):
    """A row that this worker has claimed, as the claim read it."""

    id: int
    task: str
    args: str | None
    """None where there are none, and where they are left in the database for being long."""
    args_bytes: int | None
    attempts: int
    """Times it was started before."""
    max_attempts: int | None
    claim: int
    """The claim token: every write to the row names it."""
    group_id: int = 0
    waited_seconds: float = 0.0
    """From the instant at which it was ready to that of the claim."""
    stages: str | None = None
    """Those of a pipeline, as JSON."""
    stage: int = 0
    """How many of them are over."""
    awaited: int = 0
    """1 where others waited for it when it was claimed."""


class Claim(NamedTuple):
    """What one claiming UPDATE got."""

    tasks: list[ClaimedTask]
    """In the order in which they are to run."""
    changed: int
    """Rows that it changed: those, and new rows that were put to waiting because their time lies ahead."""


class Start(NamedTuple):
    """The begin of an attempt, with the limit of attempts that was found for the task; None leaves the row's."""

    task: ClaimedTask
    max_attempts: int | None


class NextStage(NamedTuple):
    """What a pipeline's row becomes when a stage is over; None leaves the row's own."""

    task: str
    group_id: int | None = None
    priority: int | None = None
    max_attempts: int | None = None
    args: str | None = None
    """As the stage before it returned them; these are known last."""


class Finish(NamedTuple):
    """How an attempt ended: well where `error_text` is None, else to be retried, or fatal."""

    task: ClaimedTask
    error_text: str | None = None
    retry_seconds: float | None = None
    """After so long it becomes new again; None where it is fatal."""
    uncount: bool = False
    """Of a bad row that was found to be one after its start: it was never called, so no attempt is counted."""
    next_stage: NextStage | None = None
    """Where it ended well, and is a stage that another one follows."""
    result: str | None = None
    """What it returned, as JSON, where it ended well, is no such stage, and its row stays."""

    @property
    def is_end(self) -> bool:
        """Whether the task is over with it."""
        return self.next_stage is None and self.retry_seconds is None


class Outcome:
    """What came of a finish."""

    LOST = 0
    """Nothing: the claim was taken away."""
    AS_ASKED = 1
    RUN_AGAIN = 2
    """The task is new again, as it was changed while it ran."""
    CANCELLED = 3
    """It is fatal, as a person cancelled it while it ran: an error does not have it retried, nor a change run again."""
    AWAITED = 4
    """As asked, and what waits for the task is still to be told."""


class LostTask(NamedTuple):
    """A started task whose lease has ended: its worker vanished."""

    id: int
    attempts: int
    max_attempts: int | None
    task: str
    group_id: int = 0
    is_cancelled: bool = False

    @property
    def is_to_rerun(self) -> bool:
        """Whether its producer changed it while it ran, and nobody cancelled it after that."""
        return self.attempts == 0 and not self.is_cancelled


class Due(NamedTuple):
    """Rows for which the time has come, by their ids."""

    to_wake: list[int]
    """Waiting, and failed ones to be retried."""
    unstarted: list[int]
    """Claimed by a worker that vanished before it started them."""
    lost: list[LostTask]
    schedules: list[str]
    """Names of those whose next time has come."""
    linked: list[int]
    """What waits for other tasks, or is waited for, and is to be settled (stores/dependencies.py)."""
