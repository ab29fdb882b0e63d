"""The last resort against what no Python code can end, as a task that holds the interpreter: a timer that can."""

from __future__ import annotations

import time
from logging import getLogger
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from .c_timer import Timer, Token

LOG = getLogger("taskserver")

EXIT_CODE = 1
GRACE_SECONDS = 2.0
"""A host that stood still has its time overdue when it goes on; so long the process then has to show that it lives."""
SLOWEST_WORDS_SECONDS = 5
"""Where nobody reads standard error, writing to it may never end; the process does."""


class Watchdog:
    """Ends this process so many seconds and the grace after it was armed last, unless armed anew or disarmed before."""

    def __init__(self, program: str, last_words: str) -> None:
        self._last_words = f"{program}: {last_words}\n"
        self._bite: _Bite | None = None
        self._bites_at = float("inf")
        """By time.monotonic."""
        self._is_missing = False
        self._armed_by_one = Lock()

    def arm(self, seconds: float) -> None:
        self._set(seconds)

    def disarm(self) -> None:
        if self._bite is not None:
            self._set(0)

    def _set(self, seconds: float) -> None:
        """0 is never."""
        with self._armed_by_one:
            bite = self._bite = self._bite or self._made()
            if bite is None:
                return
            # The process may stand still right here: what it reckons with is rather too early than too late.
            now = time.monotonic()
            bite.timer.set(seconds)
            if time.monotonic() >= self._bites_at:
                # It has begun to bite, and is held back; another does its work from now on.
                bite.timer.set(0)
                bite.token.take()
                self._bite = self._made()
                if self._bite is not None:
                    self._bite.timer.set(seconds)
            self._bites_at = now + seconds if seconds else float("inf")

    def _made(self) -> _Bite | None:
        if self._is_missing:
            return None
        try:
            return _bite(self._last_words)
        except (ImportError, AttributeError, OSError) as error:
            # No ctypes, or a C library without such timers: what holds the interpreter is not ended here.
            self._is_missing = True
            LOG.debug("no watchdog: %s", error)
            return None


class _Bite(NamedTuple):
    timer: Timer
    token: Token
    """Who takes it in time holds the bite back."""


def _bite(last_words: str) -> _Bite:
    from .c_timer import HAS_CONTEXTS, Timer, Token, chain, ending, saying, waiting  # an empty run needs no ctypes

    token = Token()
    end = ending(EXIT_CODE)
    if not HAS_CONTEXTS:
        return _Bite(Timer(end), token)  # at once, and without words
    end_anyhow = Timer(end).setting(SLOWEST_WORDS_SECONDS)
    return _Bite(Timer(chain(waiting(GRACE_SECONDS), token.taking(), end_anyhow, saying(last_words), end)), token)
