"""A task: its limits, its statuses, and the records of it that pass between stores and workers.

Imported by the stores and by everything above them; knows no database.
"""

# Annotations are not deferred here: named tuples compile deferred ones, which each empty run would pay for.

from enum import Enum, IntEnum
from typing import NamedTuple

MAX_TASK_LENGTH = 255
MAX_ID = 2**63 - 1
MAX_GROUP_ID = 2**32 - 1
MAX_PRIORITY = 2**31 - 1
MIN_PRIORITY = -(2**31)
MAX_ATTEMPTS = 1_000_000
MAX_BATCH = 1000
MAX_SECONDS = 7 * 86_400
"""The longest lease, and the longest timeout."""

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


CANCELLED = "cancelled"
"""The error_text of a task that a person cancelled: fatal, or running until its worker hears of it."""


class NewTask(NamedTuple):
    """A checked task, as a producer gave it."""

    task: str
    args: str | None
    group_id: int
    priority: int
    max_attempts: int | None = None
    delay_seconds: float | None = None
    """The task waits so long, by the database's clock; None where due_at says until when."""
    due_at: str | None = None
    """The task waits until this instant: YYYY-MM-DD HH:MM:SS.ffffff in UTC."""
    unique_key: str | None = None
    rerun: bool = False
    """Whether a row that has the key becomes new again; otherwise it stays as it is."""
    version: int | None = None
    """A rerun changes no row of this version or a newer one."""
    stages: str | None = None
    """The stages of a pipeline, as JSON; the fields above are the first stage's."""
    depends_on: str | None = None
    """Ids of the tasks that this task waits for, as 3,5."""


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
    """The stages of a pipeline, as JSON."""
    stage: int = 0
    """How many stages are over."""
    awaited: int = 0
    """1 where other tasks waited for this task when it was claimed."""


class Claim(NamedTuple):
    """The rows that one claiming UPDATE took."""

    tasks: list[ClaimedTask]
    """In the order in which they run."""
    changed: int
    """Rows that the UPDATE changed: the tasks, and new rows that became waiting because their time lies ahead."""


class Start(NamedTuple):
    """The beginning of an attempt, with the limit of attempts found for the task; None leaves the row's own."""

    task: ClaimedTask
    max_attempts: int | None


class NextStage(NamedTuple):
    """The values that a pipeline's row takes when a stage is over; None leaves the row's own."""

    task: str
    group_id: int | None = None
    priority: int | None = None
    max_attempts: int | None = None
    args: str | None = None
    """The result of the stage before, as JSON; it is known last."""


class Finish(NamedTuple):
    """The end of an attempt: it succeeded where `error_text` is None; otherwise the task is retried, or fatal."""

    task: ClaimedTask
    error_text: str | None = None
    retry_seconds: float | None = None
    """Seconds until a failed task becomes new again; None makes it fatal."""
    uncount: bool = False
    """Whether a row was found to be bad only after its start: nothing was called, so no attempt is counted."""
    next_stage: NextStage | None = None
    """The stage that follows, where the attempt succeeded and was not the last stage."""
    result: str | None = None
    """The task's result as JSON, where the attempt succeeded, no stage follows, and the row stays."""

    @property
    def is_end(self) -> bool:
        """Whether the task is over with this attempt."""
        return self.next_stage is None and self.retry_seconds is None


class Outcome(Enum):
    """What came of a finish."""

    LOST = "lost"
    """Nothing: the claim was taken away."""
    AS_ASKED = "as asked"
    RUN_AGAIN = "run again"
    """The task is new again, as it was changed while it ran."""
    CANCELLED = "cancelled"
    """The task is fatal: a person cancelled it while it ran, so no error has it retried, and no change rerun."""
    AWAITED = "awaited"
    """As asked, and the tasks that wait for this one are still to be told."""


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
