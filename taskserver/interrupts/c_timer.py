"""A timer of the C library: at its end a thread of that library makes C calls, whoever holds the interpreter.

Such a thread calls one function with one argument, which is too little for a line on standard error and an exit code.
So the function is `setcontext`, and the context holds a chain of calls, prepared here.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

LIBRARY = ctypes.CDLL(None, use_errno=True)
# Before glibc 2.34 the timers stood in a library of their own.
TIMERS = LIBRARY if hasattr(LIBRARY, "timer_create") else ctypes.CDLL("librt.so.1", use_errno=True)
HAS_CONTEXTS = hasattr(LIBRARY, "setcontext")
"""False with musl, for one."""

STANDARD_ERROR = 2
SIGEV_THREAD = 2
CLOCK_MONOTONIC = 1
REGISTERS_BYTES = 8192
"""More than the registers of any machine need."""
SEMAPHORE_BYTES = 64
STACK_BYTES = 65536

# Memory that the C library points at: it keeps no copies, and the timers live as long as the process.
_kept: list[Any] = []


class Call(NamedTuple):
    """A function of the C library, and its arguments: numbers and addresses."""

    function: Any
    arguments: Sequence[int]


class _Context(ctypes.Structure):
    _fields_ = (
        ("flags", ctypes.c_ulong),
        ("next", ctypes.c_void_p),
        ("stack", ctypes.c_void_p),
        ("stack_flags", ctypes.c_int),
        ("stack_bytes", ctypes.c_size_t),
        ("registers", ctypes.c_char * REGISTERS_BYTES),
    )


class Timer:
    """Makes a call of one argument when its time is over."""

    def __init__(self, call: Call) -> None:
        """Raises OSError where there are no more timers."""
        function = ctypes.cast(call.function, ctypes.c_void_p).value
        # struct sigevent: value, signal and kind of notification, function; no attributes, and the rest unused
        event = ctypes.create_string_buffer(struct.pack("@PiiP", *call.arguments, 0, SIGEV_THREAD, function), 128)
        self._timer = ctypes.c_void_p()
        if TIMERS.timer_create(CLOCK_MONOTONIC, ctypes.byref(event), ctypes.byref(self._timer)):
            raise _error("timer_create")

    def set(self, seconds: float) -> None:
        """Let the timer end so many seconds from now; 0 stops it."""
        TIMERS.timer_settime(self._timer, 0, ctypes.byref(_spec(seconds)), None)

    def setting(self, seconds: float) -> Call:
        """The call that sets the timer, for a chain."""
        spec = _spec(seconds)
        _kept.append(spec)
        return Call(TIMERS.timer_settime, (self._timer.value or 0, 0, ctypes.addressof(spec), 0))


class Token:
    """Taken once: by a chain of calls, or by Python before the chain takes it."""

    def __init__(self) -> None:
        self._semaphore = ctypes.create_string_buffer(SEMAPHORE_BYTES)
        _kept.append(self._semaphore)
        if LIBRARY.sem_init(ctypes.byref(self._semaphore), 0, 1):
            raise _error("sem_init")

    def take(self) -> bool:
        """Take the token; False where it is taken already."""
        return not LIBRARY.sem_trywait(ctypes.byref(self._semaphore))

    def taking(self) -> Call:
        """The call that takes the token, for a chain; a chain that comes too late waits forever."""
        return Call(LIBRARY.sem_wait, (ctypes.addressof(self._semaphore),))


def waiting(seconds: float) -> Call:
    """The call that pauses a chain."""
    return Call(LIBRARY.usleep, (int(seconds * 1e6),))


def ending(exit_code: int) -> Call:
    """The call that ends the process at once."""
    return Call(LIBRARY._exit, (exit_code,))


def saying(words: str) -> Call:
    """The call that writes words to standard error."""
    text = ctypes.create_string_buffer(words.encode())
    _kept.append(text)
    return Call(LIBRARY.write, (STANDARD_ERROR, ctypes.addressof(text), len(text.value)))


def chain(*calls: Call) -> Call:
    """One call that makes several in turn; the last of them must not return. Needs HAS_CONTEXTS."""
    following = None
    for function, arguments in reversed(calls):
        context, stack = _Context(), ctypes.create_string_buffer(STACK_BYTES)
        _kept.extend((context, stack))
        if LIBRARY.getcontext(ctypes.byref(context)):
            raise _error("getcontext")
        context.next, context.stack, context.stack_bytes = following, ctypes.addressof(stack), STACK_BYTES
        LIBRARY.makecontext(ctypes.byref(context), function, len(arguments), *map(ctypes.c_void_p, arguments))
        following = ctypes.addressof(context)
    return Call(LIBRARY.setcontext, (following or 0,))


def _spec(seconds: float) -> Any:
    """A struct itimerspec: no interval, then the time from now."""
    return (ctypes.c_long * 4)(0, 0, int(seconds), int(seconds % 1 * 1e9))


def _error(function: str) -> OSError:
    return OSError(ctypes.get_errno(), function)
