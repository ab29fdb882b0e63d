"""The end of this process by a timer of the C library, whoever holds the interpreter.

A thread of that library calls one function with one argument, which is too little for a line on standard error and an
exit code. So the function is `setcontext`, and the context begins a chain of calls, prepared here.
"""

from __future__ import annotations

import ctypes
import struct
from typing import Any

LIBRARY = ctypes.CDLL(None, use_errno=True)
# Before glibc 2.34 the timers stood in a library of their own.
TIMERS = LIBRARY if hasattr(LIBRARY, "timer_create") else ctypes.CDLL("librt.so.1", use_errno=True)
HAS_CONTEXTS = hasattr(LIBRARY, "setcontext")
"""False with musl, for one."""

EXIT_CODE = 1
STANDARD_ERROR = 2
SIGEV_THREAD = 2
CLOCK_MONOTONIC = 1
CONTEXT_BYTES = 8192
"""More than the registers of any machine need."""
SEMAPHORE_BYTES = 64
STACK_BYTES = 65536

# Memory that the C library points at: it keeps no copies, and the timers live as long as the process.
_kept: list[Any] = []
ctypes.pythonapi.Py_IncRef(ctypes.py_object(_kept))  # not even freed when Python ends: that may hang, and be ended here


class Bite:
    """Says words and ends the process, a grace after its time, unless it is held back until then."""

    def __init__(self, words: bytes, grace_seconds: float, max_words_seconds: float) -> None:
        """Raises OSError where there are no more timers."""
        self._token = _memory(SEMAPHORE_BYTES)
        """Taken once: by the chain of calls, or by Python before the chain takes it."""
        LIBRARY.sem_init(self._token, 0, 1)
        end = _timer(LIBRARY._exit, EXIT_CODE)
        if not HAS_CONTEXTS:
            self._timer = end  # at once, and without words
            return
        text, spec = _memory(words), _memory(_spec(max_words_seconds))
        chain = _chain(
            (LIBRARY.usleep, int(grace_seconds * 1e6)),
            (LIBRARY.sem_wait, ctypes.addressof(self._token)),  # where Python has the token, this waits forever
            (TIMERS.timer_settime, end.value or 0, 0, ctypes.addressof(spec), 0),
            (LIBRARY.write, STANDARD_ERROR, ctypes.addressof(text), len(words)),
            (LIBRARY._exit, EXIT_CODE),
        )
        self._timer = _timer(LIBRARY.setcontext, chain)

    def set(self, seconds: float) -> None:
        """Let its time come so many seconds from now; 0: never."""
        TIMERS.timer_settime(self._timer, 0, _spec(seconds), None)

    def hold_back(self) -> None:
        """Prevent the end for good, though its time may have come."""
        self.set(0)
        LIBRARY.sem_trywait(self._token)


def _timer(function: Any, argument: int) -> ctypes.c_void_p:
    """A timer that makes a call when its time is over. Raises OSError."""
    # struct sigevent: value, signal and kind of notification, function; no attributes, and the rest unused
    address = ctypes.cast(function, ctypes.c_void_p).value
    event = struct.pack("@PiiP96x", argument, 0, SIGEV_THREAD, address)
    timer = ctypes.c_void_p()
    if TIMERS.timer_create(CLOCK_MONOTONIC, event, ctypes.byref(timer)):
        raise OSError(ctypes.get_errno(), "timer_create")
    return timer


def _spec(seconds: float) -> bytes:
    """A struct itimerspec: no interval, then the time from now."""
    return struct.pack("@llll", 0, 0, int(seconds), int(seconds % 1 * 1e9))


def _chain(*calls: tuple[Any, ...]) -> int:
    """The address of a context that makes calls in turn; the last of them must not return."""
    following = 0
    for function, *arguments in reversed(calls):
        context, stack = _memory(CONTEXT_BYTES), _memory(STACK_BYTES)
        LIBRARY.getcontext(context)
        # struct ucontext: its flags stay; then the next context, and the stack with its flags and size
        struct.pack_into("@PPiN", context, struct.calcsize("@L"), following, ctypes.addressof(stack), 0, STACK_BYTES)
        LIBRARY.makecontext(context, function, len(arguments), *map(ctypes.c_void_p, arguments))
        following = ctypes.addressof(context)
    return following


def _memory(content: bytes | int) -> ctypes.Array[ctypes.c_char]:
    """Memory of this content, or of so many bytes."""
    memory = ctypes.create_string_buffer(content)
    _kept.append(memory)
    return memory
