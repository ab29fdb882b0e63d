"""What may run at all, and the words for what may not: each side puts its subject in front of them.

A worker judges the name that a row has, a producer the function that it gives. Imported once there is a function to
look at.
"""

from __future__ import annotations

from collections.abc import Iterable
from inspect import CO_ASYNC_GENERATOR, CO_GENERATOR
from types import FunctionType

RUNS_NOTHING = "is a generator function, and calling it would run nothing; name a plain function that runs it"
WITHOUT_WRAPS = "a decorator did not use functools.wraps"
NAMELESS = f"a lambda, or {WITHOUT_WRAPS}"
IN_A_CLASS = "inside a class; only static and class methods may run"
PLAIN_METHOD = f"is a plain function {IN_A_CLASS}: put @staticmethod above it"
UNTOLD = "what arguments it takes cannot be told"


def runs_nothing(function: object) -> bool:
    """Whether calling a function would only make a generator."""
    return type(function) is FunctionType and bool(function.__code__.co_flags & (CO_GENERATOR | CO_ASYNC_GENERATOR))


def why_private(path: Iterable[str]) -> str | None:
    """Why what stands at this path of a module is private, in words; None where it is not."""
    private = next((part for part in path if part.startswith("_")), None)
    return private and f"is private: {private!r} begins with an underscore; rename it if it may run"
