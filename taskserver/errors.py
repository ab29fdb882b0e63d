"""Every error that taskserver raises, under one root class.

First in the order of imports: every module may import this one, and it imports none.
Each message carries the fact and the way out, in one line, so that it can be shown as it stands.
"""

MAX_RETRY_DELAY_SECONDS = 366 * 86_400
UNIT_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}
SPAN_EXAMPLES = "as 90s, 5m, 1h or 2d"
"""Spans of time, for messages."""


class TaskServerError(Exception):
    """The root of all errors of this package."""


class SettingError(TaskServerError):
    """A setting is missing or wrong; the message names its key and what is allowed."""


class SetupFailed(SettingError):
    """TASKSERVER_SETUP failed, or cannot be had; no task was started."""

    full_text = ""
    """The traceback in words, for a log."""


class InvalidTask(TaskServerError):
    """A value that was given for a task is wrong; nothing was added or changed."""


class NotEnded(TaskServerError, TimeoutError):
    """A task that was waited for has not ended in time; it goes on."""


class DatabaseError(TaskServerError):
    """The database could not be reached or used."""

    in_doubt = False
    """Whether the connection broke in one of the tries, so that the write may have been committed."""


class Unavailable(DatabaseError):
    """The database is away, or refuses for now: try again later. Nothing was done."""


class ServerFull(Unavailable):
    """The server is there, and has no connection free for now."""


class ConnectionLost(Unavailable):
    """The connection broke; whether the last statement took effect is unknown."""


class Conflict(DatabaseError):
    """A deadlock, or a lock that did not come in time. The transaction is rolled back: try again at once."""


class TablesMissing(DatabaseError):
    """The queue's tables are not there."""


class ColumnsMissing(DatabaseError):
    """A table lacks columns of ours: it is another program's, or of another version."""


class TablesOutdated(DatabaseError):
    """The tables were made by another version of taskserver."""


class TooLong(DatabaseError):
    """A statement is longer than the server takes. Nothing was done."""


class Refused(DatabaseError):
    """A rule of the database forbids a write to a row: a foreign key, a trigger of the site. Nothing was done."""


class NotUnderstood(DatabaseError):
    """The server does not know the syntax of a statement. Nothing was done."""


def is_refusal(error: DatabaseError) -> bool:
    """Whether a write failed for a reason that no further try changes: a rule, a right, an error in a trigger."""
    return not isinstance(error, (Conflict, Unavailable, TooLong, NotUnderstood))


class NoTransaction(DatabaseError):
    """No transaction is open, or none with the savepoint that a statement names."""


class AlreadyThere(DatabaseError):
    """A column or an index that is being made exists already."""


class BadTask(TaskServerError):
    """A row that can never run. It becomes fatal with this message."""


class ModuleBroken(TaskServerError):
    """A listed module cannot be imported. Unlike a bad row, it may be fixed."""


class HostLimit(TaskServerError):
    """The host lets this program have no more threads, open files or memory."""


class _Outcome(TaskServerError):
    """What a task raises to say what is to become of it. Without a message it has that of the error it came from."""

    def __str__(self) -> str:
        reason = self.__cause__ if self.__suppress_context__ else self.__context__
        return super().__str__() or ("" if reason is None else f"{type(reason).__name__}: {reason}")


class Retry(_Outcome):
    """Raised by a task: this attempt failed; try again after `delay` (seconds, "5m"; None: after its backoff)."""

    def __init__(self, message: str = "", *, delay: float | str | None = None) -> None:
        self.delay = None if delay is None else _delay_seconds(delay)
        super().__init__(message)


class Later(_Outcome):
    """Raised by a task that cannot run now: it runs again after `delay` (seconds, "5m"), with nothing counted."""

    def __init__(self, message: str = "", *, delay: float | str) -> None:
        self.delay = _delay_seconds(delay)
        super().__init__(message)


def _delay_seconds(delay: object) -> float:
    seconds = span_seconds(delay) if isinstance(delay, str) else delay
    if not is_delay(seconds):
        raise SettingError(
            f"delay is {_shown(delay)}; allowed: seconds from 0 to {MAX_RETRY_DELAY_SECONDS}, or a text {SPAN_EXAMPLES}"
        )
    return seconds  # type: ignore[return-value]


def span_seconds(text: str) -> int | None:
    """The seconds of a span of time, as 90s, 5m, 1h, 2d or 4w; None for any other text, a mere number included."""
    number, unit = text[:-1], text[-1:]
    if unit in UNIT_SECONDS and number.isascii() and number.isdigit() and len(number) <= 10:
        return int(number) * UNIT_SECONDS[unit]
    return None


def _shown(value: object) -> str:
    try:
        return f"{value!r:.80}"
    except Exception:  # an integer too long to be written, or a repr that fails
        return f"a {type(value).__name__}"


def is_delay(value: object) -> bool:
    """Whether a value is a number of seconds that may pass before a retry."""
    return type(value) in (int, float) and 0 <= value <= MAX_RETRY_DELAY_SECONDS  # type: ignore[operator]


class LeaseLost(TaskServerError):
    """A task that completes itself has lost its claim: its transaction must be rolled back, as another may run it."""


class Fatal(_Outcome):
    """Raised by a task: it failed for good; no other attempt follows."""
