"""A worker's wait for new tasks: it sleeps, unless its database can tell it of them (postgresql/waiting.py)."""

from __future__ import annotations

import time


class Waiting:
    """The rests of one run between its looks. Only its thread may use them."""

    is_to_look_first = False
    """Whether a wait begins with a look, once whoever adds a task would tell of it: no task falls in between."""
    has_due = False
    """Whether something has fallen due that only a look for due rows finds."""

    def prepare(self) -> None:
        """Have others tell of new tasks from now on; called before each look. Raises DatabaseError."""

    def rest(self, seconds: float) -> bool:
        """Rest for so long at most. Whether it was cut short, as there may be something to do. Raises DatabaseError."""
        time.sleep(seconds)
        return False

    def end(self) -> None:
        """Have nobody tell of new tasks any more: the run has enough of them, or is over."""
