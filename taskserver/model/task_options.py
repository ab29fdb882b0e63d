"""The options of callables, which a tasks module sets with `@taskserver.task(…)`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import FunctionType
from typing import Any, NamedTuple, TypeVar, overload

from ..errors import Fatal, InvalidTask, Retry, SettingError
from ..interrupts.stop import TaskInterrupted
from ..messages.classes import is_kind
from ..messages.text import Duration, shown
from .backoff import Backoff, parse_backoff
from .checks import check_duration, check_field, check_key, check_number
from .names import name_of
from .task import MAX_SECONDS

MAX_TASKS_TOGETHER = 500
"""Tasks in one call of a batch, or in one round: one statement has their ids, and old SQLite binds at most 999."""

_ATTRIBUTE = "__taskserver_options__"

F = TypeVar("F", bound=Callable[..., Any])
ExceptionTypes = type[BaseException] | tuple[type[BaseException], ...]


class Options(NamedTuple):
    """The options of a callable, see `task`; None: as the settings say."""

    max_attempts: int | None = None
    backoff: Backoff | None = None
    timeout_seconds: float | None = None
    """0: no limit."""
    on_fatal: str | None = None
    batch: int | None = None
    transactional: bool = False
    commit_every: int | None = None
    group_id: int = 0
    priority: int = 0
    unique_key: str | Callable[..., str] | None = None
    rerun: bool = False
    retry_on: tuple[type[BaseException], ...] | None = None
    fatal_on: tuple[type[BaseException], ...] = ()

    def allows_retry(self, kind: type[BaseException]) -> bool:
        """Whether a task that raised an exception of this type is retried if it has attempts left."""
        return not (issubclass(kind, Fatal) or self.why_fatal(kind))

    def why_fatal(self, kind: type[BaseException]) -> str:
        """Why an exception of this type makes a task fatal by these options; empty if it does not."""
        if issubclass(kind, (Fatal, Retry, TaskInterrupted)):  # a timeout is not the task's own error
            return ""
        # As `except` sees it: issubclass would run the metaclass of a site's type.
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
def task(function: Any = None, **given: Any) -> Any:
    """Set options of a callable; the function itself is not changed.

    `max_attempts`: starts; the row's own value wins. `backoff`: as TASKSERVER_BACKOFF. `timeout`: 0: no limit.
    `on_fatal`: a callable of the listed modules, or its name. It is called after the last attempt failed, with the same
    arguments and `error=`, the exception. If it returns, the task is done.
    `batch`: the maximum of tasks in one call. The callable takes a list of their arguments, each an object or an array.
    It returns None if all are done, or a list in their order, with an exception for each failed task.
    `transactional`: the callable runs inside the transaction that completes its task. It writes with
    `taskserver.connection()`.
    `commit_every`: the maximum of tasks that share the commits of their starts and ends, or those of one second. If
    the worker dies, finished tasks may run again.
    `group_id`, `priority`, `unique_key`, `rerun`: defaults for tasks that are added by passing this function.
    `unique_key` is a text, or a function that takes the task's arguments and returns one.
    `retry_on`, `fatal_on`: exceptions, as `except` takes them. With `retry_on`, any other exception is fatal at once,
    and so are those of `fatal_on`, which wins. `Retry` and `Fatal` still work.
    Raises SettingError; the module then cannot be imported.
    """
    options = _checked(given)

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


# ---- checks: from the name and the value of an option to the value in Options


def _flag(name: str, value: Any) -> bool:
    if type(value) is not bool:
        raise SettingError(f"{name} is {shown(value)}; allowed: True or False")
    return value


def _callable(name: str, value: Any) -> str:
    try:
        return name_of(value)
    except InvalidTask as error:
        raise SettingError(f"{name}: {error}") from None


def _exceptions(name: str, value: Any) -> tuple[type[BaseException], ...]:
    kinds = value if isinstance(value, tuple) else (value,)
    if not kinds or not all(isinstance(kind, type) and issubclass(kind, BaseException) for kind in kinds):
        raise SettingError(f"{name} is {shown(value)}; allowed: an exception class, or a tuple of one or more")
    return kinds


def _key(name: str, value: Any) -> str | Callable[..., str]:
    if not isinstance(value, str) and not callable(value):
        raise SettingError(f"{name} is {shown(value)}; allowed: a text, or a function that returns one")
    return check_key(name, value) if isinstance(value, str) else value


_up_to_many = partial(check_number, least=1, most=MAX_TASKS_TOGETHER)
CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "max_attempts": check_field,
    "backoff": parse_backoff,
    "timeout": partial(check_duration, most_days=MAX_SECONDS // 86_400),
    "on_fatal": _callable,
    "batch": _up_to_many,
    "transactional": _flag,
    "commit_every": _up_to_many,
    "group_id": check_field,
    "priority": check_field,
    "unique_key": _key,
    "rerun": _flag,
    "retry_on": _exceptions,
    "fatal_on": _exceptions,
}
_NEVER_NONE = ("transactional", "group_id", "priority", "rerun")
_NOT_TOGETHER = (
    ("transactional", "batch", "as each task has a transaction"),
    ("commit_every", "batch", "as a batch shares its commits anyway"),
    ("commit_every", "transactional", "as each transaction is a commit"),
)


def _checked(given: dict[str, Any]) -> Options:
    found: dict[str, Any] = {}
    for name, value in given.items():
        if name not in CHECKS:
            raise TypeError(f"@task has no option {name!r}; allowed: {', '.join(CHECKS)}")
        try:
            if value is not None or name in _NEVER_NONE:
                found[name] = CHECKS[name](name, value)
        except InvalidTask as error:
            raise SettingError(str(error)) from None
    options = Options(timeout_seconds=found.pop("timeout", None), **found)
    for one, other, why in _NOT_TOGETHER:
        if getattr(options, one) and getattr(options, other):
            raise SettingError(f"it has {one} and {other}; allowed: one of them, {why}")
    if options.commit_every and options.max_attempts == 1:
        raise SettingError(
            "it has commit_every and max_attempts=1; allowed: max_attempts from 2 on, as tasks which share commits "
            "may run again after a crash"
        )
    if options.rerun and options.unique_key is None:
        raise SettingError("it has rerun and no unique_key, which says which row is to run again")
    return options
