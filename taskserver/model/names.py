"""The name of a task's callable, or the function that a producer passes instead."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable
from functools import lru_cache
from types import FunctionType, MethodType
from typing import Any

from ..errors import InvalidTask
from ..messages.classes import module_of, mro_of
from ..messages.text import shown
from .task import MAX_TASK_LENGTH

WITHOUT_WRAPS = "a decorator did not use functools.wraps"
NAMELESS = f"a lambda, or {WITHOUT_WRAPS}"
IN_A_CLASS = "inside a class; only static and class methods may run"
PLAIN_METHOD = f"is a plain function {IN_A_CLASS}: put @staticmethod above it"

_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*[.:][^\W\d]\w*(\.[^\W\d]\w*)*")


def name_of(task: str | Callable[..., Any]) -> str:
    """The name of a callable, given as a name or as the function. Raises InvalidTask."""
    return check_name(task) if isinstance(task, str) else _name_of_function(task)


@lru_cache(maxsize=1024)
def check_name(name: str) -> str:
    """A valid name for a callable, which need not exist. Raises InvalidTask."""
    if len(name) > MAX_TASK_LENGTH or not _NAME.fullmatch(name):
        raise InvalidTask(
            f"task is {shown(name)}; allowed: module.function, module.Class.method or module:Class.method, "
            f"at most {MAX_TASK_LENGTH} characters"
        )
    return name


def _name_of_function(function: object) -> str:
    module, qualified_name = _place_of(function)
    if module == "__main__":
        raise InvalidTask(
            f"task is {qualified_name!r} of the program that was started, which no worker can import; "
            "put it into a module, such as tasks.py"
        )
    if never := _why_never_found(module, qualified_name, function):
        raise InvalidTask(f"task {shown(f'{module}.{qualified_name}')} {never}")
    return check_name(f"{module}.{qualified_name}")


def _place_of(function: Any) -> tuple[str, str]:
    """The module of a function or a class method, and its name there. Raises InvalidTask."""
    module = qualified_name = None
    # By its type: a mock claims to be a function.
    if type(function) is FunctionType:
        module, qualified_name = function.__module__, function.__qualname__
    elif (
        type(function) is MethodType and type(function.__func__) is FunctionType and isinstance(function.__self__, type)
    ):
        # A class method runs for the class it was taken from; a base class may define it.
        cls = function.__self__
        module, qualified_name = cls.__module__, f"{cls.__qualname__}.{function.__func__.__name__}"
    if isinstance(module, str) and qualified_name:
        return module, qualified_name
    raise InvalidTask(
        f"task is {other_kind(function)}; allowed: a name such as 'tasks.send_letter', or the function itself"
    )


def other_kind(value: object) -> str:
    """A value that is no task's function, in words, with the fix."""
    if words := task_of_other_queue(value):
        return words
    return f"{shown(value)}{_OTHER_KINDS.get(type(value).__name__, '')}"


def task_of_other_queue(value: object) -> str | None:
    """A task of another queue's decorator, in words, with the fix; None for any other value."""
    for kind in mro_of(type(value)):
        module = module_of(kind)
        queue = OTHER_QUEUES.get(module.partition(".")[0]) if isinstance(module, str) else None
        if queue:
            return f"a {queue} task: remove its decorator, see docs/django.md#coming-from-celery"
    return None


OTHER_QUEUES = {"celery": "Celery", "huey": "huey", "dramatiq": "dramatiq", "invoke": "invoke"}

_OTHER_KINDS = {
    "method": ", a method of an object, which no worker has",
    "partial": ", a partial: give its function, and its arguments as args",
    "Task": ", a task of Django: give its name, or have Django add it by enqueue()",
}


def _why_never_found(module: str, qualified_name: str, function: object) -> str | None:
    """Why no worker can find a function by its name; None if one may."""
    path = qualified_name.split(".")
    if "<" in qualified_name:
        return f"cannot be found by its name: it is inside another function, {NAMELESS}; define it in a module"
    if len(path) > 2:
        return "is inside a class of a class, where no worker looks; allowed: module.function or module.Class.method"
    # Read from __dict__, so that none of the class's code runs.
    cls = getattr(sys.modules.get(module), "__dict__", {}).get(path[0]) if len(path) == 2 else None
    is_plain_method = isinstance(cls, type) and vars(cls).get(path[1]) is function
    return why_private(path) or (PLAIN_METHOD if is_plain_method else None)


def why_private(path: Iterable[str]) -> str | None:
    """Why this path in a module is private, in words; None if it is not."""
    private = next((part for part in path if part.startswith("_")), None)
    return private and f"is private: {private!r} begins with an underscore; rename it if it may run"
