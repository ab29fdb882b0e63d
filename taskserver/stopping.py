"""Asking a run to end, and interrupting its task: where a signal meets the runner.

The flag that says whether a task's own code is running stands here alone, so that an interrupt can never
strike inside a write to the queue.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class TaskInterrupted(BaseException):
    """Raised inside a task that is to stop at once. Not an Exception: a task's `except Exception` must not keep it."""


class Stop:
    """A wish that a run ends. One is made for each run; any code, a signal handler too, may call `ask`."""

    def __init__(self) -> None:
        self.asked = False
        self._inside_task = False

    def ask(self) -> None:
        """The first time: finish the running task and start no other. After that: interrupt the running one too.

        Interrupts only from the thread that runs the task, which for a signal handler is the main thread.
        """
        again, self.asked = self.asked, True
        if again and self._inside_task:
            # Lowered here: struck on the way out of the task, the interrupt would keep `interruptible` from doing it.
            self._inside_task = False
            raise TaskInterrupted("stopped by a second signal")

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Marks the task's own code."""
        self._inside_task = True
        try:
            yield
        finally:
            self._inside_task = False
