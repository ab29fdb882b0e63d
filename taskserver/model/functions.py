"""A function that may run: what arguments it takes, and what a producer that gives the function itself learns at once.

Imported once there is a function to look at: an add by name has no use for signatures.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from inspect import CO_ASYNC_GENERATOR, CO_GENERATOR, Parameter, Signature, signature
from types import FunctionType, MethodType
from typing import Any, NamedTuple

from ..errors import InvalidTask
from ..messages.error_text import describe
from ..messages.text import nearest, shown
from .arguments import as_call
from .field_checks import check_key, name_of
from .task_options import Options, options_of

RUNS_NOTHING = "is a generator function, and calling it would run nothing; name a plain function that runs it"
UNTOLD = "what arguments it takes cannot be told"
MAX_SHAPES = 100
MAX_KEYWORDS = 50
MAX_KEYWORD_CHARACTERS = 1000
"""Shapes with more are not remembered: a callable with **kwargs takes any that a row gives it."""


def runs_nothing(function: object) -> bool:
    """Whether calling a function would only make a generator."""
    return type(function) is FunctionType and bool(function.__code__.co_flags & (CO_GENERATOR | CO_ASYNC_GENERATOR))


class _Hidden:
    def __repr__(self) -> str:
        return "…"


_HIDDEN = _Hidden()


class Parameters:
    """The parameters of a callable."""

    def __init__(self, call: Callable[..., Any]) -> None:
        """Raises whatever the callable's own words about its signature raise."""
        # The parameters of the outermost function count; a decorator may add some of its own.
        self._signature = signature(call, follow_wrapped=False)
        self.fitting: set[tuple[object, ...]] = set()
        """Shapes of arguments that are known to fit: how many positions, and which keywords."""

    def __str__(self) -> str:
        """The parameters in words, for a message; default values are left out, as they may be secrets."""
        shown = [
            parameter.replace(annotation=Parameter.empty, default=_HIDDEN)
            if parameter.default is not Parameter.empty
            else parameter.replace(annotation=Parameter.empty)
            for parameter in self._signature.parameters.values()
        ]
        return str(Signature(shown))

    def check(self, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        """Raises TypeError where the callable does not take these arguments."""
        # Whether arguments fit depends on number and names alone, so one check serves all tasks that look alike.
        shape = (len(args), *kwargs)
        if shape not in self.fitting:
            self._signature.bind(*args, **kwargs)
            is_small = len(kwargs) <= MAX_KEYWORDS and sum(map(len, kwargs)) <= MAX_KEYWORD_CHARACTERS
            if is_small and len(self.fitting) < MAX_SHAPES:
                self.fitting.add(shape)

    def misfit(self, name: str, args: Sequence[Any], kwargs: dict[str, Any], *, takes_list: bool) -> str | None:
        """Why the callable of this name does not take these arguments, in a sentence; None where it does.

        `takes_list`: it takes several tasks, and the arguments are the one list of them.
        """
        try:
            self.check(args, kwargs)
        except TypeError as error:
            hint = ": with @task(batch=…) it gets one list" if takes_list else self._hint_at_keyword(kwargs, str(error))
            return f"{name}{self} does not take these arguments: {error}{hint}"
        return None

    def names_of(self, count: int) -> list[str] | None:
        """The names of the first parameters; None where some have a position alone."""
        first = list(self._signature.parameters.values())[:count]
        is_named = len(first) == count and all(one.kind is Parameter.POSITIONAL_OR_KEYWORD for one in first)
        return [one.name for one in first] if is_named else None

    def _hint_at_keyword(self, kwargs: dict[str, Any], error: str) -> str:
        parameters = self._signature.parameters
        unknown = next((key for key in kwargs if key not in parameters), None)
        meant = nearest(unknown, list(parameters)) if unknown is not None else None
        if meant:
            return f"; {unknown!r} is none of them, did you mean {meant!r}?"
        takes_any = any(parameter.kind is Parameter.VAR_KEYWORD for parameter in parameters.values())
        is_told = unknown is None or takes_any or repr(unknown) in error
        return "" if is_told else f"; and it takes no {unknown!r}"


class GivenFunction(NamedTuple):
    """A function, static or class method, which a worker finds by its name."""

    name: str
    options: Options
    parameters: Parameters

    def check_arguments(self, args: Any) -> None:
        """Refuse arguments that it does not take; they are a dict, a list, a tuple or None. Raises InvalidTask."""
        takes_list = self.options.batch is not None
        positions, keywords = as_call({} if args is None else args, takes_list=takes_list)
        misfit = self.parameters.misfit(self.name, positions, keywords, takes_list=takes_list)
        if misfit:
            raise InvalidTask(misfit)

    def args_of(self, positions: Sequence[Any], keywords: dict[str, Any]) -> Sequence[Any] | dict[str, Any]:
        """The `args` of a task that makes this call: JSON has positions or names, not both. Raises InvalidTask."""
        if self.options.batch is not None:
            raise InvalidTask(f"{self.name} takes a list of tasks, as @task(batch=…) says: add_task takes one of them")
        if not positions or not keywords:
            return keywords or positions
        misfit = self.parameters.misfit(self.name, positions, keywords, takes_list=False)
        if misfit:
            raise InvalidTask(misfit)
        names = self.parameters.names_of(len(positions))
        if names is None:
            raise InvalidTask(
                f"{self.name}{self.parameters} is given arguments by position alone and others by name, which no task "
                "can hold together; give its parameters names, or all arguments in one way"
            )
        return dict(zip(names, positions, strict=True)) | keywords

    def key_of(self, args: Any) -> str | None:
        """The key that @task says for a task with these arguments, which it takes. Raises InvalidTask."""
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
    """What is known of a function, static or class method. Raises InvalidTask for anything else."""
    if isinstance(function, str):
        raise InvalidTask(f"task is {shown(function)}, a name; allowed here: the function itself")
    # What is none may have no hash, and the check of its name refuses it.
    return _known(function) if type(function) in (FunctionType, MethodType) else _look_at(function)


def _look_at(function: Any) -> GivenFunction:
    name = name_of(function)
    inner = getattr(function, "__func__", function)
    if runs_nothing(inner):
        raise InvalidTask(f"task {name!r} {RUNS_NOTHING}")
    try:
        parameters = Parameters(function)
    except Exception as error:
        raise InvalidTask(f"task {name!r}: {UNTOLD}: {describe(error)}") from None
    return GivenFunction(name, options_of(inner), parameters)


_known = lru_cache(maxsize=1024)(_look_at)
"""Looked at once: to read a signature takes as long as to add a task."""
