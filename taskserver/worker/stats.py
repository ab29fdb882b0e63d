"""The stats of one run: summed in memory, written once a minute and at the run's end.

reporting.py counts every ended attempt here, and stores/queue/stats.py has the table. An attempt is counted when it
ends, so all counted starts are done, failed or lost. A killed run loses its unwritten counts.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from logging import getLogger

from ..errors import Conflict, DatabaseError, Unavailable
from ..messages.log_records import optional_step
from ..model.task import ClaimedTask, LostTask, Status
from ..stores import Store
from ..stores.queue.stats import COLUMNS, HourStats, Stats
from .attempt import Attempt

LOG = getLogger("taskserver")

WRITE_EVERY_SECONDS = 60.0
MAX_STATS_KEYS = 500
"""Pairs of a group and a name: producers choose both, and must not fill the table."""
NO_NAME = ""
ANY_OTHER = (0, NO_NAME)
USUAL_OF_SECONDS = 3 * 86_400
"""The usual times of tasks are those of the last days."""
MAX_TIMES_MEAN = 10
"""A slowest run beyond so many times the mean is an outlier."""
MAX_WAIT_SECONDS = 1e10
"""A longer wait is not counted: a row may have any ready time."""


class Counts:
    """The counts of one group and name, as the columns of the table."""

    __slots__ = COLUMNS

    def __init__(self) -> None:
        self.begun = self.attempts = self.done = self.failed = self.fatal = self.lost = 0
        self.ran_seconds = self.slowest_seconds = self.waited_seconds = self.longest_wait_seconds = 0.0

    def include(self, attempt: Attempt) -> None:
        self.begun += attempt.task.attempts == 0
        self.attempts += 1
        self.ran_seconds += attempt.ran_seconds
        if attempt.ran_seconds > self.slowest_seconds:
            self.slowest_seconds = attempt.ran_seconds
        self.waited_seconds += attempt.waited_seconds
        if attempt.waited_seconds > self.longest_wait_seconds:
            self.longest_wait_seconds = attempt.waited_seconds

    def columns(self) -> tuple[float, ...]:
        return tuple(getattr(self, column) for column in COLUMNS)


class RunStats:
    """Counts the ends of one run's tasks, and writes the counts from time to time."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._stats = Stats(store)
        self._counts: dict[tuple[int, str], Counts] = {}
        self._scheduled: dict[str | bytes, tuple[Status, float | None, float]] = {}
        """Last task of each schedule: status, seconds, and end by time.monotonic; if lost, None and its begin."""
        self._write_at = time.monotonic() + WRITE_EVERY_SECONDS
        self._claimed_at = time.monotonic()
        self._usual: dict[str, float] | None = None

    # ---- count

    def claimed(self, at: float) -> None:
        """Set the time of the claim, by time.monotonic: the `waited_seconds` of its tasks end there."""
        self._claimed_at = at

    def waited(self, task: ClaimedTask) -> float:
        """Seconds since the task was ready."""
        before = task.waited_seconds if task.waited_seconds < MAX_WAIT_SECONDS else 0.0
        return before + time.monotonic() - self._claimed_at

    def done(self, attempt: Attempt, name: str) -> None:
        """Count an attempt that completed its task."""
        counts = self._of(attempt.task.group_id, name)
        counts.include(attempt)
        counts.done += 1
        self._note_scheduled(attempt.task, Status.DONE, attempt.ran_seconds)

    def failed(self, attempt: Attempt, name: str, is_fatal: bool) -> None:
        """Count a failed attempt, the last one of its task if `is_fatal`."""
        counts = self._of(attempt.task.group_id, name)
        counts.include(attempt)
        counts.failed += 1
        counts.fatal += is_fatal
        self._note_scheduled(attempt.task, Status.FATAL if is_fatal else Status.ERROR, attempt.ran_seconds)

    def refused(self, task: ClaimedTask, name: str) -> None:
        """Count an invalid row that became fatal without an attempt."""
        self._of(task.group_id, name).fatal += 1
        self._note_scheduled(task, Status.FATAL, 0.0)

    def _note_scheduled(
        self, task: ClaimedTask | LostTask, status: Status, ran_seconds: float | None, ago: float = 0.0
    ) -> None:
        if task.schedule_key is not None:
            self._scheduled[task.schedule_key] = status, ran_seconds, time.monotonic() - ago

    def given_up(self, group_id: int, name: str) -> None:
        """Count a task that became fatal without an attempt, because it waited for a fatal one."""
        self._of(group_id, name if _is_valid_name(name) else NO_NAME).fatal += 1

    def lost(self, lost: LostTask, is_fatal: bool) -> None:
        """Count an attempt whose worker died and so could not count it."""
        counts = self._of(lost.group_id, lost.task if _is_valid_name(lost.task) else NO_NAME)
        counts.begun += lost.attempts == 1
        counts.attempts += 1
        counts.lost += 1
        counts.fatal += is_fatal
        self._note_scheduled(lost, Status.FATAL if is_fatal else Status.ERROR, None, lost.began_seconds_ago)

    def _of(self, group_id: int, name: str) -> Counts:
        counts = self._counts.get((group_id, name))
        if counts is None:
            key = (group_id, name) if len(self._counts) < MAX_STATS_KEYS else ANY_OTHER
            counts = self._counts.setdefault(key, Counts())
        return counts

    # ---- write to the table

    def are_due(self) -> bool:
        return time.monotonic() >= self._write_at

    def write(self) -> None:
        """Add the counts to the table, and start from zero. Raises no DatabaseError, as stats must not fail a task."""
        self._write_at = time.monotonic() + WRITE_EVERY_SECONDS
        counts, self._counts = self._counts, {}
        if not counts:
            return
        try:
            self._stats.add((*key, *one.columns()) for key, one in counts.items())
        except DatabaseError as error:
            if isinstance(error, (Conflict, Unavailable)) and not error.in_doubt:
                LOG.debug("the stats are kept for later: %s", error)
                self._counts = counts
            else:
                LOG.info("the stats of the last tasks are lost: %s", error)
        if self._scheduled:
            self._write_scheduled()

    def _write_scheduled(self) -> None:
        from ..stores.queue.schedules import note_ends

        scheduled, self._scheduled = self._scheduled, {}
        ends = [(key, status, ran, time.monotonic() - at) for key, (status, ran, at) in scheduled.items()]
        try:
            note_ends(self._store.database, ends)
        except DatabaseError as error:
            LOG.info("how tasks of schedules ended is not noted: %s", error)

    # ---- read from the table

    def usual_seconds(self, name: str) -> float:
        """How long a task of this name may take, by its slowest recent run; 0: unknown. Raises Unavailable."""
        if self._usual is None:
            self._usual = self._read_usual()
        return self._usual.get(name, 0.0)

    def _read_usual(self) -> dict[str, float]:
        found: Sequence[HourStats] = ()
        with optional_step("how long tasks take is not known"):
            found = self._stats.sums(USUAL_OF_SECONDS, "task")
        return {
            one.task: min(one.slowest_seconds, MAX_TIMES_MEAN * one.mean_run_seconds)
            for one in found
            if one.mean_run_seconds is not None
        }


def _is_valid_name(text: str) -> bool:
    """Whether a callable can have this name: a lost row may have any text."""
    return all(part.isidentifier() for part in text.replace(":", ".").split("."))
