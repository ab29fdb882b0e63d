"""Every error that taskserver raises, under one root class.

Every module may import this one, and it imports none. Each message is one line with the problem and the fix.
"""

MAX_RETRY_DELAY_SECONDS = 366 * 86_400
UNIT_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}
SPAN_EXAMPLES = "such as 90s, 5m, 1h or 2d"
"""Spans of time, for messages."""


class TaskServerError(Exception):
    """The root of all errors of this package."""


class SettingError(TaskServerError):
    """A setting is missing or wrong; the message names its key and what is allowed."""


class SetupFailed(SettingError):
    """TASKSERVER_SETUP failed, or was not found; no task was started."""

    full_text = ""
    """The traceback, for a log."""


class InvalidTask(TaskServerError):
    """A value for a task is invalid; nothing was added or changed."""


class NotEnded(TaskServerError, TimeoutError):
    """`wait` timed out; the task goes on."""


class DatabaseError(TaskServerError):
    """The database could not be reached or used."""

    in_doubt = False
    """Whether the connection broke during a try, so that the write may have been committed."""


class Unavailable(DatabaseError):
    """The database is away, or busy: retry later. Nothing was done."""


class ServerFull(Unavailable):
    """The server has no free connection now."""


class ConnectionLost(Unavailable):
    """The connection broke; whether the last statement took effect is unknown."""


class Conflict(DatabaseError):
    """A deadlock or a lock timeout. The transaction is rolled back: retry at once."""


class Deadlock(Conflict):
    """The database rolled back this transaction in favour of another one; in a cluster also one of another node."""


class TablesMissing(DatabaseError):
    """The queue's tables do not exist."""


class ColumnsMissing(DatabaseError):
    """A table lacks our columns: it belongs to another program or version."""


class TablesOutdated(DatabaseError):
    """Another version of taskserver created the tables."""


class TooLong(DatabaseError):
    """A statement is longer than the server accepts. Nothing was done."""


class Refused(DatabaseError):
    """A rule of the database forbids a write, such as a foreign key or a trigger. Nothing was done."""


class NotUnderstood(DatabaseError):
    """The server does not know the syntax. Nothing was done."""


def is_refusal(error: DatabaseError) -> bool:
    """Whether a retry of the write would not help: a rule, a missing right, an error in a trigger."""
    return not isinstance(error, (Conflict, Unavailable, TooLong, NotUnderstood))


class NoTransaction(DatabaseError):
    """No transaction is open, or none with the savepoint that a statement names."""


class AlreadyThere(DatabaseError):
    """A new column or index exists already."""


class BadTask(TaskServerError):
    """A row that can never run. It becomes fatal with this message."""


class ModuleBroken(TaskServerError):
    """A listed module cannot be imported. Unlike a bad row, it may be fixed."""


class HostLimit(TaskServerError):
    """The host allows no more threads, open files or memory."""


class _Outcome(TaskServerError):
    """A task raises it to choose its outcome. Without a message it has that of its cause."""

    def __str__(self) -> str:
        reason = self.__cause__ if self.__suppress_context__ else self.__context__
        return super().__str__() or ("" if reason is None else f"{type(reason).__name__}: {reason}")


class Retry(_Outcome):
    """Raised by a task: this attempt failed; retry after `delay` (seconds, "5m"; None: after its backoff)."""

    def __init__(self, message: str = "", *, delay: float | str | None = None) -> None:
        self.delay = None if delay is None else _delay_seconds(delay)
        super().__init__(message)


class Later(_Outcome):
    """Raised by a task that cannot run now: it runs again after `delay` (seconds, "5m"), no attempt is counted."""

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
    """The seconds of a span such as 90s, 5m, 1h, 2d or 4w; None for any other text, even a number."""
    number, unit = text[:-1], text[-1:]
    if unit in UNIT_SECONDS and number.isascii() and number.isdigit() and len(number) <= 10:
        return int(number) * UNIT_SECONDS[unit]
    return None


def _shown(value: object) -> str:
    try:
        return f"{value!r:.80}"
    except Exception:  # a huge integer, or a repr that fails
        return f"a {type(value).__name__}"


def is_delay(value: object) -> bool:
    """Whether a value is a valid delay in seconds."""
    return type(value) in (int, float) and 0 <= value <= MAX_RETRY_DELAY_SECONDS  # type: ignore[operator]


class LeaseLost(TaskServerError):
    """A task that completes itself has lost its claim, and may run elsewhere: roll back its transaction."""


class Fatal(_Outcome):
    """Raised by a task: it failed for good, without a retry."""
