"""The function itself, where a producer gives that in place of its name: what no worker could run is refused at once.

Whether its module is listed is the worker's to judge, as a producer may have other settings.
"""

from __future__ import annotations

from functools import lru_cache
from types import FunctionType, MethodType
from typing import Any, NamedTuple

from ..errors import InvalidTask
from ..messages.error_text import describe
from .arguments import as_call
from .field_checks import check_key, name_of
from .runnable import RUNS_NOTHING, UNTOLD, runs_nothing
from .signatures import Parameters
from .task_options import Options, options_of


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
