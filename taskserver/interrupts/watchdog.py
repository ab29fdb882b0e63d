"""The last resort against a task that no Python code can end, as one that holds the interpreter: a C timer.

`faulthandler.dump_traceback_later` has no grace: a host that stood still would have it end a worker that lives.
"""

from __future__ import annotations

import time
from logging import getLogger
from threading import Lock
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .c_timer import Bite

LOG = getLogger("taskserver")

GRACE_SECONDS = 2.0
"""A host that stood still finds its timers overdue when it goes on; the process then has so long to show life."""
MAX_WORDS_SECONDS = 5
"""Where nobody reads standard error, writing to it may never end; the process ends after so long."""


class Watchdog:
    """Ends this process when the armed seconds and the grace are over, unless it is armed anew or disarmed before."""

    def __init__(self, program: str, last_words: str) -> None:
        self._last_words = f"{program}: {last_words}\n".encode()
        self._bite: Bite | None = None
        self._bites_at = float("inf")
        """By time.monotonic."""
        self._armed_by_one = Lock()

    def disarm(self) -> None:
        if self._bite is not None:
            self.arm(0)

    def arm(self, seconds: float) -> None:
        """Set the timer anew; 0 stops it."""
        try:
            with self._armed_by_one:
                self._arm(seconds)
        except (ImportError, AttributeError, OSError) as error:
            # No ctypes, or a C library without such timers: a task that holds the interpreter is not ended.
            LOG.debug("no watchdog: %s", error)

    def _arm(self, seconds: float) -> None:
        bite = self._bite = self._bite or self._made()
        # The process may stand still right here: better an instant that is too early than one that is too late.
        now = time.monotonic()
        bite.set(seconds)
        if time.monotonic() >= self._bites_at:
            # The bite has begun: hold it back, and let another one do its work from now on.
            bite.hold_back()
            self._bite = None
            self._bite = self._made()
            self._bite.set(seconds)
        self._bites_at = now + seconds if seconds else float("inf")

    def _made(self) -> Bite:
        from .c_timer import Bite  # an empty run needs no ctypes

        return Bite(self._last_words, GRACE_SECONDS, MAX_WORDS_SECONDS)
