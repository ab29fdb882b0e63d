"""What passes between a worker and whoever started it: the shell, or the supervisor of several workers."""

# Annotations are not deferred here: named tuples compile deferred ones, which each empty run would pay for.

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from ..interrupts.stop import Stop
from .terminal.live_line import LiveLine
from .terminal.log import Tokens

NO_COUNTS = (0, 0, 0, 0, 0, 0)


class Part(NamedTuple):
    """What a worker gets from whoever started it."""

    stop: Stop
    live: LiveLine
    lines_left: Mapping[str, Tokens] | None = None
    """For workers that share their lines on standard error."""
    may_wait_for_slot: bool = True
    """Whether it may wait for a slot as the successor of the worker there."""
    tell_slot: Callable[[], object] | None = None
    """Called once it has its slot."""
    stops: Callable[[], int] = lambda: 0
    """How many of the signals that ask it to end were handed on to it."""

    @property
    def is_supervised(self) -> bool:
        """Whether it is one of several workers, whose supervisor waits for a Report."""
        return self.lines_left is not None


class Report(NamedTuple):
    """How a worker ended."""

    code: int
    counts: Sequence[int] = NO_COUNTS
    """Tasks taken, done, failed, fatal, lost and released."""
    words: str = ""
    """For a person: the reason for a code that is not 0, in one line."""
    outage: str | None = None
    """The kind of the database's error that ended it; empty where the database was there, None where it used none."""
