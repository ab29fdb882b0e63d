"""The due work of a queue, in all groups: wake tasks, reclaim lost ones, settle dependencies, fire schedules.

A run looks for it before each claim, at most once a second. It also looks after tasks that may have made something due,
and at once after a look that found work.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from logging import getLogger
from typing import TYPE_CHECKING

from ..host.process_identity import has_ended
from ..messages.log_records import about_task, optional_step
from ..messages.text import count_of
from ..model.task import CANCELLED, LOST, Due, LostTask
from ..settings.load import Settings
from ..stores import Store
from ..stores.queue.due import MAX_DUE_PER_LOOK

if TYPE_CHECKING:
    from ..stores.queue.dependencies import Dependencies
    from ..stores.queue.runs import LeftTask
    from ..stores.queue.schedules import Schedules
    from .stats import RunStats

LOG = getLogger("taskserver")

LOOK_EVERY_SECONDS = 1.0
MAX_RECLAIM_SECONDS = 5.0

LOST_TEXT = f"{LOST}: its worker died, hung, or could not record its end, and its lease ended"
DEAD_WORKER_TEXT = f"{LOST}: its worker, process {{}}, ended while it ran, or could not record its end"
NOTHING_DUE = Due([], [], [], [], [])


class Maintenance:
    """Looks for due rows, and does a portion of their work with each look."""

    def __init__(
        self,
        store: Store,
        settings: Settings,
        stats: Callable[[], RunStats],
        on_lost: Callable[[LostTask, str, bool], object],
    ) -> None:
        """`stats` returns the stats of the run; `on_lost` gets a lost task, its error, and whether it is fatal."""
        self._on_lost = on_lost
        self._store = store
        self._settings = settings
        self._stats = stats
        self._schedules: Schedules | None = None
        self._dependencies: Dependencies | None = None
        self._errors_of_lost: dict[int, str] = {}
        """By the ids of tasks whose process is dead."""
        self._looked_at = float("-inf")
        self.should_look_again = False
        """Whether the next look comes at once, as more may be due."""

    # ---- in a run

    def is_time(self) -> bool:
        return time.monotonic() - self._looked_at >= LOOK_EVERY_SECONDS

    def look(self) -> bool:
        """Do a portion of the due work, unless the last look was just now. Returns whether more may be due.

        Raises DatabaseError.
        """
        self.report_given_up()
        if not self.should_look_again and not self.is_time():
            return False
        self._looked_at, self.should_look_again = time.monotonic(), False
        due = self._store.due.look()
        if due == NOTHING_DUE:
            return False
        woken, unstarted, lost, linked = self._settle(due)
        scheduled = self._fire(due.schedules)
        if not (woken or unstarted or lost or linked or scheduled):
            return False
        if woken:
            LOG.info("%s due", count_of(woken, "task"))
        if unstarted or lost:
            LOG.info("reclaimed %d claimed and %d running tasks from dead workers", unstarted, lost)
        if lost:
            self._stats().write()  # the task that killed one worker may kill this one too
        self.should_look_again = True
        # Other tasks may wait for a settled or a lost one.
        largest = max(len(due.to_wake), len(due.unstarted) + len(due.lost), len(due.schedules))
        return bool(linked or lost) or largest >= MAX_DUE_PER_LOOK

    def reclaim_from_dead_workers(self, host: str) -> None:
        """End the leases of unstarted tasks of dead workers on this host: the next look releases them.

        Started tasks keep their lease, as a program that the task started may still run. Other hosts cannot know that a
        process is dead. Raises Unavailable.
        """
        with optional_step("the claims of dead workers cannot be reclaimed now"):  # their leases end
            at_work = self._store.runs.at_work(host)
            gone = {number: pid for number, pid, identity in at_work if has_ended(pid, identity)}
            for number, tasks in (self._store.processes.claimed_by(gone) if gone else {}).items():
                self._end_leases_of(number, gone[number], tasks)

    def _end_leases_of(self, number: int, pid: int, tasks: Sequence[LeftTask]) -> None:
        started = [task for task in tasks if task.is_started]
        self._store.processes.end_leases(number, [task for task in tasks if not task.is_started])
        if self._store.processes.mark_ended(number) and started:
            LOG.warning(
                "process %d ended while it ran task %d %s%s: when the lease ends, that attempt fails",
                *(pid, started[0].id, started[0].task),
                f" and {len(started) - 1} others" if len(started) > 1 else "",
            )
        if not started:
            self._store.processes.end(number)
        self._errors_of_lost |= {task.id: DEAD_WORKER_TEXT.format(pid) for task in started}
        self.should_look_again = True

    # ---- for operators

    def do_all(self) -> tuple[int, int, int, int, int]:
        """Do all due work at once, except schedules, which are left to the runs.

        Returns how many tasks were woken, reclaimed unstarted, reclaimed lost, orphaned (they waited for deleted ones),
        and are still due. Raises DatabaseError.
        """
        counts = [0, 0, 0, 0]
        orphaned = self._dependencies_of_queue().find_orphans()
        while True:
            due = self._store.due.look()
            several = self._settle(due)
            if not any(several):
                break
            counts = [count + more for count, more in zip(counts, several, strict=True)]
        woken, unstarted, lost, _ = counts
        left = len(due.to_wake) + len(due.unstarted) + len(due.lost) + len(due.linked)
        return woken, unstarted, lost, orphaned, left

    # ---- each kind of work

    def _settle(self, due: Due) -> tuple[int, int, int, int]:
        """Returns how many tasks were woken, reclaimed unstarted, reclaimed lost, and settled with their dependents."""
        woken = self._store.due.wake(due.to_wake)
        unstarted = self._store.due.reclaim_unstarted(due.unstarted)
        lost = self._reclaim_lost(due.lost)
        linked = self._dependencies_of_queue().decide(due.linked) if due.linked else 0
        self.report_given_up()
        return woken, unstarted, lost, linked

    def _reclaim_lost(self, lost: Sequence[LostTask]) -> int:
        """Returns how many tasks were reclaimed. Locked rows take long: then the rest is left to the next look."""
        until = time.monotonic() + MAX_RECLAIM_SECONDS
        # In random order: else locked rows would always block the rows behind them.
        in_any_order = random.sample(lost, len(lost))
        return sum(self._reclaim(one) for one in in_any_order if time.monotonic() < until)

    def _reclaim(self, lost: LostTask) -> bool:
        """Fail the attempt of a task whose worker died. Returns whether its row was unchanged."""
        limit = self._settings.max_attempts if lost.max_attempts is None else lost.max_attempts
        is_last = not lost.should_rerun and (lost.is_cancelled or lost.attempts >= limit)
        text = CANCELLED if lost.is_cancelled else self._errors_of_lost.get(lost.id, LOST_TEXT)
        seconds = None if is_last else self._settings.backoff.seconds_after(lost.attempts)
        is_reclaimed = self._store.due.reclaim_lost(lost, limit, text, seconds)
        if is_reclaimed:
            if lost.is_cancelled:
                extra = about_task(lost.id, lost.task, lost.attempts)
                LOG.info("task %d %s is cancelled, and its worker died", lost.id, lost.task, extra=extra)
                return True
            self._stats().lost(lost, is_last)
            self._log_lost(lost, text, is_last)
            self._on_lost(lost, text, is_last)
        return is_reclaimed

    def _log_lost(self, lost: LostTask, text: str, is_fatal: bool) -> None:
        extra = about_task(lost.id, lost.task, lost.attempts, text, "", is_fatal, log_only=not is_fatal)
        end = "is fatal" if is_fatal else "failed, and will be retried"
        LOG.error("task %d %s %s: %s", lost.id, lost.task, end, text, extra=extra)

    def _dependencies_of_queue(self) -> Dependencies:
        if self._dependencies is None:
            from ..stores.queue.dependencies import Dependencies  # few queues have any

            self._dependencies = Dependencies(self._store.database, self._store.given_up)
        return self._dependencies

    def report_given_up(self) -> None:
        """Count and log tasks that became fatal because a task they wait for did."""
        while self._store.given_up:
            task = self._store.given_up.pop(0)
            self._stats().given_up(task.group_id, task.task)
            extra = about_task(task.id, task.task, 0, task.error_text, is_fatal=True)
            LOG.error("task %d %s is fatal: %s", task.id, task.task, task.error_text, extra=extra)

    def _fire(self, names: Sequence[str]) -> int:
        """Add the tasks of due schedules. Returns how many schedules have a new time."""
        if not names:
            return 0
        if self._schedules is None:
            from ..stores.queue.schedules import Schedules  # few queues have any

            self._schedules = Schedules(self._store)
        return self._schedules.fire_all(names)
