"""A request to stop a run, and the exception that interrupts a task. An empty run does not import alarm.py."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Collection

STOPPED = "stopped by a second signal"
LOOK_SECONDS = 0.1
HAS_TIMER = hasattr(signal, "setitimer")
"""False on Windows: no worker runs there, only the tests of a site, without timeouts."""


class TaskInterrupted(BaseException):
    """Raised inside a task that must stop at once. Not an Exception: a task's `except Exception` must not catch it."""


class Stop:
    """A request to stop a run; each run has one. Any code, a signal handler too, may call `ask`."""

    ends_process = ""
    """The name of our program, whose process may exit with code 1 if a task hangs a lease longer than its timeout;
    empty if the process is not ours."""

    signals: Collection[int] = ()
    """Signals whose handlers are restored after each task, besides SIGALRM."""

    line_began_at: float | None = None
    """When a line with several workers began, by time.monotonic; None for a line with one worker."""

    def __init__(self) -> None:
        self._made_at = time.monotonic()
        self.asked = False
        self.is_forced = False
        self.is_handed_over = False
        """Whether the run ends after its task because another worker waits for its slot."""
        self.lookouts: list[Callable[[], object]] = []
        """Called between two tasks, and while a run waits: they check whether the run should go on."""
        self._looked_at = 0.0
        self.react: Callable[[], object] | None = None
        """Called after each `ask`; a run's alarm sets it, to interrupt the task of this thread."""

    def began_at(self) -> float:
        """When the program began, by time.time."""
        return time.time() - (time.monotonic() - self._made_at)

    def look(self) -> None:
        """Call the lookouts, at most every tenth of a second."""
        now = time.monotonic()
        if now - self._looked_at >= LOOK_SECONDS:
            self._looked_at = now
            for look_out in self.lookouts:
                look_out()

    def wait(self, seconds: float, rest: Callable[[float], object] = time.sleep) -> bool:
        """Wait for so long; False within a tenth of a second if the run should end.

        `rest` sleeps for the given seconds; the wait ends if it returns a true value.
        """
        until = time.monotonic() + seconds
        while not (should_end := self.should_end()) and (left := until - time.monotonic()) > 0:
            if rest(min(left, LOOK_SECONDS)):
                break
        return not should_end

    def should_end(self) -> bool:
        """Whether the run should end after its task."""
        if self.lookouts:
            self.look()
        return self.asked or self.is_handed_over

    def hand_over(self) -> None:
        """End the run after its task, as another worker waits for its slot."""
        self.is_handed_over = True

    def ask(self) -> None:
        """The first call: finish the running task and start no other. A later call interrupts the running task, too.

        It interrupts only from the thread that runs the task; a signal handler runs in the main thread.
        """
        self.is_forced, self.asked = self.asked, True
        if self.react is not None:
            self.react()
