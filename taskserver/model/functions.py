"""A function as a task: its parameters, and early checks for a producer that passes the function itself.

Imported only for functions: an add by name needs no signatures.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from inspect import CO_ASYNC_GENERATOR, CO_GENERATOR, Parameter, Signature, signature
from types import FunctionType, MethodType
from typing import Any, NamedTuple

from ..errors import InvalidTask
from ..messages.error_text import describe
from ..messages.text import shown
from .arguments import as_call
from .checks import check_key
from .names import name_of
from .task import NOT_GIVEN, NotGiven, given_or
from .task_options import Options, options_of

_NONE = Parameter.empty
_OF_ADD_TASK = {"at", "connection", "delay", "depends_on", "group_id", "max_attempts", "priority", "unique_key"}
_GETS_LIST = ": with @task(batch=…) it gets one list"


def why_not_runnable(function: object) -> str | None:
    """Why calling a function would run nothing; None if it runs."""
    if type(function) is FunctionType and function.__code__.co_flags & (CO_GENERATOR | CO_ASYNC_GENERATOR):
        return "is a generator function, and calling it would run nothing; name a plain function that runs it"
    return None


class _Hidden:
    def __repr__(self) -> str:
        return "…"


class Parameters:
    """The parameters of a callable."""

    def __init__(self, call: Callable[..., Any] | Signature) -> None:
        """Raises InvalidTask if the callable's own code makes its signature unreadable."""
        try:
            # The outermost function's: a decorator may add parameters.
            self._signature = call if isinstance(call, Signature) else signature(call, follow_wrapped=False)
        except Exception as error:
            raise InvalidTask(f"its signature cannot be read: {describe(error)}") from None
        self._last_fit: tuple[object, ...] | None = None

    def __str__(self) -> str:
        """The parameters for a message, without default values, which may be secrets."""
        parameters = self._signature.parameters.values()
        defaults = [_NONE if one.default is _NONE else _Hidden() for one in parameters]
        shown = zip(parameters, defaults, strict=True)
        return str(Signature([one.replace(annotation=_NONE, default=default) for one, default in shown]))

    def check(self, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        """Raises TypeError if the callable does not take these arguments."""
        # Number and names decide, so tasks that look like the last one need no check.
        shape = (len(args), *kwargs)
        if shape != self._last_fit:
            self._signature.bind(*args, **kwargs)
            self._last_fit = shape

    def argument_error(self, name: str, args: Sequence[Any], kwargs: dict[str, Any], *, takes_list: bool) -> str | None:
        """Why the callable with this name does not take these arguments, in a sentence; None if it does."""
        try:
            self.check(args, kwargs)
        except TypeError as error:
            names = self._signature.parameters
            unknown = next((key for key in kwargs if key not in names and repr(key) not in str(error)), None)
            hint = "" if unknown is None else f"; and it takes no {unknown!r}"
            return f"{name}{self} does not take these arguments: {error}{_GETS_LIST if takes_list else hint}"
        return None

    def by_name(
        self, positions: Sequence[Any], keywords: Mapping[str, Any], left_out: int = 0
    ) -> dict[str, Any] | None:
        """All arguments by name; None if some are positional only. Skips the first `left_out` parameters."""
        first = list(self._signature.parameters.values())[left_out : left_out + len(positions)]
        names = [one.name for one in first if one.kind is Parameter.POSITIONAL_OR_KEYWORD]
        if len(names) < len(positions) or not keywords.keys().isdisjoint(names):
            return None
        return dict(zip(names, positions, strict=True)) | dict(keywords)


class GivenFunction(NamedTuple):
    """A function, static or class method that a worker can find by its name."""

    name: str
    options: Options
    parameters: Parameters

    def check_arguments(self, args: Any) -> None:
        """Refuse a dict, list, tuple or None that it does not take as arguments. Raises InvalidTask."""
        takes_list = self.options.batch is not None
        positions, keywords = as_call({} if args is None else args, takes_list=takes_list)
        if argument_error := self.parameters.argument_error(self.name, positions, keywords, takes_list=takes_list):
            raise InvalidTask(argument_error)

    def args_of(self, positions: Sequence[Any], keywords: dict[str, Any]) -> Sequence[Any] | dict[str, Any]:
        """The `args` of a task for this call: either a list or a dict. Raises InvalidTask."""
        if self.options.batch is not None:
            raise InvalidTask(f"{self.name} takes a list of tasks, as @task(batch=…) says: add_task takes one of them")
        if argument_error := self.parameters.argument_error(self.name, positions, keywords, takes_list=False):
            has_options = not _OF_ADD_TASK.isdisjoint(keywords)
            hint = "; for delay, connection and other options use add_task" if has_options else ""
            raise InvalidTask(argument_error + hint)
        if not positions or not keywords:
            return keywords or positions
        named = self.parameters.by_name(positions, keywords)
        if named is None:
            raise InvalidTask(
                f"{self.name}{self.parameters} is given some arguments only by position and others by name, which no "
                "task can hold together; give its parameters names, or all arguments in one way"
            )
        return named

    def placing(
        self,
        args: Any,
        group_id: int | NotGiven,
        priority: int | NotGiven,
        unique_key: str | NotGiven | None,
        rerun: bool | NotGiven,
    ) -> tuple[int, int, str | None, bool]:
        """The last four for a task with these arguments, with the defaults of @task. Raises InvalidTask."""
        self.check_arguments(args)
        options = self.options
        key = self._key_of(args) if unique_key is NOT_GIVEN else unique_key
        reruns = given_or(rerun, options.rerun and key is not None)
        return given_or(group_id, options.group_id), given_or(priority, options.priority), key, reruns

    def _key_of(self, args: Any) -> str | None:
        key = self.options.unique_key
        if key is None or isinstance(key, str):
            return key
        positions, keywords = as_call({} if args is None else args)
        try:
            found = key(*positions, **keywords)
        except Exception as error:
            raise InvalidTask(f"unique_key of {self.name}: {describe(error)}") from error
        return check_key(f"unique_key of {self.name}", found)


def given_function(function: Any) -> GivenFunction:
    """What we know about a function, static or class method. Raises InvalidTask for anything else."""
    if isinstance(function, str):
        raise InvalidTask(f"task is {shown(function)}, a name; allowed here: the function itself")
    # Anything else may be unhashable; the check of its name refuses it.
    return _known(function) if type(function) in (FunctionType, MethodType) else _look_at(function)


def _look_at(function: Any) -> GivenFunction:
    name = name_of(function)
    inner = getattr(function, "__func__", function)
    if why := why_not_runnable(inner):
        raise InvalidTask(f"task {name!r} {why}")
    try:
        return GivenFunction(name, options_of(inner), Parameters(function))
    except InvalidTask as error:
        raise InvalidTask(f"task {name!r}: {error}") from None


_known = lru_cache(maxsize=1024)(_look_at)
"""Cached: reading a signature takes as long as adding a task."""
