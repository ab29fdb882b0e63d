"""Asking a run to end, and interrupting its task: where a signal meets the run.

An interrupt strikes only inside a task's own code: the interrupted stack must hold `call_task`, and above that no
function that is `uninterrupted`, such as a write to the queue. A stack is never out of date; a flag could be, between
two instructions.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Collection
from threading import get_ident
from types import CodeType, FrameType
from typing import Any, Protocol, TypeVar

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

STOPPED = "stopped by a second signal"
LOOK_SECONDS = 0.1
CANCEL_AGAIN_SECONDS = 1.0
"""A coroutine that goes on so long after one signal is cancelled anew by the next."""

_uninterrupted: set[CodeType] = set()


class TaskInterrupted(BaseException):
    """Raised inside a task that must stop at once. Not an Exception: a task's `except Exception` must not catch it."""


class Cancellable(Protocol):
    """A task that is a coroutine (coroutines.py): it is cancelled before anything is raised in it."""

    def cancel(self, why: str, again_after_seconds: float) -> bool | None:
        """Have it cancelled, and once more where it goes on so long after that; from any thread, or a signal's handler.

        True: it was. None: it will be; ask again soon. False: its event loop has no turn, so the interrupt must strike.
        """

    def wake(self) -> None:
        """Have an event loop that waits run some code, in which an exception can strike."""


CANCELLABLE_BY_THREAD: dict[int, Cancellable] = {}
"""The coroutine that runs in a thread, by the thread's number."""


def call_task(function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Call a task's own code; interrupts strike only below this call."""
    return function(*args, **kwargs)


def uninterrupted(function: F) -> F:
    """Decorate a function inside which no interrupt strikes, even where a task called it."""
    _uninterrupted.add(function.__code__)
    return function


def is_in_task(frame: FrameType | None) -> bool | None:
    """Whether a stack is in a task's own code; None where a task called a function that is `uninterrupted`."""
    outcome: bool | None = True
    while frame is not None:
        if frame.f_code is call_task.__code__:
            return outcome
        if frame.f_code in _uninterrupted:
            outcome = None
        frame = frame.f_back
    return False


class Stop:
    """The wish that a run ends; each run has one. Any code, a signal handler too, may call `ask`."""

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
        self.tell_deadline: Callable[[float], object] | None = None
        """Called with the instant of time.monotonic by which the call that begins is to end, and with infinity once it
        has ended."""
        self.strike_soon: Callable[[], object] | None = None
        """Interrupts the task a little later; set by a run."""

    def began_at(self) -> float:
        """By time.time: when the program began, or the line whose workers the run's is one of."""
        began_at = self._made_at if self.line_began_at is None else self.line_began_at
        return time.time() - (time.monotonic() - began_at)

    def look(self) -> None:
        """Let the program look around, unless it did so a tenth of a second ago."""
        if not self.lookouts:
            return
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
        while not (is_to_end := self.is_to_end()) and (left := until - time.monotonic()) > 0:
            if rest(min(left, LOOK_SECONDS)):
                break
        return not is_to_end

    def is_to_end(self) -> bool:
        """Whether the run is to end after its task."""
        self.look()
        return self.asked or self.is_relieved

    def relieve(self) -> None:
        """Have the run end once its task is over, since another worker waits for its place."""
        self.is_relieved = True

    def ask(self) -> None:
        """The first call: finish the running task and start no other. A later call interrupts the running task, too.

        It interrupts only from the thread that runs the task; a signal handler runs in the main thread.
        """
        self.insisted, self.asked = self.asked, True
        if not self.insisted:
            return
        is_inside = is_in_task(sys._getframe())
        if is_inside is False:
            return
        coroutine = CANCELLABLE_BY_THREAD.get(get_ident())
        if is_inside and (coroutine is None or coroutine.cancel(STOPPED, CANCEL_AGAIN_SECONDS) is False):
            raise TaskInterrupted(STOPPED)
        if self.strike_soon is not None:
            self.strike_soon()
