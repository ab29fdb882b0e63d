"""How long a failed task waits for its next attempt."""

# Annotations are not deferred here: named tuples compile deferred ones, which slows down each empty run.

import random
from typing import NamedTuple

from ..errors import SettingError
from ..messages.text import read_number, shown
from .checks import is_whole

DAY_SECONDS = 86_400
MAX_DOUBLINGS = 17
"""2^17 seconds are more than a day."""

_KINDS = ("exponential", "linear", "fixed")


class Backoff(NamedTuple):
    """How the wait before a retry grows; `kind` is exponential, linear or fixed."""

    kind: str
    seconds: int

    def seconds_after(self, attempts: int) -> float:
        """The wait after so many attempts: at most a day, plus up to 10 % at random.

        The random part spreads the retries of tasks that failed together.
        """
        seconds = self.seconds
        if self.kind == "exponential":
            seconds *= 2 ** min(max(attempts - 1, 0), MAX_DOUBLINGS)
        elif self.kind == "linear":
            seconds *= attempts
        return min(seconds, DAY_SECONDS) * random.uniform(1.0, 1.1)


def parse_backoff(key: str, value: str) -> Backoff:
    """Read `exponential:60`, `fixed:5m` and the like; `key` names it in errors. Raises SettingError."""
    kind, _, wait = value.partition(":") if isinstance(value, str) else ("", "", "")
    seconds = read_number(wait, or_span=True)
    if kind not in _KINDS or not is_whole(seconds, 0, DAY_SECONDS):
        raise SettingError(
            f"{key} is wrong: {shown(value)}; allowed: exponential:60, linear:300 or fixed:30, or fixed:5m for "
            f"minutes, at most {DAY_SECONDS} seconds"
        )
    return Backoff(kind, seconds)
