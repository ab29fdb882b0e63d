"""How long a task may run: the timer that interrupts it.

In the main thread by SIGALRM, which also interrupts system calls and those C functions that ask for signals. In another
thread by an exception that the interpreter raises there, which strikes Python code alone.
"""

from __future__ import annotations

import signal
import sys
import threading
import time

# The public one makes an enum of its answer, which would be the most costly thing that is done here for a task.
from _signal import getsignal  # type: ignore[import-not-found]
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, NamedTuple, Protocol, TypeVar

from .stopping import STOPPED, Stop, TaskInterrupted, call_task, is_in_task

T = TypeVar("T")

AGAIN_SECONDS = 0.02
"""After so long it is tried again where a task was in the midst of what is not to be interrupted."""


class TimeLimit(Protocol):
    """What interrupts the tasks of one run; used in a `with` around that run."""

    def __enter__(self) -> TimeLimit: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

    def call(self, seconds: float, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Call a task's own code; TaskInterrupted is raised in it after so many seconds (0: never), and again later."""

    def strike(self) -> bool:
        """Called by the heartbeat at the end of that time and later: interrupts where no timer does it.

        False where the task is in the midst of what is not to be interrupted.
        """

    def interrupt(self, why: str, is_meant: Callable[[], bool]) -> bool:
        """Called by the heartbeat: interrupt the task at once, and again later, as long as `is_meant` holds.

        False as for `strike`.
        """


def time_limit(stop: Stop, again_after_seconds: float) -> TimeLimit:
    """The one for this thread. One that swallows its interrupt is interrupted again after so many seconds."""
    if threading.current_thread() is threading.main_thread():
        return _ByAlarm(stop, again_after_seconds)
    return _ByException()


def _interrupted(seconds: float) -> TaskInterrupted:
    return TaskInterrupted(f"it ran for longer than its timeout of {seconds:g} s")


class _Wish(NamedTuple):
    """An interrupt that is none of a timer's."""

    why: str | None
    """None where its time is up."""
    is_meant: Callable[[], bool]


class _ByAlarm:
    def __init__(self, stop: Stop, again_after_seconds: float) -> None:
        self._stop = stop
        self._again_after_seconds = again_after_seconds
        self._seconds = 0.0
        self._ends_at = 0.0
        self._wish: _Wish | None = None

    def __enter__(self) -> _ByAlarm:
        self._began_at = time.monotonic()
        self._others_handler = signal.signal(signal.SIGALRM, self._on_alarm)
        self._others_timer = signal.setitimer(signal.ITIMER_REAL, 0)
        self._stop.strike_soon = self._strike_soon
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.strike_soon = None
        signal.setitimer(signal.ITIMER_REAL, 0)
        if self._others_handler is not None:  # None: set by something else than Python, which can't be put back
            signal.signal(signal.SIGALRM, self._others_handler)
        left, interval = self._others_timer
        if left:
            passed = time.monotonic() - self._began_at
            signal.setitimer(signal.ITIMER_REAL, max(left - passed, 0.001), interval)

    def call(self, seconds: float, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        self._seconds = seconds
        self._wish = None
        self._ends_at = time.monotonic() + seconds if seconds else float("inf")
        # Without a limit, too: an interrupt that came too late for the task before may have left its alarm.
        signal.setitimer(signal.ITIMER_REAL, seconds, self._again_after_seconds)
        try:
            return call_task(function, *args, **kwargs)
        finally:
            # Whatever alarms the task set for itself, none may strike after it.
            signal.setitimer(signal.ITIMER_REAL, 0)
            if getsignal(signal.SIGALRM) != self._on_alarm:
                signal.signal(signal.SIGALRM, self._on_alarm)

    def strike(self) -> bool:
        # The timer does, unless the task, which may have set an alarm of its own, took it away.
        if not signal.getitimer(signal.ITIMER_REAL)[0]:
            signal.setitimer(signal.ITIMER_REAL, AGAIN_SECONDS, self._again_after_seconds)
        return True

    def interrupt(self, why: str, is_meant: Callable[[], bool]) -> bool:
        self._wish = _Wish(why, is_meant)
        self._strike_soon()
        return True

    def _on_alarm(self, number: int, frame: FrameType | None) -> None:
        wish = self._wish
        # One that comes early, and that nobody here wishes for, was meant for the task before.
        is_meant = wish.is_meant() if wish else self._stop.insisted or time.monotonic() >= self._ends_at
        if not is_meant:
            self._forget_wish()
            return
        is_inside = is_in_task(frame)
        if is_inside and self._stop.insisted:
            raise TaskInterrupted(STOPPED)
        if is_inside:
            raise TaskInterrupted(wish.why) if wish and wish.why else _interrupted(self._seconds)
        if is_inside is None:
            self._strike_soon()

    def _forget_wish(self) -> None:
        """The task that it was meant for has ended, and what runs now has lost its timer to it."""
        self._wish = None
        left = max(self._ends_at - time.monotonic(), 0.001) if self._seconds else 0
        signal.setitimer(signal.ITIMER_REAL, left, self._again_after_seconds)

    def _strike_soon(self) -> None:
        signal.setitimer(signal.ITIMER_REAL, AGAIN_SECONDS, self._again_after_seconds)


class _ByException:
    def __init__(self) -> None:
        import ctypes  # noqa: F401  # before a task runs: it takes long, and the task would go on meanwhile

        self._lock = threading.Lock()
        self._thread = threading.get_ident()
        self._why: str | None = None
        self._is_inside = False
        self._struck = False

    def __enter__(self) -> _ByException:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def call(self, seconds: float, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        self._why = None
        try:
            try:
                self._is_inside = True
                returned: T = call_task(self._named, seconds, function, *args, **kwargs)
                return returned
            finally:
                self._leave()
        finally:
            # Twice, as the exception could strike in the first one; after it, nothing strikes any more.
            self._leave()

    def strike(self) -> bool:
        return self._strike(_Wish(None, lambda: True))

    def interrupt(self, why: str, is_meant: Callable[[], bool]) -> bool:
        return self._strike(_Wish(why, is_meant))

    def _strike(self, wish: _Wish) -> bool:
        with self._lock:
            if not self._is_inside or not wish.is_meant() or not is_in_task(sys._current_frames().get(self._thread)):
                return False
            self._struck = True
            self._why = wish.why or self._why
            _raise_in(self._thread, TaskInterrupted)
            return True

    def _named(self, seconds: float, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Give the exception, which the interpreter can only make without a text, its text."""
        try:
            return function(*args, **kwargs)
        except TaskInterrupted as error:
            if error.args:
                raise
            named = TaskInterrupted(self._why) if self._why else _interrupted(seconds)
            raise named.with_traceback(error.__traceback__) from None

    def _leave(self) -> None:
        with self._lock:
            self._is_inside = False
        if self._struck:
            _raise_in(self._thread, None)  # what was not raised yet is taken back
            self._struck = False


def _raise_in(thread: int, error: type[BaseException] | None) -> None:
    import ctypes  # here, as most runs have no need of it

    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(error) if error else None)
