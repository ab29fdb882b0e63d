"""A request to stop a run, and the exception that interrupts a task. alarm.py has the rest: an empty run needs none."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Collection

STOPPED = "stopped by a second signal"
LOOK_SECONDS = 0.1
HAS_TIMER = hasattr(signal, "setitimer")
"""False on Windows, where no worker runs. The tasks of a site's tests run there, without timeouts."""


class TaskInterrupted(BaseException):
    """Raised inside a task that must stop at once. Not an Exception: a task's `except Exception` must not catch it."""


class Stop:
    """A request to stop a run; each run has one. Any code, a signal handler too, may call `ask`."""

    ends_process = ""
    """The name of our program, whose process may be ended with exit code 1 once a task that nothing can interrupt has
    outrun its timeout and a lease; empty where the process belongs to others."""

    signals: Collection[int] = ()
    """Signals whose handlers are put back after each task, as they belong to our program; beside SIGALRM, which is a
    run's own."""

    line_began_at: float | None = None
    """By time.monotonic: when the line began whose workers the run's is one of; None of a line with one worker."""

    def __init__(self) -> None:
        self._made_at = time.monotonic()
        self.asked = False
        self.insisted = False
        self.is_relieved = False
        """Whether the run ends once its task is over, as another worker waits for its place."""
        self.lookouts: list[Callable[[], object]] = []
        """Called between two tasks, and while a run waits: our program looks there whether the run is still wanted."""
        self._looked_at = 0.0
        self.react: Callable[[], object] | None = None
        """Called after each `ask`; set by a run's alarm, which interrupts the task of this thread."""

    def began_at(self) -> float:
        """By time.time: when the program began, or the line whose workers the run's is one of."""
        return time.time() - (time.monotonic() - self._made_at)

    def look(self) -> None:
        """Let the program look around, unless it did so a tenth of a second ago."""
        now = time.monotonic()
        if now - self._looked_at >= LOOK_SECONDS:
            self._looked_at = now
            for look_out in self.lookouts:
                look_out()

    def wait(self, seconds: float, rest: Callable[[float], object] = time.sleep) -> bool:
        """Wait for so long. False at once, within a tenth of a second, where the run is to end.

        `rest` rests for the seconds that it is given; the wait is over where it returns something true.
        """
        until = time.monotonic() + seconds
        while not (should_end := self.should_end()) and (left := until - time.monotonic()) > 0:
            if rest(min(left, LOOK_SECONDS)):
                break
        return not should_end

    def should_end(self) -> bool:
        """Whether the run is to end after its task."""
        if self.lookouts:
            self.look()
        return self.asked or self.is_relieved

    def relieve(self) -> None:
        """End the run once its task is over, since another worker waits for its place."""
        self.is_relieved = True

    def ask(self) -> None:
        """The first call: finish the running task and start no other. A later call interrupts the running task, too.

        It interrupts only from the thread that runs the task; a signal handler runs in the main thread.
        """
        self.insisted, self.asked = self.asked, True
        if self.react is not None:
            self.react()
