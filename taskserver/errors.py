"""Every error that taskserver raises, under one root class.

First in the order of imports: everything may import this module, and it imports nothing.
Each message carries the fact and the way out, in one line, so that it can be shown as it stands.
"""


class TaskServerError(Exception):
    """The root of all errors of this package."""


class SettingError(TaskServerError):
    """A setting is missing or wrong; the message names its key and what is allowed."""


class InvalidTask(TaskServerError):
    """What a producer wants to add cannot be a task; nothing was added."""


class DatabaseError(TaskServerError):
    """The database could not be reached or used."""


class ConnectionLost(DatabaseError):
    """The connection broke; whether the last statement took effect is unknown."""


class Conflict(DatabaseError):
    """A deadlock or a lock that did not come in time: rolled back, and worth trying again."""


class TablesMissing(DatabaseError):
    """The queue's tables are not there."""


class TablesOutdated(DatabaseError):
    """The tables were made by another version of taskserver."""


class BadTask(TaskServerError):
    """A row that can never run, whatever is tried: it becomes fatal with this message."""


class ModuleBroken(TaskServerError):
    """A listed module could not be imported; it may be mended, unlike a bad row."""
