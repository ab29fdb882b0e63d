"""The last resort against a task that no Python code can end, as one that holds the interpreter: a C timer."""

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
"""A host that stood still finds its timers overdue when it goes on; the process then has so long to show life."""
MAX_WORDS_SECONDS = 5
"""Where nobody reads standard error, writing to it may never end; the process ends after so long."""


class Watchdog:
    """Ends this process when the armed seconds and the grace are over, unless it is armed anew or disarmed before."""

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
        """Set the timer anew; 0 stops it."""
        with self._armed_by_one:
            bite = self._bite = self._bite or self._made()
            if bite is None:
                return
            # The process may stand still right here: better an instant that is too early than one that is too late.
            now = time.monotonic()
            bite.timer.set(seconds)
            if time.monotonic() >= self._bites_at:
                # The bite has begun: hold it back, and let another one do its work from now on.
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
            # No ctypes, or a C library without such timers: a task that holds the interpreter is not ended.
            self._is_missing = True
            LOG.debug("no watchdog: %s", error)
            return None


class _Bite(NamedTuple):
    timer: Timer
    token: Token
    """Taking it in time holds the bite back."""


def _bite(last_words: str) -> _Bite:
    from .c_timer import HAS_CONTEXTS, Timer, Token, chain, ending, saying, waiting  # an empty run needs no ctypes

    token = Token()
    end = ending(EXIT_CODE)
    if not HAS_CONTEXTS:
        return _Bite(Timer(end), token)  # at once, and without words
    end_anyhow = Timer(end).setting(MAX_WORDS_SECONDS)
    return _Bite(Timer(chain(waiting(GRACE_SECONDS), token.taking(), end_anyhow, saying(last_words), end)), token)
