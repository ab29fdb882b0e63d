"""How work on the database is tried again: its policy, and a run's patience.

Others may be in the way of the work (Conflict), or the database may be away (Unavailable).
"""

# Annotations are not deferred here: named tuples compile deferred ones, which each empty run would pay for.

import random
import time
from enum import Enum
from typing import NamedTuple

from ..errors import Conflict, DatabaseError, ServerFull, Unavailable

MIN_CONFLICT_SECONDS = 5.0
"""Conflicts are waited out for at least so long, however short the patience with an absent database."""
HELD_PATIENCE_SECONDS = 0.2
"""A write that would rather be left to the next look waits so long for others. A run waits longer by looking again: it
hears signals between two looks."""
MAX_CHANCE = 1.5
"""A pause is at most so many times as long as its turn says."""
MAX_REST_SECONDS = 0.12
"""The longest rest after a transaction of the one writer: a waiting process tries the lock every tenth of a second."""


def rest_after(began_at: float) -> None:
    """Rest as long as the one writer's transaction took: processes that try its lock would never find it free else."""
    time.sleep(min(time.monotonic() - began_at, MAX_REST_SECONDS))


class Scope(Enum):
    """Which transaction a piece of work runs in."""

    STATEMENT = "one statement, which commits by itself; a connection without autocommit gets BEGIN and COMMIT"
    TRANSACTION = "BEGIN and COMMIT go around the work"
    BARE = "the work brings its own BEGIN and COMMIT, or needs none"


class RetryPolicy(NamedTuple):
    """How a piece of work is tried."""

    scope: Scope
    conflict_seconds: float
    """The work is tried again for so long while others are in its way."""
    is_repeatable: bool = True
    """Whether doing the work twice is as good as once: only then is it tried again after the database went away."""


AT_ONCE = RetryPolicy(Scope.STATEMENT, conflict_seconds=0)


class Pauses:
    """Random pauses, each about twice as long as the one before."""

    def __init__(self, first_seconds: float, max_seconds: float) -> None:
        self._pause = first_seconds
        self._max = max_seconds
        self._give_up_at: float | None = None

    def pause(self, seconds: float) -> bool:
        """Sleep. False, without a sleep, once so many seconds have passed since the first pause."""
        now = time.monotonic()
        if self._give_up_at is None:
            self._give_up_at = now + seconds
        left = self._give_up_at - now
        if left <= 0:
            return False
        time.sleep(min(self._pause * random.uniform(0.5, MAX_CHANCE), left))
        self._pause = min(self._pause * 2, self._max)
        return True


class Patience:
    """How long a run waits for an absent database."""

    def __init__(self, seconds: float, max_pause_seconds: float = 5.0) -> None:
        self.seconds = seconds
        self.max_pause_seconds = max_pause_seconds
        """The longest pause between two tries to reach it."""
        self.has_begun = False
        """Whether the database was reached once. Before that only a full one is waited for: a wrong address is an error
        at once."""
        self.is_over = False
        """Whether the patience is used up. The run ends then: it tries its last writes once each, and waits no more."""


class Tries:
    """The tries of one piece of work that failed once. Without patience it does not wait for an absent database."""

    def __init__(self, policy: RetryPolicy, patience: Patience | None) -> None:
        self._policy = policy
        self._patience = patience
        self._conflicts = Pauses(0.002, 0.5)
        self._absences = Pauses(0.05, patience.max_pause_seconds / MAX_CHANCE if patience is not None else 0)

    def wait_to_retry(self, error: DatabaseError) -> bool:
        """Pause. Whether the work is to be tried again; False without a pause."""
        policy, patience = self._policy, self._patience
        is_over = patience is not None and patience.is_over
        if isinstance(error, Conflict):
            if self._conflicts.pause(0 if is_over else policy.conflict_seconds):
                return True
            # Only a failure that ends the run uses the patience up. Work with a short wait is left for later, and the
            # failure of an add concerns only its caller.
            if patience is not None and policy.is_repeatable and policy.conflict_seconds >= MIN_CONFLICT_SECONDS:
                patience.is_over = True
        elif isinstance(error, Unavailable) and patience is not None and policy.is_repeatable:
            if not patience.has_begun and not isinstance(error, ServerFull):
                return False
            if self._absences.pause(0 if is_over else patience.seconds):
                from logging import getLogger  # imported here: producers do not need it

                getLogger("taskserver").info("trying again: %s", error)
                return True
            patience.is_over = True
        return False
