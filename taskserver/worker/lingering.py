"""Waiting for new tasks in a run that lingers: short pauses after work, longer ones while the queue stays empty.

Each look costs the database two small queries: one for what is due (maintenance.py), and one for a new task. Where the
database tells of new tasks (stores/waiting.py), a third asks when the next one falls due; a pause ends early,
and is only the longest for which a task waits whose notice was lost.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from ..model.run_pauses import RunPauses
from ..stores import Store
from ..stores.waiting import Waiting
from .limits import RunLimits
from .maintenance import Maintenance


class Lingering:
    """The waits of one run."""

    def __init__(
        self,
        store: Store,
        pauses: RunPauses,
        limits: RunLimits,
        maintenance: Maintenance,
        groups: Sequence[int],
        waiting: Waiting,
        on_look: Callable[[], object],
    ) -> None:
        """Without `groups` the run waits for tasks of all; `on_look` is called after each look that found none."""
        self._on_look = on_look
        self._store = store
        self._pauses = pauses
        self._limits = limits
        self._maintenance = maintenance
        self._groups = groups
        self._waiting = waiting
        # At random: cron starts the workers of many sites at the same instant.
        self._pause = pauses.when_empty * random.uniform(0.5, 1.0)
        if waiting.pause is not None:
            self.has_worked()  # a transaction that is open now tells of its task to those alone who waited before it
        self._is_to_disconnect: bool | None = None

    def has_worked(self) -> None:
        """Note that there were tasks, and that others may follow soon."""
        self._pause = self._pauses.after_work

    def wait(self) -> bool:
        """Wait for a new task. False once the time is over, with none. Raises DatabaseError."""
        waiting = self._waiting
        self._spare_connection()
        has_found = False
        while not has_found and self._limits.wait(self._next_pause(), waiting.rest):
            waiting.prepare()
            has_found = self._look()
            if not has_found:
                self._on_look()
                self._spare_connection()
        waiting.end()
        return has_found or self._limits.reason_to_end() is not None

    def _look(self) -> bool:
        """Whether there may be a task to claim."""
        maintenance = self._maintenance
        maintenance.is_to_look_again = maintenance.is_to_look_again or self._waiting.has_due
        maintenance.look()
        return maintenance.is_to_look_again or self._store.claims.has_new(self._groups)

    def _next_pause(self) -> float:
        if self._waiting.pause is not None:
            return self._waiting.pause
        pause, self._pause = self._pause, min(self._pause * 2, self._pauses.when_empty)
        return pause

    def _spare_connection(self) -> None:
        """Give the connection back before a pause, where the account may have few."""
        database = self._store.database
        if self._is_to_disconnect is None:
            self._is_to_disconnect = database.dialect.has_few_connections(database)
        if self._is_to_disconnect:
            database.disconnect()
