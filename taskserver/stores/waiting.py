"""A worker's wait for new tasks: it sleeps, unless its database can tell it of them (postgresql/waiting.py)."""

from __future__ import annotations

import time


class Waiting:
    """The rests of one run between its looks. Only its thread may use them."""

    pause: float | None = None
    """The seconds until the next look; None: as long as the run pauses."""
    has_due = False
    """Whether something has fallen due that only a look for due rows finds."""

    def prepare(self) -> None:
        """Have others tell of new tasks; called before each look, so that none is missed. Raises DatabaseError."""

    def rest(self, seconds: float) -> bool:
        """Rest for so long at most. Whether it was cut short, as there may be something to do. Raises DatabaseError."""
        time.sleep(seconds)
        return False

    def end(self) -> None:
        """Have nobody tell of new tasks any more: the wait is over."""
