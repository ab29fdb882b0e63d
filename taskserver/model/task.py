"""A task: its limits, its statuses, and the records of it that pass between stores and workers.

Imported by the stores and by everything above them; knows no database.
"""

# Annotations are not deferred here: named tuples compile deferred ones, which each empty run would pay for.

from enum import Enum, IntEnum
from typing import Final, NamedTuple, TypeVar

MAX_TASK_LENGTH = 255
MAX_ID = 2**64 - 1
"""No id of MySQL is greater; those of SQLite end at MAX_SIGNED."""
MAX_SIGNED = 2**63 - 1
"""SQLite takes no greater number; each limit on how many rows are meant ends here, too."""
MAX_GROUP_ID = 2**32 - 2
"""The number behind it stands for all groups in the table of pauses."""
MAX_GROUPS = 400
"""Of one claim, and of one choice of tasks: SQLite joins 500 parts in one statement at most."""
MAX_PRIORITY = 2**31 - 1
MIN_PRIORITY = -(2**31)
MAX_ATTEMPTS = 1_000_000
MAX_BATCH = 1000
MAX_SECONDS = 7 * 86_400
"""The longest lease, and the longest timeout."""

UNDATED = "0000-00-00"
"""The error_text by which a claim marks a row whose due_at is that: MySQL without STRICT stores it for a bad time."""

MODES = ("delete", "move", "mark")
"""What a finish does to a completed row: delete it, move it to the archive, or mark it done."""
DEFAULT_TABLE = "jobs_queue"
ALL_GROUPS = "all"
"""How the record of runs names a worker without GROUP_IDS."""


class Status(IntEnum):
    """The numbers of the column `status`."""

    NEW = 0
    IN_PROGRESS = 1
    DONE = 2
    ERROR = 3
    """The last attempt failed; the task is retried at due_at."""
    FATAL = 4
    """The task failed, and is not retried."""
    WAITING = 5
    CANCELLED = 7
    """A person cancelled the task; retry brings it back. (6 is a row on its way to the archive, seen by nobody.)"""

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
"""An argument of a producer that was left out: None is a value of some."""


def given_or(value: T | NotGiven, otherwise: T) -> T:
    """A producer's value, or another one where it was left out."""
    return otherwise if value is NOT_GIVEN else value


def name_of_status(status: int) -> str:
    """The name of a status in small letters; `status_9` for a number that is none, `other` for all such numbers."""
    if status < 0:
        return "other"
    return Status(status).name.lower() if status in set(Status) else f"status_{status}"


def known_status(number: int) -> int:
    """The Status of a number; the number where it is none: any program may have put any number into a row."""
    try:
        return Status(number)
    except ValueError:
        return number


CANCELLED = "cancelled"
"""The error_text of a task that a person cancelled; a running one has it until its worker hears of it."""


POSTPONED = "postponed"
"""The begin of the error_text of a waiting task that asked to be run later."""
LOST = "lost"
"""The begin of the error_text of a task whose worker vanished."""


class ClaimedTask(NamedTuple):
    """A row that this worker has claimed, as the claim read it."""

    id: int
    task: str
    args: str | None
    """JSON text; None without arguments, and where long arguments are left in the database."""
    args_bytes: int | None
    """The length of the arguments in the row; None without arguments."""
    attempts: int
    """How often the task was started before this claim."""
    max_attempts: int | None
    claim: int
    """The claim token: every write to the row names it."""
    group_id: int = 0
    waited_seconds: float = 0.0
    """From the instant at which the task was ready to the claim."""
    stages: str | None = None
    """The stages of a pipeline, as JSON; None for other tasks, and where long ones are left in the database."""
    stages_bytes: int | None = None
    """The length of the stages in the row."""
    stage: int = 0
    """How many stages are over."""
    awaited: int = 0
    """1 where other tasks waited for this task when it was claimed."""
    is_undated: int = 0
    """1 if its due_at was no valid time."""
    schedule_key: str | bytes | None = None
    """The unique_key of a task that a schedule added."""

    @property
    def text_bytes(self) -> int:
        """The length of arguments and stages together."""
        return (self.args_bytes or 0) + (self.stages_bytes or 0)

    @property
    def has_texts(self) -> bool:
        """Whether arguments and stages are here: the claim left none of them in the database."""
        return (self.args is not None or not self.args_bytes) and (self.stages is not None or not self.stages_bytes)


class Claim(NamedTuple):
    """The rows that one claiming UPDATE took."""

    tasks: list[ClaimedTask]
    """In the order in which they run."""
    changed: int
    """Rows that the UPDATE changed: the tasks, and new rows that became waiting because they are due later."""


class Changed(NamedTuple):
    """The rows that a claiming UPDATE changed."""

    rows: int
    """How many: those of the claim, and those that became waiting instead."""
    tasks: list[ClaimedTask] | None = None
    """The claimed ones, in the order in which they are to run; None where they are still to be read."""


class LostTask(NamedTuple):
    """A started task whose lease has ended: its worker vanished."""

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
        """Whether a producer changed the task while it ran, and nobody cancelled it after that."""
        return self.attempts == 0 and not self.is_cancelled


class Due(NamedTuple):
    """Rows whose time has come, by their ids."""

    to_wake: list[int]
    """Waiting tasks, and failed tasks to be retried."""
    unstarted: list[int]
    """Tasks whose worker vanished before it started them."""
    lost: list[LostTask]
    """Tasks whose worker vanished while they ran."""
    schedules: list[str]
    """Names of the schedules whose next time has come."""
    linked: list[int]
    """Tasks that wait for others or are waited for, to be settled by stores/queue/dependencies.py."""
