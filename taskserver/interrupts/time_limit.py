"""The timer that interrupts a task after its timeout.

In the main thread the timer is SIGALRM, which also interrupts system calls and C functions that check for signals. In
another thread the interpreter raises an exception, which strikes Python code alone. In both a coroutine is cancelled,
and struck only where its event loop has no turn.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, NamedTuple, Protocol, TypeVar

from .kept_signals import KeptSignals
from .stopping import CANCELLABLE_BY_THREAD, STOPPED, Stop, TaskInterrupted, call_task, is_in_task

T = TypeVar("T")

STRIKE_AGAIN_SECONDS = 0.02
"""The pause before the next try, where a task was inside a function that is `uninterrupted`."""


class TimeLimit(Protocol):
    """Interrupts the tasks of one run; used in a `with` around the run."""

    has_struck: bool
    """Whether it interrupted the code of the last call, which may have kept that to itself."""
    again_after_seconds: float
    """Code that swallows its interrupt is struck again after so long."""

    def __enter__(self) -> TimeLimit: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

    def call(self, seconds: float, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Call a task's own code; TaskInterrupted strikes it after so many seconds (0: never), and again later."""

    def strike(self) -> bool:
        """Interrupt a task whose time is up, where no timer does it; the heartbeat calls this, and again later.

        False where the task is inside a function that is `uninterrupted`.
        """

    def interrupt(self, why: str, is_meant: Callable[[], bool]) -> bool:
        """Interrupt the task at once, and again later while `is_meant` holds; the heartbeat calls this.

        False as for `strike`.
        """


def time_limit(stop: Stop, again_after_seconds: float) -> TimeLimit:
    """The time limit for this thread. A task that swallows its interrupt is struck again after so many seconds."""
    if threading.current_thread() is threading.main_thread():
        return _ByAlarm(stop, again_after_seconds)
    return _ByException(again_after_seconds)


def _outran(seconds: float) -> str:
    return f"it ran for longer than its timeout of {seconds:g} s"


def _cancelled(thread: int, why: str, again_after_seconds: float) -> bool | None:
    """Cancel the coroutine that runs in a thread, as `Cancellable.cancel` says; False where none does."""
    coroutine = CANCELLABLE_BY_THREAD.get(thread)
    return coroutine.cancel(why, again_after_seconds) if coroutine else False


class _Wish(NamedTuple):
    """An interrupt that some code asked for, rather than a timer."""

    why: str | None
    """The reason; None where the task's time is up."""
    is_meant: Callable[[], bool]


class _ByAlarm:
    def __init__(self, stop: Stop, again_after_seconds: float) -> None:
        self._stop = stop
        self.again_after_seconds = again_after_seconds
        self._seconds = 0.0
        self._ends_at = 0.0
        self._wish: _Wish | None = None
        self.has_struck = False

    def __enter__(self) -> _ByAlarm:
        self._began_at = time.monotonic()
        self._others_handler = signal.signal(signal.SIGALRM, self._on_alarm)
        self._others_timer = signal.setitimer(signal.ITIMER_REAL, 0)
        self._kept = KeptSignals((signal.SIGALRM, *self._stop.signals))
        self._stop.strike_soon = self._strike_soon
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.strike_soon = None
        signal.setitimer(signal.ITIMER_REAL, 0)
        if self._others_handler is not None:  # None: a handler that was not set by Python cannot be put back
            signal.signal(signal.SIGALRM, self._others_handler)
        left, interval = self._others_timer
        if left:
            passed = time.monotonic() - self._began_at
            signal.setitimer(signal.ITIMER_REAL, max(left - passed, 0.001), interval)

    def call(self, seconds: float, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        self._seconds = seconds
        self._wish = None
        self.has_struck = False
        self._ends_at = time.monotonic() + seconds if seconds else float("inf")
        # Set without a limit, too: an interrupt that came too late for the task before may have left its alarm.
        signal.setitimer(signal.ITIMER_REAL, seconds, self.again_after_seconds)
        try:
            return call_task(function, *args, **kwargs)
        finally:
            # No alarm may strike after the task, not even an alarm that the task set for itself.
            signal.setitimer(signal.ITIMER_REAL, 0)
            self._kept.put_back()

    def strike(self) -> bool:
        # The timer strikes, unless the task replaced it by an alarm of its own.
        if not signal.getitimer(signal.ITIMER_REAL)[0]:
            signal.setitimer(signal.ITIMER_REAL, STRIKE_AGAIN_SECONDS, self.again_after_seconds)
        return True

    def interrupt(self, why: str, is_meant: Callable[[], bool]) -> bool:
        self._wish = _Wish(why, is_meant)
        self._strike_soon()
        return True

    def _on_alarm(self, number: int, frame: FrameType | None) -> None:
        wish = self._wish
        # An alarm that comes early, and that nobody here asked for, was meant for the task before.
        is_meant = wish.is_meant() if wish else self._stop.insisted or time.monotonic() >= self._ends_at
        if not is_meant:
            self._forget_wish()
            return
        is_inside = is_in_task(frame)
        self.has_struck = self.has_struck or bool(is_inside)
        is_cancelled: bool | None = None
        if is_inside:
            why = STOPPED if self._stop.insisted else (wish and wish.why) or _outran(self._seconds)
            is_cancelled = _cancelled(threading.get_ident(), why, self.again_after_seconds)
            if is_cancelled is False:
                raise TaskInterrupted(why)
        if is_inside is not False and is_cancelled is None:
            self._strike_soon()

    def _forget_wish(self) -> None:
        """Drop a wish whose task has ended, and set the timer of the task that runs now anew."""
        self._wish = None
        left = max(self._ends_at - time.monotonic(), 0.001) if self._seconds else 0
        signal.setitimer(signal.ITIMER_REAL, left, self.again_after_seconds)

    def _strike_soon(self) -> None:
        signal.setitimer(signal.ITIMER_REAL, STRIKE_AGAIN_SECONDS, self.again_after_seconds)


class _ByException:
    def __init__(self, again_after_seconds: float) -> None:
        import ctypes  # noqa: F401  # imported before a task runs: it takes long, and the task would run on meanwhile

        self.again_after_seconds = again_after_seconds
        self._lock = threading.Lock()
        self._thread = threading.get_ident()
        self._seconds = 0.0
        self._why: str | None = None
        self._is_inside = False
        self._is_due = False
        """Whether an exception was set that may not be raised yet."""
        self.has_struck = False

    def __enter__(self) -> _ByException:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def call(self, seconds: float, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        self._seconds = seconds
        self._why = None
        self.has_struck = False
        try:
            try:
                self._is_inside = True
                returned: T = call_task(self._named, function, *args, **kwargs)
                return returned
            finally:
                self._leave()
        finally:
            # Twice: the exception may strike inside the first call; after the second, nothing strikes any more.
            self._leave()

    def strike(self) -> bool:
        return self._strike(_Wish(None, lambda: True))

    def interrupt(self, why: str, is_meant: Callable[[], bool]) -> bool:
        return self._strike(_Wish(why, is_meant))

    def _strike(self, wish: _Wish) -> bool:
        with self._lock:
            if not self._is_inside or not wish.is_meant() or not is_in_task(sys._current_frames().get(self._thread)):
                return False
            self.has_struck = True
            self._why = wish.why or self._why
            is_cancelled = _cancelled(self._thread, self._why or _outran(self._seconds), self.again_after_seconds)
            if is_cancelled is False:
                self._is_due = True
                _raise_in(self._thread, TaskInterrupted)
                if coroutine := CANCELLABLE_BY_THREAD.get(self._thread):
                    coroutine.wake()
            return is_cancelled is not None

    def _named(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Give the exception its text: the interpreter can only raise it without one."""
        try:
            return function(*args, **kwargs)
        except TaskInterrupted as error:
            if error.args:
                raise
            named = TaskInterrupted(self._why or _outran(self._seconds))
            raise named.with_traceback(error.__traceback__) from None

    def _leave(self) -> None:
        with self._lock:
            self._is_inside = False
        if self._is_due:
            _raise_in(self._thread, None)  # takes back an exception that was not raised yet
            self._is_due = False


def _raise_in(thread: int, error: type[BaseException] | None) -> None:
    import ctypes  # most runs interrupt nothing

    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(error) if error else None)
