"""Waiting for new tasks in a run that lingers: short pauses after work, longer ones while the queue stays empty.

Each look costs the database two small queries: one for what is due (maintenance.py), and one for a new task.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from ..model.run_pauses import RunPauses
from ..stores import Store
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
        on_look: Callable[[], object],
    ) -> None:
        """Without `groups` the run waits for tasks of all; `on_look` is called after each look that found none."""
        self._on_look = on_look
        self._store = store
        self._pauses = pauses
        self._limits = limits
        self._maintenance = maintenance
        self._groups = groups
        # At random: cron starts the workers of many sites at the same instant.
        self._pause = pauses.when_empty * random.uniform(0.5, 1.0)
        self._is_to_disconnect: bool | None = None

    def has_worked(self) -> None:
        """Note that there were tasks, and that others may follow soon."""
        self._pause = self._pauses.after_work

    def wait(self) -> bool:
        """Wait for a new task. False once the time is over, with none. Raises DatabaseError."""
        self._spare_connection()
        while self._limits.wait(self._pause):
            self._pause = min(self._pause * 2, self._pauses.when_empty)
            self._maintenance.look()
            if self._maintenance.is_to_look_again or self._store.claims.has_new(self._groups):
                return True
            self._on_look()
            self._spare_connection()
        return self._limits.reason_to_end() is not None

    def _spare_connection(self) -> None:
        """Give the connection back before a pause, where the account may have few."""
        database = self._store.database
        if self._is_to_disconnect is None:
            self._is_to_disconnect = database.dialect.has_few_connections(database)
        if self._is_to_disconnect:
            database.disconnect()
