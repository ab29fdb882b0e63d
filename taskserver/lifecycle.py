"""A task: its limits, its statuses, and what a worker holds of it.

Imported by the stores and by everything above them; knows no database.
"""

# Annotations are not deferred here: named tuples compile deferred ones, which each empty run would pay for.

from enum import IntEnum
from typing import NamedTuple

MAX_TASK_LENGTH = 255
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


class NewTask(NamedTuple):
    """A checked task, in the order of the columns that an INSERT names."""

    task: str
    args: str | None
    group_id: int
    priority: int


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


class Finish(NamedTuple):
    """How an attempt ended: well where `error_text` is None, else to be retried, or fatal."""

    task: ClaimedTask
    error_text: str | None = None
    retry_seconds: float | None = None
    """After so long it becomes new again; None where it is fatal."""
    uncount: bool = False
    """Of a bad row that was found to be one after its start: it was never called, so no attempt is counted."""


class LostTask(NamedTuple):
    """A started task whose lease has ended: its worker vanished."""

    id: int
    attempts: int
    max_attempts: int | None
    task: str


class Due(NamedTuple):
    """Rows for which the time has come, by their ids."""

    to_wake: list[int]
    """Waiting, and failed ones to be retried."""
    unstarted: list[int]
    """Claimed by a worker that vanished before it started them."""
    lost: list[LostTask]
