"""The timer that interrupts a task: SIGALRM in the main thread, whatever the reason.

A timeout, a cancel, a lost lease and a second signal all make the alarm ring. Its handler raises TaskInterrupted if the
interrupted stack holds `call_task`, and drops the alarm otherwise: it came before the task's code, or after it. A stack
is never out of date; a flag could be, between two instructions.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

# The functions of `signal` make enums of their answers, which would cost more than all else that is done for a task.
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
    """The time of a clock that no test library freezes, as a task's code may do with the others."""
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
    """End a process that a task forked, and that came out of its call, as Python would: it is no second worker."""
    if os.getpid() == worker:
        return
    code = raised.code if type(raised) is SystemExit else 0 if raised is None else 1
    os._exit(0 if code is None else code if type(code) is int else 1)


class RunningCoroutine(Protocol):
    """A task's coroutine in its event loop; coroutines.py has it."""

    def cancel(self, why: str, again_after_seconds: float) -> bool:
        """Cancel it for this reason, and after so many seconds again.

        False if its event loop does not get its turn: an exception must interrupt what blocks it.
        """

    def is_current(self) -> bool:
        """Whether its own code runs, and not that of a child, whose error nobody may await."""


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
        """Whether it interrupted the code of the last call, which may have kept that to itself."""
        self.number = 0
        """Raised as a call begins and as it ends, so that no interrupt can mean another call."""
        self._wish = (0, "")
        """The number of the call that is to be interrupted, and why."""
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
        self._others_handler = signal.signal(signal.SIGALRM, self._ring)
        self._others_timer = signal.setitimer(signal.ITIMER_REAL, 0)
        # A handler that was not set by Python is None, and cannot be put back.
        numbers = (signal.SIGALRM, *self._stop.signals)
        self._handlers = [(number, handler) for number in numbers if (handler := getsignal(number)) is not None]
        self._stop.react = self._react
        return self

    def __exit__(self, *error: object) -> None:
        if not self.rings:
            return
        self._stop.react = None
        signal.setitimer(signal.ITIMER_REAL, 0)  # Python's end resets the handlers: an alarm would kill the process
        if self._others_handler is not None:
            signal.signal(signal.SIGALRM, self._others_handler)
        left, interval = self._others_timer
        if left:
            signal.setitimer(signal.ITIMER_REAL, max(left - (now() - self._began_at), SOON_SECONDS), interval)

    def call(self, seconds: float, function: Callable[..., T], *args: Any) -> T:
        """Call a task's own code; TaskInterrupted is raised in it after so many seconds (0: never), and again later."""
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
            signal.setitimer(signal.ITIMER_REAL, 0)  # one that is pending rings here, and is dropped
            for number, handler in self._handlers:
                if getsignal(number) != handler:
                    signal.signal(number, handler)

    @property
    def is_insisted(self) -> bool:
        """Whether a second signal asks the running task to end."""
        return self._stop.insisted

    def interrupt(self, number: int, why: str) -> None:
        """Interrupt the call of this number, and again later, unless it is over; from any thread.

        Code that was interrupted already is left the same time to clean up.
        """
        if self.rings and number == self.number:
            self._wish = (number, why)
            seconds = self.again_after_seconds if self.has_interrupted else SOON_SECONDS
            signal.setitimer(signal.ITIMER_REAL, seconds, self.again_after_seconds)

    def interrupt_here(self, why: str) -> NoReturn:
        """Interrupt the running code, which asks for it: in place of the ring that it would meet as it cleans up."""
        is_tasks_own = self._is_in_main_thread() and (Alarm.coroutine is None or Alarm.coroutine.is_current())
        if is_tasks_own and not self.has_interrupted:  # else asking again would put the next ring off
            self.has_interrupted = True
            signal.setitimer(signal.ITIMER_REAL, self.again_after_seconds, self.again_after_seconds)
        raise TaskInterrupted(why)

    def _react(self) -> None:
        """Interrupt the task after a second signal; after the first, see to it that it hears of a second one."""
        if self._stop.insisted:
            self._ring(signal.SIGALRM, sys._getframe())
        elif not self.has_interrupted and self._is_in_main_thread() and getsignal(signal.SIGALRM) == self._ring:
            # A second signal that comes as Python returns from this handler into a sleep is seen only once it wakes.
            signal.setitimer(signal.ITIMER_REAL, LOOK_SECONDS, self.again_after_seconds)

    def _is_in_main_thread(self) -> bool:
        return self.rings and threading.current_thread() is threading.main_thread()

    def _ring(self, _: int, frame: FrameType | None) -> None:
        number, why = self._wish
        if self._stop.insisted:
            why = STOPPED
        elif number != self.number:
            if now() < self._ends_at:  # it was meant for an earlier call
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
