"""The options that a tasks module gives its callables with `@taskserver.task(…)`, beside their code."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any, NamedTuple, TypeVar, overload

from ..errors import Fatal, InvalidTask, Retry, SettingError
from ..interrupts.stop import TaskInterrupted
from ..messages.classes import is_kind
from ..messages.text import DURATIONS, Duration, duration_seconds, shown
from .backoff import Backoff, parse_backoff
from .field_checks import check_group_id, check_key, check_priority, name_of
from .task import MAX_ATTEMPTS, MAX_SECONDS

MAX_TASKS_TOGETHER = 500
"""Tasks in one call of a batch, or in one round: their ids stand in one statement, and old SQLite binds 999 values."""

_ATTRIBUTE = "__taskserver_options__"

F = TypeVar("F", bound=Callable[..., Any])
ExceptionTypes = type[BaseException] | tuple[type[BaseException], ...]


class Options(NamedTuple):
    """The options of a callable; None leaves an option to the settings."""

    max_attempts: int | None = None
    backoff: Backoff | None = None
    timeout_seconds: float | None = None
    """0: no limit."""
    on_fatal: str | None = None
    """The name of the callable that is called after the last attempt failed."""
    batch: int | None = None
    """The callable takes a list of the arguments of up to so many tasks; None: the arguments of one task."""
    transactional: bool = False
    """Whether the callable runs inside the transaction that completes its task."""
    commit_every: int | None = None
    """Up to so many tasks share the commits of their starts and finishes; None: each has its own."""
    group_id: int = 0
    """This and the next three hold for tasks that are added by the function itself, where the producer gives none."""
    priority: int = 0
    unique_key: str | Callable[..., str] | None = None
    """The key, or what returns it for a task's arguments."""
    rerun: bool = False
    """Whether a row that has the key runs again."""
    retry_on: tuple[type[BaseException], ...] | None = None
    """The exceptions after which it is retried; None: all but those of `fatal_on`."""
    fatal_on: tuple[type[BaseException], ...] = ()
    """The exceptions after which it is fatal at once."""

    def allows_retry(self, kind: type[BaseException]) -> bool:
        """Whether a task with attempts left is tried again that raised an exception of this type."""
        return not (issubclass(kind, Fatal) or self.why_fatal(kind))

    def why_fatal(self, kind: type[BaseException]) -> str:
        """Why these options have a task fatal that raised an exception of this type; empty where they do not."""
        if issubclass(kind, (Fatal, Retry, TaskInterrupted)):  # a timeout is none of the task's own, and may pass
            return ""
        # As `except` would see it: issubclass would ask the metaclass of a type of the site's own.
        if is_kind(kind, self.fatal_on):
            return "fatal_on names it"
        return "" if self.retry_on is None or is_kind(kind, self.retry_on) else "retry_on does not name it"


NO_OPTIONS = Options()


@overload
def task(function: F) -> F: ...
@overload
def task(
    *,
    max_attempts: int | None = None,
    backoff: str | None = None,
    timeout: Duration | None = None,
    on_fatal: str | Callable[..., Any] | None = None,
    batch: int | None = None,
    transactional: bool = False,
    commit_every: int | None = None,
    group_id: int = 0,
    priority: int = 0,
    unique_key: str | Callable[..., str] | None = None,
    rerun: bool = False,
    retry_on: ExceptionTypes | None = None,
    fatal_on: ExceptionTypes | None = None,
) -> Callable[[F], F]: ...
def task(
    function: Any = None,
    *,
    max_attempts: int | None = None,
    backoff: str | None = None,
    timeout: Duration | None = None,
    on_fatal: str | Callable[..., Any] | None = None,
    batch: int | None = None,
    transactional: bool = False,
    commit_every: int | None = None,
    group_id: int = 0,
    priority: int = 0,
    unique_key: str | Callable[..., str] | None = None,
    rerun: bool = False,
    retry_on: ExceptionTypes | None = None,
    fatal_on: ExceptionTypes | None = None,
) -> Any:
    """Give a callable options of its own; the function itself is not changed.

    `max_attempts` counts starts (the row's own wins over it), `backoff` is as TASKSERVER_BACKOFF, `timeout` in seconds,
    or as "5m" (0: no limit). `on_fatal` names a callable of the listed modules, or is one: it is called after
    the last attempt failed, with the same arguments and `error=`, the exception; if it returns, the task counts as
    done.
    With `batch` the callable takes a list of the arguments of up to so many tasks, each an object or an array; it
    returns None where all are done, or a list with an exception for each task that failed, in their order.
    With `transactional` the callable runs inside the transaction that completes its task: its writes to
    `taskserver.connection()` and the completion are committed together.
    With `commit_every` up to so many tasks are started in one commit, called one by one, and finished in one commit, or
    after one second; where the worker dies meanwhile, tasks that have run may run again.
    `group_id`, `priority`, `unique_key` and `rerun` hold where a producer gives this function itself to `add_task`, and
    leaves them out. `unique_key` is a text, or a function that takes the task's arguments and returns the text.
    `retry_on` and `fatal_on` are exception classes, or tuples of one or more, and mean what an `except` would catch.
    With `retry_on` a task that raises anything else is fatal at once, and so is one that raises what `fatal_on` names,
    which wins. `Retry` and `Fatal` hold all the same.
    Raises SettingError; the module then cannot be imported.
    """
    _check_placing(group_id, priority, unique_key, rerun)
    options = Options(
        max_attempts=None if max_attempts is None else _check_number("max_attempts", max_attempts, MAX_ATTEMPTS),
        backoff=None if backoff is None else parse_backoff("backoff", backoff),
        timeout_seconds=None if timeout is None else _check_timeout(timeout),
        on_fatal=None if on_fatal is None else _check_on_fatal(on_fatal),
        batch=None if batch is None else _check_number("batch", batch, MAX_TASKS_TOGETHER),
        transactional=_check_transactional(transactional, batch),
        commit_every=None if commit_every is None else _check_number("commit_every", commit_every, MAX_TASKS_TOGETHER),
        group_id=group_id,
        priority=priority,
        unique_key=unique_key,
        rerun=rerun,
        retry_on=None if retry_on is None else _check_exceptions("retry_on", retry_on),
        fatal_on=() if fatal_on is None else _check_exceptions("fatal_on", fatal_on),
    )
    _check_may_be_repeated(options)

    def mark(marked: F) -> F:
        inner = getattr(marked, "__func__", marked)  # the function inside a static or class method
        if type(inner) is not FunctionType:
            raise SettingError(
                f"@task stands before {shown(marked)}; allowed: functions, static and class methods; "
                "it stands below other decorators, next to the def"
            )
        setattr(inner, _ATTRIBUTE, options)
        return marked

    return mark if function is None else mark(function)


def options_of(function: FunctionType) -> Options:
    """The options that `task` gave to a function."""
    options = function.__dict__.get(_ATTRIBUTE)
    return options if type(options) is Options else NO_OPTIONS


def _check_number(name: str, value: int, most: int) -> int:
    if type(value) is not int or not 1 <= value <= most:
        raise SettingError(f"{name} is {shown(value)}; allowed: a whole number from 1 to {most}")
    return value


def _check_on_fatal(value: str | Callable[..., Any]) -> str:
    try:
        return name_of(value)
    except InvalidTask as error:
        raise SettingError(f"on_fatal: {error}") from None


def _check_exceptions(name: str, value: ExceptionTypes) -> tuple[type[BaseException], ...]:
    kinds = value if isinstance(value, tuple) else (value,)
    if not kinds or not all(isinstance(kind, type) and issubclass(kind, BaseException) for kind in kinds):
        raise SettingError(f"{name} is {shown(value)}; allowed: an exception class, or a tuple of one or more")
    return kinds


def _check_transactional(value: bool, batch: int | None) -> bool:
    if type(value) is not bool:
        raise SettingError(f"transactional is {shown(value)}; allowed: True or False")
    if value and batch is not None:
        raise SettingError("it has transactional and batch; allowed: one of them, as each task has a transaction")
    return value


def _check_may_be_repeated(options: Options) -> None:
    """Raises SettingError where other options do not go with `commit_every`."""
    if options.commit_every is None:
        return
    if options.batch is not None:
        raise SettingError("it has commit_every and batch; allowed: one of them, as a batch shares its commits anyway")
    if options.transactional:
        raise SettingError(
            "it has commit_every and transactional; allowed: one of them, as each transaction is a commit"
        )
    if options.max_attempts == 1:
        raise SettingError(
            "it has commit_every and max_attempts=1; allowed: max_attempts from 2 on, as tasks which share commits "
            "may run again after a crash"
        )


def _check_placing(group_id: int, priority: int, unique_key: object, rerun: bool) -> None:
    """Raises SettingError where one of these could be none of a task's."""
    try:
        check_group_id(group_id)
        check_priority(priority)
        if isinstance(unique_key, str):
            check_key("unique_key", unique_key)
    except InvalidTask as error:
        raise SettingError(str(error)) from None
    if not (unique_key is None or isinstance(unique_key, str) or callable(unique_key)):
        raise SettingError(f"unique_key is {shown(unique_key)}; allowed: a text, or a function that returns one")
    if type(rerun) is not bool:
        raise SettingError(f"rerun is {shown(rerun)}; allowed: True or False")
    if rerun and unique_key is None:
        raise SettingError("it has rerun and no unique_key, which tells the row that is to run again")


def _check_timeout(value: Duration) -> float:
    seconds: float = duration_seconds(value)
    if type(seconds) not in (int, float) or not 0 <= seconds <= MAX_SECONDS:
        raise SettingError(f"timeout is {shown(value)}; allowed: {DURATIONS}, from 0 (no limit) to {MAX_SECONDS} s")
    return seconds
