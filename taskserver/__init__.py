"""taskserver: a task queue in the database that a site has already, run by cron."""

# Written so that any old Python can read it, and be told which one is needed.
import sys

if sys.version_info < (3, 10):
    raise ImportError("taskserver needs Python 3.10 or newer, and this is %d.%d" % sys.version_info[:2])

from typing import TYPE_CHECKING

from .errors import (
    DatabaseError,
    Fatal,
    InvalidTask,
    Retry,
    SettingError,
    TablesMissing,
    TablesOutdated,
    TaskServerError,
)
from .run_result import Reason, RunResult
from .server import TaskServer
from .stopping import Stop

if TYPE_CHECKING:
    from .options import task
    from .selection import Selection

__all__ = [
    "DatabaseError",
    "Fatal",
    "InvalidTask",
    "Reason",
    "Retry",
    "RunResult",
    "Selection",
    "SettingError",
    "Stop",
    "TablesMissing",
    "TablesOutdated",
    "TaskServer",
    "TaskServerError",
    "__version__",
    "task",
]

__version__ = "0.1.0"


def __dir__():  # type: () -> list[str]
    return sorted({*globals(), *__all__})


def __getattr__(name):  # type: (str) -> object
    """These are made when somebody asks for them: a run that finds no task need not pay for them."""
    if name == "task":
        from .options import task

        return task
    if name == "Selection":
        from .selection import Selection

        return Selection
    raise AttributeError("module 'taskserver' has no attribute " + repr(name))
