"""Starts several claimed tasks in one write: the tasks of one call (batch.py), or of one round (shared.py)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

from ..model.task import ClaimedTask
from ..stores.queue.batches import Batches
from .finishing import Finishing
from .reporting import Reporter
from .run_context import RunContext


class Started(NamedTuple):
    """What came of a start."""

    ids: set[int]
    """The ids of the started tasks."""
    held: list[ClaimedTask]
    """Tasks that are still ours, and whose rows somebody holds for now."""


class Starts:
    """Starts the tasks of one run, several at once."""

    def __init__(self, run: RunContext, reporter: Reporter) -> None:
        self._run = run
        self._batches = Batches(run.store)
        self._reporter = reporter

    def start(self, tasks: Sequence[ClaimedTask], max_attempts: int, with_finishes: Finishing | None = None) -> Started:
        """Start tasks of one claim in one write, and report those whose claim is gone.

        `max_attempts` is recorded in rows that do not say it. The start shares the commit of the finishes that have
        gathered, where that can be done; else they are written before. Raises DatabaseError.
        """
        if not tasks:
            return Started(set(), [])
        self._run.heartbeat.start()
        asked_at = time.monotonic()
        if with_finishes is not None and with_finishes.save_together_and_start(tasks, max_attempts):
            ids = {task.id for task in tasks}
        else:
            if with_finishes is not None:
                with_finishes.save_together()
            ids = self._batches.start(tasks, max_attempts)
        if ids and time.monotonic() - asked_at > self._run.settings.lease_seconds / 2:
            # As with a single task: another worker may have taken them back since.
            self._batches.renew(tasks)
            ids = self._batches.started(tasks)
        return Started(ids, self._held_of([task for task in tasks if task.id not in ids]))

    def _held_of(self, unstarted: Sequence[ClaimedTask]) -> list[ClaimedTask]:
        if not unstarted:
            return []
        ours = self._batches.unstarted(unstarted)
        for task in unstarted:
            if task.id not in ours:
                self._reporter.report_unstarted(task)
        return [task for task in unstarted if task.id in ours]
