"""Asking a run to end, and interrupting its task: where a signal meets the runner.

The flag that says whether a task's own code is running stands here alone, so that an interrupt can never
strike inside a write to the queue.
"""

from __future__ import annotations

from threading import get_ident


class TaskInterrupted(BaseException):
    """Raised inside a task that is to stop at once. Not an Exception: a task's `except Exception` must not keep it."""


class Stop:
    """A wish that a run ends. One is made for each run; any code, a signal handler too, may call `ask`."""

    def __init__(self) -> None:
        self.asked = False
        self.inside_task = False
        self.thread = 0

    def ask(self) -> None:
        """The first time: finish the running task and start no other. After that: interrupt the running one too.

        Interrupts only from the thread that runs the task, which for a signal handler is the main thread.
        """
        again, self.asked = self.asked, True
        if again and self.inside_task and self.thread == get_ident():
            # Lowered here: struck on the way out of the task, the interrupt would keep `interruptible` from doing it.
            self.inside_task = False
            raise TaskInterrupted("stopped by a second signal")

    def interruptible(self) -> _TasksOwnCode:
        """Marks the task's own code, in a `with`."""
        return _TasksOwnCode(self)


class _TasksOwnCode:
    def __init__(self, stop: Stop) -> None:
        self._stop = stop

    def __enter__(self) -> None:
        self._stop.thread = get_ident()
        self._stop.inside_task = True

    def __exit__(self, *error: object) -> None:
        self._stop.inside_task = False
