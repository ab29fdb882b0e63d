"""What a producer gives, checked before it becomes a row. Apart from task.py, as most runs of a worker add nothing."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from .arguments import write_arguments
from .errors import InvalidTask
from .lifecycle import MAX_GROUP_ID, MAX_PRIORITY, MAX_TASK_LENGTH, MIN_PRIORITY, NewTask

KEYS = ("task", "args", "group_id", "priority")
"""What the description of a task may hold, in add_tasks and in JSON lines."""

_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*[.:][^\W\d]\w*(\.[^\W\d]\w*)*")


def new_task(task: str | Callable[..., Any], args: object = None, group_id: int = 0, priority: int = 0) -> NewTask:
    """Check what a producer gave. Raises InvalidTask, which names what was wrong and what is allowed."""
    name = name_of(task)
    if type(group_id) is not int or not 0 <= group_id <= MAX_GROUP_ID:
        raise InvalidTask(f"group_id is {_shown(group_id)}; allowed: a whole number from 0 to {MAX_GROUP_ID}")
    if type(priority) is not int or not MIN_PRIORITY <= priority <= MAX_PRIORITY:
        raise InvalidTask(
            f"priority is {_shown(priority)}; allowed: a whole number from {MIN_PRIORITY} to {MAX_PRIORITY}"
        )
    return NewTask(name, write_arguments(args), group_id, priority)


def new_task_from(description: Mapping[str, Any]) -> NewTask:
    """The same for a description such as {"task": "tasks.send", "args": {…}, "group_id": 3}."""
    if not isinstance(description, Mapping):
        raise InvalidTask(f'it is {_shown(description)}; allowed: an object such as {{"task": …, "args": …}}')
    if "task" not in description:
        raise InvalidTask('it has no "task"')
    try:
        return new_task(**description)
    except TypeError:
        unknown = sorted(str(key) for key in description if key not in KEYS)
        if not unknown:
            raise
        raise InvalidTask(f"it has {', '.join(map(repr, unknown))}; allowed: {', '.join(KEYS)}") from None


def name_of(task: str | Callable[..., Any]) -> str:
    """The name of a callable, which a producer gives by its name or as the function itself. Raises InvalidTask."""
    return check_name(task) if isinstance(task, str) else _name_of_function(task)


@lru_cache(maxsize=1024)
def check_name(name: str) -> str:
    """Check that a name has the form of a callable's. Raises InvalidTask."""
    if len(name) > MAX_TASK_LENGTH or not _NAME.fullmatch(name):
        raise InvalidTask(
            f"task is {_shown(name)}; allowed: module.function, module.Class.method or module:Class.method, "
            f"at most {MAX_TASK_LENGTH} characters"
        )
    return name


def _name_of_function(function: Callable[..., Any]) -> str:
    module = getattr(function, "__module__", None)
    qualified_name = getattr(function, "__qualname__", None)
    cls = getattr(function, "__self__", None)
    if isinstance(cls, type):
        # A class method runs for the class that it was taken from, though a base class may have defined it.
        module, qualified_name = cls.__module__, f"{cls.__qualname__}.{getattr(function, '__name__', '')}"
    if not callable(function) or not isinstance(module, str) or not isinstance(qualified_name, str):
        raise InvalidTask(f"task is {_shown(function)}; allowed: a name as 'tasks.send_letter', or the function itself")
    if module == "__main__":
        raise InvalidTask(
            f"task is {qualified_name!r} of the program that was started, which no worker can import; "
            "put it into a module, such as tasks.py"
        )
    return check_name(f"{module}.{qualified_name}")


def _shown(value: object) -> str:
    """A value that was given, for a message."""
    try:
        return repr(value)[:80]
    except Exception:  # an integer too long to be written, or an object that has no text
        return f"a {type(value).__name__} that cannot be shown"
