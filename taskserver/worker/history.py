"""How long tasks of each name took of late, by the stats; read once in a run, and only where its time is limited."""

from __future__ import annotations

from logging import getLogger

from ..errors import DatabaseError, Unavailable
from ..stores import Store
from ..stores.queue.stats import Stats

LOG = getLogger("taskserver")

DAYS_SECONDS = 3 * 86_400
MAX_TIMES_MEAN = 10
"""A slowest run beyond so many times the mean was an exception, and says nothing of the next one."""


class History:
    """The usual times of the last three days."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._seconds_by_name: dict[str, float] | None = None

    def seconds_of(self, name: str) -> float:
        """How long a task of this name may take: as its slowest run; 0 where nothing is known. Raises Unavailable."""
        if self._seconds_by_name is None:
            self._seconds_by_name = self._read()
        return self._seconds_by_name.get(name, 0.0)

    def _read(self) -> dict[str, float]:
        try:
            found = Stats(self._store).sums(DAYS_SECONDS, "task")
        except Unavailable:
            raise
        except DatabaseError as error:  # as without the right to read them
            LOG.info("how long tasks take is not known: %s", error)
            return {}
        return {
            one.task: min(one.slowest_seconds, MAX_TIMES_MEAN * one.mean_run_seconds)
            for one in found
            if one.mean_run_seconds is not None
        }
