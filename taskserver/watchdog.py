"""The last resort against a task that holds the interpreter: no Python code, not even a signal's, gets its turn then.

Two timers of the C library, which need no interpreter: one writes a line to standard error, the other ends the process.
"""

from __future__ import annotations

import struct
from logging import getLogger
from typing import Any

LOG = getLogger("taskserver")

WHAT = "a task holds the interpreter, or the host stood still, beyond its timeout and a lease"
WAY_OUT = "this worker ends, and a later run takes the task back"
SIGEV_THREAD = 2
CLOCK_MONOTONIC = 1
EXIT_CODE = 1
AFTER_THE_WORDS_SECONDS = 0.2


class Watchdog:
    """Ends this process so many seconds after it was armed last, unless it is armed anew or disarmed before."""

    def __init__(self, program: str) -> None:
        self._program = program
        self._timers: _Timers | None = None
        self._is_missing = False

    def arm(self, seconds: float) -> None:
        if self._timers is None and not self._is_missing:
            try:
                self._timers = _Timers(self._program)
            except (ImportError, AttributeError, OSError, ValueError) as error:
                # No ctypes, or a C library without such timers: what holds the interpreter is not ended here.
                self._is_missing = True
                LOG.debug("no watchdog: %s", error)
        if self._timers is not None:
            self._timers.set(seconds)

    def disarm(self) -> None:
        if self._timers is not None:
            self._timers.set(0)


# The C library keeps no copies of texts: these live as long as the process.
_kept: list[Any] = []


class _Timers:
    def __init__(self, program: str) -> None:
        import ctypes  # here, as an empty run has no need of it

        self._ctypes = ctypes
        self._library = ctypes.CDLL(None, use_errno=True)
        # Before glibc 2.34 they stood in a library of their own.
        self._timer_library = self._library
        if not hasattr(self._library, "timer_create"):
            self._timer_library = ctypes.CDLL("librt.so.1", use_errno=True)
        # warnx writes the program's name, a colon, and its text. What matters stands in the name, as that is one write:
        # after a standstill both timers end at once.
        self._name = ctypes.c_void_p.in_dll(self._library, "__progname")
        self._real_name = self._name.value
        self._what = ctypes.create_string_buffer(f"{program}: {WHAT}".encode())
        way_out = ctypes.create_string_buffer(WAY_OUT.encode())
        _kept.extend((self._what, way_out))
        words = ctypes.addressof(way_out)
        self._timers = [self._make(self._library.warnx, words), self._make(self._library._exit, EXIT_CODE)]

    def _make(self, function: Any, argument: int | None) -> Any:
        """A timer at whose end a thread calls a function of the C library with one argument."""
        ctypes = self._ctypes
        address = ctypes.cast(function, ctypes.c_void_p).value
        # struct sigevent: value, signal and kind of notification, function; no attributes, and the rest unused
        event = ctypes.create_string_buffer(struct.pack("@PiiP", argument or 0, 0, SIGEV_THREAD, address or 0), 128)
        timer = ctypes.c_void_p()
        if self._timer_library.timer_create(CLOCK_MONOTONIC, ctypes.byref(event), ctypes.byref(timer)):
            raise OSError(ctypes.get_errno(), "timer_create")
        return timer

    def set(self, seconds: float) -> None:
        """0 stops them."""
        ctypes = self._ctypes
        self._name.value = ctypes.addressof(self._what) if seconds else self._real_name
        for timer, later in zip(self._timers, (0.0, AFTER_THE_WORDS_SECONDS), strict=True):
            at = seconds + later if seconds else 0.0
            # struct itimerspec: no interval, then the time from now
            spec = (ctypes.c_long * 4)(0, 0, int(at), int(at % 1 * 1e9))
            self._timer_library.timer_settime(timer, 0, ctypes.byref(spec), None)
