"""taskserver: a task queue in the database that a site has already, run by cron."""

from .errors import (
    DatabaseError,
    InvalidTask,
    SettingError,
    TablesMissing,
    TablesOutdated,
    TaskServerError,
)
from .run_result import Reason, RunResult
from .server import TaskServer
from .stopping import Stop

__all__ = [
    "DatabaseError",
    "InvalidTask",
    "Reason",
    "RunResult",
    "SettingError",
    "Stop",
    "TablesMissing",
    "TablesOutdated",
    "TaskServer",
    "TaskServerError",
    "__version__",
]

__version__ = "0.1.0"
