"""What the tasks of all peers do: count their calls and keep the instants."""

from __future__ import annotations

import time
from collections.abc import Callable


class Calls:
    """The calls in this process, or the tasks that it added."""

    def __init__(self) -> None:
        self.count = 0
        self.first_at = self.last_at = 0.0
        self.quota = 0
        """After so many calls `stop` is called; 0: never."""
        self.stop: Callable[[], object] = lambda: None

    def begin(self) -> None:
        """Count from here on."""
        self.count, self.first_at = 0, time.monotonic()

    def note(self, count: int = 1) -> None:
        """One more call, or so many tasks added."""
        self.last_at = time.monotonic()
        self.first_at = self.first_at or self.last_at
        self.count += count
        if self.count == self.quota:
            self.stop()

    def is_over(self) -> bool:
        """Whether a loop of our own has to end."""
        return self.count >= self.quota > 0


CALLS = Calls()


def work(n: int) -> None:
    """The task of a loop or a thread."""
    CALLS.note()


async def work_async(n: int) -> None:
    """The same as a coroutine."""
    CALLS.note()
