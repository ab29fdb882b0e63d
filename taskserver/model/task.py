"""A task: its limits, its statuses, and its records that stores and workers exchange.

The stores and everything above them import this file; it uses no database.
"""

# Annotations are not deferred here: named tuples compile deferred ones, which slows down each empty run.

from enum import Enum, IntEnum
from typing import Final, NamedTuple, TypeVar

MAX_TASK_LENGTH = 255
MAX_ID = 2**64 - 1
"""MySQL's greatest id; SQLite's is MAX_SIGNED."""
MAX_SIGNED = 2**63 - 1
"""SQLite's greatest number, and so the greatest limit of rows."""
MAX_GROUP_ID = 2**32 - 2
"""The next number stands for all groups in the table of pauses."""
MAX_GROUPS = 400
"""In one claim or one Selection: SQLite joins at most 500 parts in a statement."""
MAX_PRIORITY = 2**31 - 1
MIN_PRIORITY = -(2**31)
MAX_ATTEMPTS = 1_000_000
MAX_BATCH = 1000
MAX_SECONDS = 7 * 86_400
"""The longest lease, and the longest timeout."""

UNDATED = "0000-00-00"
"""The error_text that a claim gives to a row with this due_at: MySQL without STRICT stores it for invalid times."""

MODES = ("delete", "move", "mark")
"""A completed row is deleted, moved to the archive, or marked done."""
DEFAULT_TABLE = "jobs_queue"
ALL_GROUPS = "all"
"""In the record of runs: a worker without GROUP_IDS."""


class Status(IntEnum):
    """The numbers of the column `status`."""

    NEW = 0
    IN_PROGRESS = 1
    DONE = 2
    ERROR = 3
    """The last attempt failed; the task will be retried at due_at."""
    FATAL = 4
    """The task failed and will not be retried."""
    WAITING = 5
    CANCELLED = 7
    """A person cancelled the task; retry makes it new. (6, which nobody can see, is a row during its move.)"""

    def __str__(self) -> str:
        return self.name.lower()

    def __format__(self, spec: str) -> str:
        return format(int(self) if spec.endswith("d") else str(self), spec)


T = TypeVar("T")


class NotGiven(Enum):
    """The type of NOT_GIVEN."""

    NOT_GIVEN = 0

    def __repr__(self) -> str:
        return "<as in @task>"


NOT_GIVEN: Final = NotGiven.NOT_GIVEN
"""A missing argument of a producer: None is a valid value for some."""


def given_or(value: T | NotGiven, otherwise: T) -> T:
    """A producer's value, or another one if it is missing."""
    return otherwise if value is NOT_GIVEN else value


def name_of_status(status: int) -> str:
    """The name of a status; `status_9` for an unknown number, `other` for all unknown numbers together."""
    if status < 0:
        return "other"
    return Status(status).name.lower() if status in set(Status) else f"status_{status}"


def known_status(number: int) -> int:
    """The Status of a number, or the number itself, which any program may have written."""
    try:
        return Status(number)
    except ValueError:
        return number


CANCELLED = "cancelled"
"""The error_text of a cancelled task; a running one has it until its worker notices."""
POSTPONED = "postponed"
"""Starts the error_text of a waiting task that raised Later."""
LOST = "lost"
"""Starts the error_text of a task that lost its worker."""


class ClaimedTask(NamedTuple):
    """A row that this worker has claimed."""

    id: int
    task: str
    args: str | None
    """JSON text; None without arguments, or if long ones are still in the database."""
    args_bytes: int | None
    """The length of the arguments; None without arguments."""
    attempts: int
    """How often the task was started before this claim."""
    max_attempts: int | None
    claim: int
    """The claim token, which every write to the row names."""
    group_id: int = 0
    waited_seconds: float = 0.0
    """From ready to claimed."""
    stages: str | None = None
    """The stages of a pipeline, as JSON; None for other tasks, or if long ones are still in the database."""
    stages_bytes: int | None = None
    """The length of the stages."""
    stage: int = 0
    """How many stages are finished."""
    awaited: int = 0
    """1 if other tasks waited for this task when it was claimed."""
    is_undated: int = 0
    """1 if its due_at was invalid."""
    schedule_key: str | bytes | None = None
    """The unique_key of a task that a schedule added."""

    @property
    def text_bytes(self) -> int:
        return (self.args_bytes or 0) + (self.stages_bytes or 0)

    @property
    def has_texts(self) -> bool:
        """Whether arguments and stages are here, not still in the database."""
        return (self.args is not None or not self.args_bytes) and (self.stages is not None or not self.stages_bytes)


class Claim(NamedTuple):
    """The outcome of a claim."""

    tasks: list[ClaimedTask]
    """In the order in which they run."""
    changed: int
    """The changed rows: the tasks, and new rows that became waiting because they are due later."""


class Changed(NamedTuple):
    """The rows that a claiming UPDATE changed."""

    rows: int
    """How many: claimed rows, and rows that became waiting."""
    tasks: list[ClaimedTask] | None = None
    """The claimed ones, in the order in which they run; None if they must still be read."""


class LostTask(NamedTuple):
    """A started task with an expired lease: its worker died."""

    id: int
    attempts: int
    max_attempts: int | None
    task: str
    group_id: int = 0
    is_cancelled: bool = False
    schedule_key: str | bytes | None = None
    """As in ClaimedTask."""
    began_seconds_ago: float = 0.0

    @property
    def should_rerun(self) -> bool:
        """Whether a rerun came while it ran, and no cancel."""
        return self.attempts == 0 and not self.is_cancelled


class Due(NamedTuple):
    """Due rows, by id."""

    to_wake: list[int]
    """Waiting tasks, and failed tasks to retry."""
    unstarted: list[int]
    """Tasks that lost their worker before they started."""
    lost: list[LostTask]
    """Tasks that lost their worker while they ran."""
    schedules: list[str]
    """Names of due schedules."""
    linked: list[int]
    """Tasks with parents: stores/queue/dependencies.py decides whether they still wait."""
