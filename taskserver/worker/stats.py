"""The stats of one run: the ends of its tasks, added up in memory, written once a minute and at the run's end.

They stand between reporting.py, which counts every attempt that has ended, and the table (stores/queue/stats.py). An
attempt is counted as a whole once its end is known, so that at any time all counted starts are done, failed or lost.
Counts that are not written yet are lost with a run that is killed.
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
"""Pairs of a group and a name: a producer chooses both, and must not fill the table with them."""
NO_NAME = ""
ANY_OTHER = (0, NO_NAME)
USUAL_OF_SECONDS = 3 * 86_400
"""How long tasks take is read of the last days."""
MAX_TIMES_MEAN = 10
"""A slowest run beyond so many times the mean was an exception, and says nothing of the next one."""
MAX_WAIT_SECONDS = 1e10
"""A longer wait is not counted: a row may say whatever it likes of when it was ready."""


class Counts:
    """The counts of one group and name: the columns of the table."""

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
    """Counts the ends of the tasks of one run, and writes the counts from time to time."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._stats = Stats(store)
        self._counts: dict[tuple[int, str], Counts] = {}
        self._scheduled: dict[str | bytes, tuple[Status, float | None, float]] = {}
        """Of the last task of each schedule: how it ended, how long it ran, and when it ended, by time.monotonic.

        Of a lost one: None, and when it began.
        """
        self._write_at = time.monotonic() + WRITE_EVERY_SECONDS
        self._claimed_at = time.monotonic()
        self._usual: dict[str, float] | None = None

    # ---- count

    def claimed(self, at: float) -> None:
        """Note a claim at that instant of time.monotonic; each of its tasks says how long it had waited by then."""
        self._claimed_at = at

    def waited(self, task: ClaimedTask) -> float:
        """Seconds from the instant at which a task was ready to now."""
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
        """Count a bad row that became fatal without an attempt."""
        self._of(task.group_id, name).fatal += 1
        self._note_scheduled(task, Status.FATAL, 0.0)

    def _note_scheduled(
        self, task: ClaimedTask | LostTask, status: Status, ran_seconds: float | None, ago: float = 0.0
    ) -> None:
        if task.schedule_key is not None:
            self._scheduled[task.schedule_key] = status, ran_seconds, time.monotonic() - ago

    def given_up(self, group_id: int, name: str) -> None:
        """Count a task that became fatal without an attempt, because it waited for a fatal one."""
        self._of(group_id, name if _may_be_name(name) else NO_NAME).fatal += 1

    def lost(self, lost: LostTask, is_fatal: bool) -> None:
        """Count an attempt whose worker vanished, and so could not count it."""
        counts = self._of(lost.group_id, lost.task if _may_be_name(lost.task) else NO_NAME)
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
        """Add the counts to the table, and start again from zero. Raises no DatabaseError: counts are worth no task."""
        self._write_at = time.monotonic() + WRITE_EVERY_SECONDS
        counts, self._counts = self._counts, {}
        if not counts:
            return
        try:
            self._stats.add((*key, *one.columns()) for key, one in counts.items())
        except DatabaseError as error:
            if isinstance(error, (Conflict, Unavailable)) and not error.in_doubt:
                LOG.debug("the figures are kept for later: %s", error)
                self._counts = counts
            else:
                LOG.info("the figures of the last tasks are lost: %s", error)
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
        """How long a task of this name may take: as its slowest run of late; 0 if none is known. Raises Unavailable."""
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


def _may_be_name(text: str) -> bool:
    """Whether a callable may have this name; a lost row's worker had found it, but rows can be forged."""
    return all(part.isidentifier() for part in text.replace(":", ".").split("."))
