"""Waits for new tasks in a run that lingers: short pauses after work, longer ones while the queue stays empty.

Each look costs two small queries: one for due work (maintenance.py), one for a new task. On PostgreSQL a notice of an
INSERT ends a pause early (stores/postgresql/notices.py).
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence

from ..settings.table import RunPauses
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
        """No `groups`: all; `on_look` is called after each look that found nothing."""
        self._on_look = on_look
        self._store = store
        self._pauses = pauses
        self._limits = limits
        self._maintenance = maintenance
        self._groups = groups
        self._notices = store.database.dialect.notices(store.database)
        # Random, as cron starts the workers of many sites at the same time.
        self._pause = pauses.when_empty * random.uniform(0.5, 1.0)
        if self._notices:
            self.has_worked()  # no notice wakes it before the first look

    def has_worked(self) -> None:
        """Shorten the next pause, as more tasks may follow soon."""
        self._pause = self._pauses.after_work

    def wait(self) -> bool:
        """Wait for a new task. False if the time is over. Raises DatabaseError."""
        notices = self._notices
        rest = notices.wait if notices else time.sleep
        has_found = False
        while not has_found and self._limits.wait(self._next_pause(), rest):
            was_notified = notices is not None and notices.was_notified
            if notices and not was_notified:
                notices.begin()
            has_found = self._look()
            if not has_found:
                if was_notified:  # others took the tasks, or they are in other groups: a short pause without notices
                    notices.end()
                    self.has_worked()
                self._on_look()
        if notices:
            notices.end()
        return has_found or self._limits.reason_to_end() is not None

    def _look(self) -> bool:
        maintenance = self._maintenance
        maintenance.look()
        return maintenance.should_look_again or self._store.claims.has_new(self._groups)

    def _next_pause(self) -> float:
        pause, longest = self._pause, self._pauses.when_empty
        self._pause = longest if self._notices and self._notices.is_listening else min(pause * 2, longest)
        return pause
