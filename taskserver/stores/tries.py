"""How a verb is done, and for how long it is tried again: while others are in its way, or the database is away."""

from __future__ import annotations

import random
import time
from typing import NamedTuple

from ..errors import Conflict, ServerFull, Unavailable

LEAST_CONFLICT_SECONDS = 5.0
"""So long others may be in a verb's way, however short the patience with a database that is away: they do no harm."""


class Way(NamedTuple):
    """How a verb is done."""

    bracketed: bool | None
    """Whether BEGIN and COMMIT go around it; None where it is one statement, which needs them only on a connection
    that does not commit by itself."""
    conflict_seconds: float
    """For so long it is done again while others are in its way."""
    repeatable: bool = True
    """Whether doing it twice is as good as once, so that it may be done again where the database went away."""


class Patience:
    """For how long a run waits for a database that is away."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.has_begun = False
        """Whether it was reached once: a wrong address is told at once."""
        self.is_over = False
        """Whether it was used up: what a run that ends still has to write is tried once, and not waited for again."""

    def bears(self, error: Unavailable) -> bool:
        return self.has_begun or isinstance(error, ServerFull)


class Tries:
    """The tries of one verb."""

    def __init__(self, way: Way, patience: Patience | None) -> None:
        """Without patience, as outside of a run, nobody waits for a database that is away."""
        self._way = way
        self._patience = patience
        self._conflicts: Pauses | None = None
        self._absences: Pauses | None = None

    def go_on_after(self, error: Conflict | Unavailable) -> bool:
        """Whether it is to be done again, after a pause."""
        return self._wait_for_others() if isinstance(error, Conflict) else self._wait_for_database(error)

    def succeeded(self) -> None:
        if self._patience is not None:
            self._patience.has_begun = True

    def _wait_for_others(self) -> bool:
        patience, way = self._patience, self._way
        self._conflicts = self._conflicts or Pauses(0.002, 0.5)
        if self._conflicts.pause(0 if patience is not None and patience.is_over else way.conflict_seconds):
            return True
        # Only where this ends the run: what was to wait for a moment is left for later, and an add is its caller's.
        if patience is not None and way.repeatable and way.conflict_seconds >= LEAST_CONFLICT_SECONDS:
            patience.is_over = True
        return False

    def _wait_for_database(self, error: Unavailable) -> bool:
        patience = self._patience
        if patience is None or not self._way.repeatable or not patience.bears(error):
            return False
        self._absences = self._absences or Pauses(0.05, 2.0)
        if self._absences.pause(0 if patience.is_over else patience.seconds):
            _log(error)
            return True
        patience.is_over = True
        return False


def _log(error: Unavailable) -> None:
    from logging import getLogger  # here, as a producer has no need of it

    getLogger("taskserver").debug("trying again: %s", error)


class Pauses:
    """Growing, random pauses, for so many seconds from the first one on."""

    def __init__(self, first_seconds: float, longest_seconds: float) -> None:
        self._pause = first_seconds
        self._longest = longest_seconds
        self._give_up_at: float | None = None

    def pause(self, seconds: float) -> bool:
        """False, without a pause, once the time is over."""
        now = time.monotonic()
        if self._give_up_at is None:
            self._give_up_at = now + seconds
        left = self._give_up_at - now
        if left <= 0:
            return False
        time.sleep(min(self._pause * random.uniform(0.5, 1.5), left))
        self._pause = min(self._pause * 2, self._longest)
        return True
