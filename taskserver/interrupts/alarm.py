"""The timer that interrupts a task: SIGALRM in the main thread.

A timeout, a cancel, a lost lease and a second signal all ring the alarm. Its handler raises TaskInterrupted if
`call_task` is on the interrupted stack. Otherwise it drops the alarm, which came before the task's code or after it. A
stack is never stale; a flag could be, between two instructions.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

# The functions of `signal` return enums, which would be the most expensive step of a task.
from _signal import getsignal  # type: ignore[import-not-found]
from collections.abc import Callable
from logging import getLogger
from types import FrameType
from typing import Any, ClassVar, NoReturn, Protocol, TypeVar

from .stop import HAS_TIMER, LOOK_SECONDS, STOPPED, Stop, TaskInterrupted

if HAS_TIMER:
    from time import CLOCK_MONOTONIC, clock_gettime

LOG = getLogger("taskserver")

T = TypeVar("T")

INFINITY = float("inf")
SOON_SECONDS = 0.001
NO_TIMEOUTS = (
    "this run is not in the main thread of its process: its tasks have no timeout, and a cancel reaches them only "
    "where they call taskserver.progress() or current_task()"
)

_has_warned = False


def now() -> float:
    """A clock that test libraries in a task's code can't freeze."""
    return clock_gettime(CLOCK_MONOTONIC) if HAS_TIMER else time.monotonic()


def call_task(function: Callable[..., T], args: tuple[Any, ...]) -> T:
    """Call a task's own code; interrupts are raised only below this call."""
    return function(*args)


def is_in_task(frame: FrameType | None) -> bool:
    """Whether a stack is in a task's own code."""
    while frame is not None and frame.f_code is not call_task.__code__:
        frame = frame.f_back
    return frame is not None


def end_child(worker: int, raised: BaseException | None) -> None:
    """End a process that a task forked and that returned from its call: it must not become a second worker."""
    if os.getpid() == worker:
        return
    code = raised.code if type(raised) is SystemExit else 0 if raised is None else 1
    os._exit(0 if code is None else code if type(code) is int else 1)


class RunningCoroutine(Protocol):
    """A task's coroutine in its event loop (coroutines.py)."""

    def cancel(self, why: str, again_after_seconds: float) -> bool:
        """Cancel it, and again after so many seconds.

        False if its event loop is blocked: then an exception must interrupt it.
        """

    def is_current(self) -> bool:
        """Whether its own code runs, not that of a child task, whose error might be ignored."""


class Alarm:
    """Interrupts the tasks of one run; used in a `with` around the run."""

    coroutine: ClassVar[RunningCoroutine | None] = None
    """What runs in the main thread, if that is a coroutine."""

    def __init__(self, stop: Stop, again_after_seconds: float) -> None:
        self._stop = stop
        self.rings = HAS_TIMER and threading.current_thread() is threading.main_thread()
        self.again_after_seconds = again_after_seconds
        """Code that swallows its interrupt is interrupted again after so long."""
        self.has_interrupted = False
        """Whether the code of the last call was interrupted; it may have swallowed that."""
        self.number = 0
        """Incremented at the begin and end of a call, so that no interrupt hits another call."""
        self._request = (0, "")
        """The number of the call to interrupt, and why."""
        self._seconds = 0.0
        self._ends_at = INFINITY

    def __enter__(self) -> Alarm:
        global _has_warned
        if not self.rings:
            if HAS_TIMER and not _has_warned:
                _has_warned = True
                LOG.warning(NO_TIMEOUTS)
            return self
        self._began_at = now()
        self._previous_handler = signal.signal(signal.SIGALRM, self._ring)
        self._previous_timer = signal.setitimer(signal.ITIMER_REAL, 0)
        # A handler that Python did not set is None, and cannot be restored.
        numbers = (signal.SIGALRM, *self._stop.signals)
        self._handlers = [(number, handler) for number in numbers if (handler := getsignal(number)) is not None]
        self._stop.react = self._react
        return self

    def __exit__(self, *error: object) -> None:
        if not self.rings:
            return
        self._stop.react = None
        signal.setitimer(signal.ITIMER_REAL, 0)  # Python's end resets the handlers: an alarm would kill the process
        if self._previous_handler is not None:
            signal.signal(signal.SIGALRM, self._previous_handler)
        left, interval = self._previous_timer
        if left:
            signal.setitimer(signal.ITIMER_REAL, max(left - (now() - self._began_at), SOON_SECONDS), interval)

    def call(self, seconds: float, function: Callable[..., T], *args: Any) -> T:
        """Call a task's own code, and raise TaskInterrupted in it after so many seconds (0: never), and again later."""
        self.has_interrupted = False
        self._seconds = seconds
        self._ends_at = now() + seconds if seconds else INFINITY
        self.number += 1
        if not self.rings:
            return call_task(function, args)
        signal.setitimer(signal.ITIMER_REAL, seconds, self.again_after_seconds)
        try:
            return call_task(function, args)
        finally:
            self._ends_at = INFINITY
            self.number += 1
            signal.setitimer(signal.ITIMER_REAL, 0)  # a pending alarm rings here, and is dropped
            for number, handler in self._handlers:
                if getsignal(number) != handler:
                    signal.signal(number, handler)

    @property
    def is_forced(self) -> bool:
        """Whether a second signal came, to end the running task."""
        return self._stop.is_forced

    def interrupt(self, number: int, why: str) -> None:
        """Interrupt the call of this number, and again later, unless it has ended. Thread-safe.

        If its code was interrupted already, it gets the same time to clean up.
        """
        if self.rings and number == self.number:
            self._request = (number, why)
            seconds = self.again_after_seconds if self.has_interrupted else SOON_SECONDS
            signal.setitimer(signal.ITIMER_REAL, seconds, self.again_after_seconds)

    def interrupt_here(self, why: str) -> NoReturn:
        """Interrupt the running code at once, instead of by the alarm, which might hit its clean-up."""
        is_tasks_own = self._is_in_main_thread() and (Alarm.coroutine is None or Alarm.coroutine.is_current())
        if is_tasks_own and not self.has_interrupted:  # else asking again would delay the next alarm
            self.has_interrupted = True
            signal.setitimer(signal.ITIMER_REAL, self.again_after_seconds, self.again_after_seconds)
        raise TaskInterrupted(why)

    def _react(self) -> None:
        """Interrupt the task after a second signal; after the first, make sure that a second one is seen."""
        if self._stop.is_forced:
            self._ring(signal.SIGALRM, sys._getframe())
        elif not self.has_interrupted and self._is_in_main_thread() and getsignal(signal.SIGALRM) == self._ring:
            # If a second signal comes just when Python returns from here into a sleep, it is seen only after the sleep.
            signal.setitimer(signal.ITIMER_REAL, LOOK_SECONDS, self.again_after_seconds)

    def _is_in_main_thread(self) -> bool:
        return self.rings and threading.current_thread() is threading.main_thread()

    def _ring(self, _: int, frame: FrameType | None) -> None:
        number, why = self._request
        if self._stop.is_forced:
            why = STOPPED
        elif number != self.number:
            if now() < self._ends_at:  # it was for an earlier call
                left = self._ends_at - now()
                seconds = 0 if left == INFINITY else max(left, SOON_SECONDS)
                signal.setitimer(signal.ITIMER_REAL, seconds, self.again_after_seconds)
                return
            why = f"it ran for longer than its timeout of {self._seconds:g} s"
        if not is_in_task(frame):
            return
        self.has_interrupted = True
        if Alarm.coroutine is None or not Alarm.coroutine.cancel(why, self.again_after_seconds):
            raise TaskInterrupted(why)
