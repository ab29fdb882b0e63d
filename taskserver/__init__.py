"""taskserver: a task queue in the database that a site has already, run by cron."""

# Old Pythons must be able to parse this file, to show which version is needed.
import sys

if sys.version_info < (3, 10):
    raise ImportError("taskserver needs Python 3.10 or newer, and this is %d.%d" % sys.version_info[:2])

from typing import TYPE_CHECKING

from .errors import (
    DatabaseError,
    Fatal,
    InvalidTask,
    Later,
    LeaseLost,
    NotEnded,
    Retry,
    SettingError,
    TablesMissing,
    TablesOutdated,
    TaskServerError,
)
from .worker.result import Reason, RunResult
from .server import TaskServer
from .interrupts.stop import Stop

if TYPE_CHECKING:
    from .worker.task_context import CurrentTask, complete, connection, current_task, progress
    from .model.attempt import FailedAttempt
    from .model.task import Status
    from .model.task_options import task
    from .model.schedule import Schedule
    from .model.results import Progress, TaskState
    from .model.selection import Selection
    from .messages.finding import Finding, Level
    from .health.status import GroupStatus, QueueStatus
    from .stores.records import ErrorCount, LastRun, RunningTask, TaskRow, WorkerProcess
    from .stores.queue.schedules import StoredSchedule
    from .stores.queue.stats import HourStats
    from .spread import Added, Spread

__all__ = [
    "Added",
    "CurrentTask",
    "DatabaseError",
    "ErrorCount",
    "FailedAttempt",
    "Fatal",
    "Finding",
    "GroupStatus",
    "HourStats",
    "InvalidTask",
    "LastRun",
    "Later",
    "LeaseLost",
    "Level",
    "NotEnded",
    "Progress",
    "QueueStatus",
    "Reason",
    "Retry",
    "RunResult",
    "RunningTask",
    "Schedule",
    "Selection",
    "SettingError",
    "Spread",
    "Status",
    "Stop",
    "StoredSchedule",
    "TablesMissing",
    "TablesOutdated",
    "TaskRow",
    "TaskServer",
    "TaskServerError",
    "TaskState",
    "WorkerProcess",
    "__version__",
    "complete",
    "connection",
    "current_task",
    "progress",
    "task",
]

__version__ = "0.1.0"


_LATER = {
    "CurrentTask": "worker.task_context",
    "FailedAttempt": "model.attempt",
    "Progress": "model.results",
    "Schedule": "model.schedule",
    "Selection": "model.selection",
    "complete": "worker.task_context",
    "connection": "worker.task_context",
    "current_task": "worker.task_context",
    "progress": "worker.task_context",
    "Status": "model.task",
    "TaskState": "model.results",
    "task": "model.task_options",
    "Finding": "messages.finding",
    "Level": "messages.finding",
    "GroupStatus": "health.status",
    "QueueStatus": "health.status",
    "ErrorCount": "stores.records",
    "LastRun": "stores.records",
    "WorkerProcess": "stores.records",
    "StoredSchedule": "stores.queue.schedules",
    "TaskRow": "stores.records",
    "RunningTask": "stores.records",
    "HourStats": "stores.queue.stats",
    "Added": "spread",
    "Spread": "spread",
}


def __dir__():  # type: () -> list[str]
    return sorted({*globals(), *__all__})


def __getattr__(name):  # type: (str) -> object
    """Import these names when first used, so that an empty run does not pay for them."""
    if name not in _LATER:
        raise AttributeError("module 'taskserver' has no attribute " + repr(name))
    from importlib import import_module

    return getattr(import_module("." + _LATER[name], __name__), name)
