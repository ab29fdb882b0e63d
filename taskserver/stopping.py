"""Asking a run to end, and interrupting its task: where a signal meets the runner.

An interrupt strikes only inside a task's own code: on the stack of what it interrupts there must be `call_task`, and
above that no function that is `uninterrupted`, such as a write to the queue. The stack can't be out of date, as a flag
could be between two instructions.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, TypeVar

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

STOPPED = "stopped by a second signal"

_uninterrupted: set[CodeType] = set()


class TaskInterrupted(BaseException):
    """Raised inside a task that is to stop at once. Not an Exception: a task's `except Exception` must not keep it."""


def call_task(function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Call a task's own code; nothing else may be interrupted."""
    return function(*args, **kwargs)


def uninterrupted(function: F) -> F:
    """A decorator: no interrupt strikes inside, though a task may have called it."""
    _uninterrupted.add(function.__code__)
    return function


def is_in_task(frame: FrameType | None) -> bool | None:
    """Whether a stack is that of a task's own code; None where a task called what is not to be interrupted."""
    outcome: bool | None = True
    while frame is not None:
        if frame.f_code is call_task.__code__:
            return outcome
        if frame.f_code in _uninterrupted:
            outcome = None
        frame = frame.f_back
    return False


class Stop:
    """A wish that a run ends. One is made for each run; any code, a signal handler too, may call `ask`."""

    ends_process = ""
    """The program's name, where a task that nothing can interrupt may end the whole process with exit code 1, once its
    timeout and a lease have passed; empty where the process is not ours to end."""

    def __init__(self) -> None:
        self.asked = False
        self.insisted = False
        self.strike_soon: Callable[[], object] | None = None
        """Set by a run: interrupts the task a little later."""

    def ask(self) -> None:
        """The first time: finish the running task and start no other. After that: interrupt the running one too.

        Interrupts only from the thread that runs the task, which for a signal handler is the main thread.
        """
        self.insisted, self.asked = self.asked, True
        if not self.insisted:
            return
        is_inside = is_in_task(sys._getframe())
        if is_inside:
            raise TaskInterrupted(STOPPED)
        if is_inside is None and self.strike_soon is not None:
            self.strike_soon()
