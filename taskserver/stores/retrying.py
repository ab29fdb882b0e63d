"""What follows a Conflict, or an Unavailable database: another host of it, and another try of the work."""

# Annotations are not deferred here: named tuples compile deferred ones, which each empty run would pay for.

import random
import time
from collections.abc import Callable, Sequence
from enum import Enum
from typing import NamedTuple, TypeVar

from ..errors import Conflict, DatabaseError, ServerFull, Unavailable
from ..settings.dsn import Dsn

T = TypeVar("T")

MIN_CONFLICT_SECONDS = 5.0
"""Conflicts are retried for at least so long, even with a shorter patience for an unavailable database."""
HELD_PATIENCE_SECONDS = 0.2
"""The wait for a held row if the next look can do the write. The run reacts to signals between two looks."""
MAX_CHANCE = 1.5
"""The greatest random factor of a pause."""
MAX_REST_SECONDS = 0.12
"""The longest rest after a transaction of the one writer: waiting processes try its lock every tenth of a second."""
HOST_SECONDS = 4.0
"""The wait for each answer of one of several hosts at the login. A cluster waits about three for a node that died."""


def rest_after(began_at: float) -> None:
    """Sleep as long as the one writer's transaction took, so that waiting processes can get its lock."""
    time.sleep(min(time.monotonic() - began_at, MAX_REST_SECONDS))


class Scope(Enum):
    """Which transaction a piece of work runs in."""

    STATEMENT = "one statement, which commits by itself; a connection without autocommit gets BEGIN and COMMIT"
    TRANSACTION = "BEGIN and COMMIT go around the work"
    BARE = "the work brings its own BEGIN and COMMIT, or needs none"


class RetryPolicy(NamedTuple):
    """How a piece of work is retried."""

    scope: Scope
    conflict_seconds: float
    """How long it is retried after conflicts."""
    is_repeatable: bool = True
    """Whether it is idempotent: only then is it retried after a lost connection."""


AT_ONCE = RetryPolicy(Scope.STATEMENT, conflict_seconds=0)


class Pauses:
    """Random pauses, each about twice as long as the one before."""

    def __init__(self, first_seconds: float, max_seconds: float) -> None:
        self._pause = first_seconds
        self._max = max_seconds
        self._give_up_at: float | None = None

    def pause(self, seconds: float) -> bool:
        """Sleep. False, without sleeping, once `seconds` have passed since the first pause."""
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
    """How long a run waits for an unavailable database."""

    def __init__(self, seconds: float, max_pause_seconds: float = 5.0) -> None:
        self.seconds = seconds
        self.max_pause_seconds = max_pause_seconds
        """The longest pause between two tries."""
        self.has_begun = False
        """Whether the database was reached once. Before that, a run waits only for a full server: a wrong address is
        an error at once."""
        self.is_over = False
        """Whether the patience is used up. The run then ends and tries each of its last writes only once."""


class Tries:
    """The retries of one piece of failed work. Without patience, they do not wait for an unavailable database."""

    def __init__(self, policy: RetryPolicy, patience: Patience | None) -> None:
        self._policy = policy
        self._patience = patience
        self._conflicts = Pauses(0.002, 0.5)
        self._absences = Pauses(0.05, patience.max_pause_seconds / MAX_CHANCE if patience is not None else 0)

    def wait_to_retry(self, error: DatabaseError) -> bool:
        """Pause before a retry. False, without a pause, if the work should not be retried."""
        policy, patience = self._policy, self._patience
        is_over = patience is not None and patience.is_over
        if isinstance(error, Conflict):
            if self._conflicts.pause(0 if is_over else policy.conflict_seconds):
                return True
            # Only a failure that ends the run uses up the patience. Work with a short wait can be done later, and a
            # failed add concerns only its caller.
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


class Hosts:
    """The hosts of a DSN: all connections go to one of them while it serves, then to the next one."""

    def __init__(
        self, each: Sequence[Dsn], login_error: Callable[[BaseException, Dsn], DatabaseError], are_several: bool = False
    ) -> None:
        """`each` is the DSN of each host; `login_error` makes our error of a driver's error at one of them."""
        self._each = each
        self.are_several = are_several or len(each) > 1
        """Whether one that takes no writes is passed over."""
        self._login_error = login_error
        self._serving = 0
        self.moves = 0
        """How often another host became the one that serves."""

    def one_by_one(self) -> list["Hosts"]:
        """Each of several hosts alone; empty if there is only one."""
        return [Hosts([one], self._login_error, True) for one in self._each if self.are_several]

    def connect(self, log_in: Callable[[Dsn, float], T], seconds: float) -> T:
        """Log in at the host that served last, or at the next one that serves. Raises DatabaseError.

        `log_in` gets the DSN of one host and how long to wait for each answer; it may raise anything.
        """
        count, first, away = len(self._each), self._serving, []  # other threads may move meanwhile
        for host in (*range(first, count), *range(first)):
            try:
                connection = log_in(self._each[host], min(seconds, HOST_SECONDS) if self.are_several else seconds)
            except Exception as error:  # the driver may raise anything if the server is not one of its kind
                away.append(self._login_error(error, self._each[host]))
                if not isinstance(away[-1], Unavailable):
                    break  # a wrong password is wrong everywhere
            else:
                if host != self._serving:
                    self._serving, self.moves = host, self.moves + 1
                return connection
        if len(away) == 1 or not isinstance(away[-1], Unavailable):
            raise away[-1] from None
        raise type(away[-1])("none of the hosts serves: " + "; ".join(map(str, away)))


NO_HOSTS = Hosts((), lambda error, at: DatabaseError())
"""Of a file."""
