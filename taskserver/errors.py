"""Every error that taskserver raises, under one root class.

First in the order of imports: everything may import this module, and it imports nothing.
Each message carries the fact and the way out, in one line, so that it can be shown as it stands.
"""

LONGEST_DELAY_SECONDS = 366 * 86_400


class TaskServerError(Exception):
    """The root of all errors of this package."""


class SettingError(TaskServerError):
    """A setting is missing or wrong; the message names its key and what is allowed."""


class InvalidTask(TaskServerError):
    """What a producer wants to add cannot be a task; nothing was added."""


class DatabaseError(TaskServerError):
    """The database could not be reached or used."""

    may_have_taken_effect = False
    """Whether the connection broke in one of its tries, so that what was to be written may stand there."""


class Unavailable(DatabaseError):
    """The database is away, or refuses for now: worth trying again later. Nothing was done."""


class ServerFull(Unavailable):
    """The server is there, and has no connection to give for now."""


class ConnectionLost(Unavailable):
    """The connection broke; whether the last statement took effect is unknown."""


class Conflict(DatabaseError):
    """A deadlock or a lock that did not come in time: rolled back, and worth trying again at once."""


class TablesMissing(DatabaseError):
    """The queue's tables are not there."""


class TablesOutdated(DatabaseError):
    """The tables were made by another version of taskserver."""


class TooLong(DatabaseError):
    """What was to be written is longer than the server takes in one statement. Nothing was done."""


class AlreadyThere(DatabaseError):
    """A column or an index that was to be made stands already."""


class BadTask(TaskServerError):
    """A row that can never run, whatever is tried: it becomes fatal with this message."""


class ModuleBroken(TaskServerError):
    """A listed module could not be imported; it may be mended, unlike a bad row."""


class Retry(TaskServerError):
    """Raised by a task: this attempt failed, try again after `delay` seconds (None: as its backoff says)."""

    def __init__(self, message: str = "", *, delay: float | None = None) -> None:
        if delay is not None and not is_delay(delay):
            raise SettingError(f"delay is {delay!r:.80}; allowed: seconds from 0 to {LONGEST_DELAY_SECONDS}")
        super().__init__(message)
        self.delay = delay


def is_delay(value: object) -> bool:
    """Whether something can be the seconds before a retry."""
    return type(value) in (int, float) and 0 <= value <= LONGEST_DELAY_SECONDS  # type: ignore[operator]


class Fatal(TaskServerError):
    """Raised by a task: it failed, and no other attempt is to be made."""
