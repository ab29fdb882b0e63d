"""The last resort against a task that holds the interpreter: no Python code, no signal's either, has its turn then."""

from __future__ import annotations

from logging import getLogger
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .c_timer import Timer

LOG = getLogger("taskserver")

WHAT = "a task holds the interpreter, or the host stood still, beyond its timeout and a lease"
WAY_OUT = "this worker ends, and a later run takes the task back"
EXIT_CODE = 1
SLOWEST_WORDS_SECONDS = 5
"""Where nobody reads standard error, writing to it may never end; the process does."""


class Watchdog:
    """Ends this process so many seconds after it was armed last, unless it is armed anew or disarmed before."""

    def __init__(self, program: str) -> None:
        self._program = program
        self._timer: Timer | None = None
        self._is_missing = False

    def arm(self, seconds: float) -> None:
        if self._timer is None and not self._is_missing:
            try:
                self._timer = _timer(f"{self._program}: {WHAT}; {WAY_OUT}\n")
            except (ImportError, AttributeError, OSError) as error:
                # No ctypes, or a C library without such timers: what holds the interpreter is not ended here.
                self._is_missing = True
                LOG.debug("no watchdog: %s", error)
        if self._timer is not None:
            self._timer.set(seconds)

    def disarm(self) -> None:
        if self._timer is not None:
            self._timer.set(0)


def _timer(last_words: str) -> Timer:
    """One at whose end the process says these words and ends."""
    from .c_timer import HAS_CONTEXTS, Timer, chain, ending, saying  # here, as an empty run has no need of ctypes

    end = ending(EXIT_CODE)
    if not HAS_CONTEXTS:
        return Timer(end)  # without words
    return Timer(chain(Timer(end).setting(SLOWEST_WORDS_SECONDS), saying(last_words), end))
