"""The arguments that a callable takes, and the sentence where they do not fit.

A worker asks before it calls, and a producer that gives the function itself asks before it adds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import Parameter, Signature, signature
from typing import Any

from ..messages.suggestions import nearest

MAX_SHAPES = 100
MAX_KEYWORDS = 50
MAX_KEYWORD_CHARACTERS = 1000
"""Shapes with more are not remembered: a callable with **kwargs takes any that a row gives it."""


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

    def _hint_at_keyword(self, kwargs: dict[str, Any], error: str) -> str:
        parameters = self._signature.parameters
        unknown = next((key for key in kwargs if key not in parameters), None)
        meant = nearest(unknown, list(parameters)) if unknown is not None else None
        if meant:
            return f"; {unknown!r} is none of them, did you mean {meant!r}?"
        takes_any = any(parameter.kind is Parameter.VAR_KEYWORD for parameter in parameters.values())
        is_told = unknown is None or takes_any or repr(unknown) in error
        return "" if is_told else f"; and it takes no {unknown!r}"
