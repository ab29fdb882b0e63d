"""One run of a worker: the life of its tasks from claim to finish, and the reason for which it ends.

The loop reads top to bottom: wake and reclaim → claim → run each task (executor.py) → release what was not started.
"""

from __future__ import annotations

import random
import socket
import time
from binascii import crc32
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from logging import getLogger
from typing import TYPE_CHECKING

from .errors import DatabaseError
from .lifecycle import CANCELLED, Claim, ClaimedTask, Due, LostTask
from .run_limits import Limits, RunLimits
from .run_result import FATAL, Reason, RunResult
from .settings import Settings
from .stopping import Stop
from .stores import Store
from .stores.store import DUE_A_LOOK
from .stores.tables import ALL_GROUPS
from .stores.tries import Pauses

if TYPE_CHECKING:
    from .executor import Executor
    from .figures import Figures
    from .heartbeat import Heartbeat
    from .stores.dependencies import Dependencies, GivenUp
    from .stores.schedules import Schedules
    from .unstarted import Unstarted

LOG = getLogger("taskserver")

LOOK_FOR_DUE_EVERY_SECONDS = 1.0
LONGEST_RECLAIM_SECONDS = 5.0
LONGEST_LAST_LOOK_SECONDS = 2.0
FIRST_PAUSE_SECONDS = 0.005
LONGEST_PAUSE_SECONDS = 1.0
_LONGEST_TEXT = 255

LOST_TEXT = "lost: its worker vanished, hung, or could not record its end, and its lease ended"
HANGS = (
    "a task holds the interpreter beyond its timeout and a lease; this worker ends, and a later run takes the task back"
)
NOTHING_DUE = Due([], [], [], [], [])


class Runner:
    """Takes tasks of some groups from a store and runs them, until a limit is met or none is left."""

    def __init__(
        self,
        store: Store,
        settings: Settings,
        groups: Sequence[int],
        limits: Limits,
        stop: Stop,
        on_progress: Callable[[RunResult], object],
    ) -> None:
        self._store = store
        self._settings = settings
        self._groups = groups
        self._stop = stop
        self._on_progress = on_progress
        self._result = RunResult()
        self._limits = RunLimits(limits, stop, self._result)
        self._equipment: tuple[Executor, Heartbeat] | None = None
        self._figures: Figures | None = None
        self._schedules: Schedules | None = None
        self._dependencies: Dependencies | None = None
        self._open = ExitStack()
        self._looked_at = float("-inf")
        self._is_to_look_again = False

    def run(self) -> RunResult:
        """Run tasks until there is a reason to end. Raises DatabaseError."""
        with self._store.patiently(), self._open:
            return self._recorded_run()

    def _recorded_run(self) -> RunResult:
        result, store = self._result, self._store
        store.check_tables()
        host, groups = host_name(), groups_text(self._groups)
        store.begin_run(host, groups)
        LOG.info("run begins: groups %s", groups)
        try:
            reason = self._run_until_reason()
            self._write_figures()
            self._end(host, groups, reason)
        except BaseException as error:
            with suppress(DatabaseError):
                if not isinstance(error, DatabaseError):
                    self._write_figures()
                self._end(host, groups, Reason.ERROR)
            raise
        return result

    def _end(self, host: str, groups: str, reason: Reason) -> None:
        self._result.end(reason, self._limits.elapsed())
        self._store.end_run(host, groups, self._result.seconds, reason.value, self._result.counts())
        LOG.info("run ends, %s: %s", reason.value, self._result)

    # ---- for operators

    def run_one(self, task: ClaimedTask, claimed_at: float) -> RunResult:
        """Run a task that is claimed already, apart from the record of runs. Raises DatabaseError."""
        with self._store.patiently(), self._open:
            try:
                self._run_claim(Claim([task], 1), claimed_at)
            finally:
                self._write_figures()
        self._result.end(self._limits.reason_to_end() or Reason.MAX_TASKS, self._limits.elapsed())
        return self._result

    def reclaim(self) -> tuple[int, int, int, int, int]:
        """Do all at once of what a run begins with.

        How many were woken, taken back unstarted, lost; waited for tasks which are gone; and still are due.
        Schedules are left to the runs.
        """
        counts = [0, 0, 0, 0]
        orphaned = self._dependencies_of_run().sign_orphans()
        while True:
            due = self._store.look_for_due()
            several = self._settle(due)
            if not any(several):
                break
            counts = [count + more for count, more in zip(counts, several, strict=True)]
        self._write_figures()
        woken, unstarted, lost, _ = counts
        left = len(due.to_wake) + len(due.unstarted) + len(due.lost) + len(due.linked)
        return woken, unstarted, lost, orphaned, left

    def _write_figures(self) -> None:
        if self._figures is not None:
            self._figures.write()

    # ---- the loop

    def _run_until_reason(self) -> Reason:
        pauses = _pauses()
        while not (reason := self._limits.reason_to_end()):
            may_have_more = self._take_care_of_due()
            claimed_at = time.monotonic()
            claim = self._store.claim(self._limits.claim_size(), self._groups)
            if claim.changed:
                LOG.debug("claimed %d tasks", len(claim.tasks))
                self._run_claim(claim, claimed_at)
                pauses = _pauses()
            elif may_have_more:
                continue  # what was due so far is other groups'
            # A claim that got nothing is no sign of an empty queue: others may hold the rows that it would have got.
            elif not self._store.has_new(self._groups):
                return Reason.EMPTY
            elif not pauses.pause(self._settings.patience_seconds):
                return Reason.CROWDED
        if reason != Reason.STOPPED:
            self._tell_of_the_last()
        return reason

    def _tell_of_the_last(self) -> None:
        """Those that wait for the last tasks of a run hear of their ends now, not in the next run."""
        until = time.monotonic() + LONGEST_LAST_LOOK_SECONDS
        while self._is_to_look_again and time.monotonic() < until:
            self._take_care_of_due()

    def _run_claim(self, claim: Claim, claimed_at: float) -> None:
        read_at = time.monotonic()
        try:
            executor, heartbeat = self._equip()
            figures = self._figures_of_run()
        except BaseException:
            if claim.tasks:
                self._store.release(claim.tasks)
            raise
        unstarted = heartbeat.guard(claim.tasks, claimed_at)
        figures.claimed(read_at)
        try:
            self._run_tasks(unstarted, executor, figures)
        finally:
            try:
                executor.save()
                if executor.may_have_due:
                    executor.may_have_due, self._is_to_look_again = False, True
            finally:
                try:
                    unstarted.release(self._store)
                finally:
                    self._result.released += unstarted.released

    def _run_tasks(self, unstarted: Unstarted, executor: Executor, figures: Figures) -> None:
        """Run tasks of one claim until there is a reason to end, or they are too old.

        After half a lease another worker could be about to take them. But the first one is always tried, so that
        claims which take long themselves come to something: its start finds out whether it still is ours. The heartbeat
        gives them back where a task takes long.
        """
        is_first = True
        limits = self._limits
        while not limits.reason_to_end() and (is_first or not unstarted.is_stale()) and (task := unstarted.take()):
            is_first = False
            try:
                executor.run(task)
            except BaseException:
                unstarted.put_back(task)  # a release leaves it alone if it was started
                raise
            self._on_progress(self._result)
            if executor.may_have_due and self._is_time_to_look():
                executor.save()  # what has ended must not wait for it
                executor.may_have_due = False
                self._take_care_of_due()
            if figures.are_due():
                executor.save()  # what has ended must not wait for them
                figures.write()

    def _equip(self) -> tuple[Executor, Heartbeat]:
        if self._equipment is None:
            self._equipment = self._made_equipment()
        return self._equipment

    def _figures_of_run(self) -> Figures:
        if self._figures is None:
            from .figures import Figures

            self._figures = Figures(self._store)
        return self._figures

    def _made_equipment(self) -> tuple[Executor, Heartbeat]:
        # Imported with the first task: most runs of a crontab find none, and need neither json nor inspect.
        from .batch_executor import BatchExecutor
        from .executor import RunContext
        from .heartbeat import Heartbeat
        from .time_limit import time_limit
        from .watchdog import Watchdog

        settings = self._settings
        limit = self._open.enter_context(time_limit(self._stop, settings.lease_seconds / 4))
        watchdog = Watchdog(self._stop.ends_process, HANGS) if self._stop.ends_process else None
        heartbeat = self._open.enter_context(
            Heartbeat(self._store, limit, settings.lease_seconds, settings.timeout_seconds, watchdog)
        )
        figures = self._figures_of_run()
        run = RunContext(self._store, settings, heartbeat, limit, self._stop, self._result, figures, self._limits)
        executor = BatchExecutor(run)
        self._open.callback(executor.end)
        return executor, heartbeat

    # ---- what is due

    def _take_care_of_due(self) -> bool:
        """Wake what waited, and take back what workers left that vanished. Whether there may be more of it."""
        if not self._is_to_look_again and not self._is_time_to_look():
            return False
        self._looked_at, self._is_to_look_again = time.monotonic(), False
        due = self._store.look_for_due()
        if due == NOTHING_DUE:
            return False
        woken, reclaimed, lost, linked = self._settle(due)
        scheduled = self._fire(due.schedules)
        if not (woken or reclaimed or lost or linked or scheduled):
            return False
        if woken or reclaimed or lost:
            LOG.info("woke %d tasks, took back %d unstarted and %d lost ones", woken, reclaimed, lost)
        if lost:
            self._write_figures()  # what one worker vanished under may take the next one along
        # A portion at most: it is looked again before the next claim.
        self._is_to_look_again = True
        # What was told by others may have something to tell itself, as has what is fatal now, being lost.
        most = max(len(due.to_wake), len(due.unstarted) + len(due.lost), len(due.schedules))
        return bool(linked or lost) or most >= DUE_A_LOOK

    def _is_time_to_look(self) -> bool:
        return time.monotonic() - self._looked_at >= LOOK_FOR_DUE_EVERY_SECONDS

    def _settle(self, due: Due) -> tuple[int, int, int, int]:
        """How many were woken, taken back unstarted, lost, and settled with those that wait for them."""
        woken = self._store.wake(due.to_wake)
        unstarted, lost = self._store.reclaim_unstarted(due.unstarted), self._reclaim_lost(due.lost)
        return woken, unstarted, lost, self._dependencies_of_run().settle(due.linked) if due.linked else 0

    def _dependencies_of_run(self) -> Dependencies:
        if self._dependencies is None:
            from .stores.dependencies import Dependencies  # few queues have any

            self._dependencies = Dependencies(self._store, self._given_up)
        return self._dependencies

    def _given_up(self, task: GivenUp) -> None:
        """A task became fatal because of another one that it waits for."""
        self._figures_of_run().given_up(task.group_id, task.task)
        LOG.warning("task %d %s is fatal: %s", task.id, task.task, task.error_text, extra=FATAL)

    def _fire(self, names: Sequence[str]) -> int:
        """Add the tasks of schedules whose time has come. How many have another time now."""
        if not names:
            return 0
        if self._schedules is None:
            from .stores.schedules import Schedules  # few queues have any

            self._schedules = Schedules(self._store)
        return self._schedules.fire_all(names)

    def _reclaim_lost(self, lost: Sequence[LostTask]) -> int:
        """How many were taken back. Rows that others hold take long: what is left is looked at again."""
        until = time.monotonic() + LONGEST_RECLAIM_SECONDS
        # Not in order: those that are held would keep all behind them from their turn.
        in_any_order = random.sample(lost, len(lost))
        return sum(self._reclaim(one) for one in in_any_order if time.monotonic() < until)

    def _reclaim(self, lost: LostTask) -> bool:
        """Take back a task whose worker vanished under it: that attempt failed."""
        limit = self._settings.max_attempts if lost.max_attempts is None else lost.max_attempts
        is_last = not lost.is_to_rerun and (lost.is_cancelled or lost.attempts >= limit)
        text = CANCELLED if lost.is_cancelled else LOST_TEXT
        seconds = None if is_last else self._settings.backoff.seconds_after(lost.attempts)
        is_ours = self._store.reclaim_lost(lost, limit, text, seconds)
        if is_ours:
            self._figures_of_run().lost(lost, is_last)
        if is_ours and is_last:
            LOG.warning("task %d %s is fatal: %s", lost.id, lost.task, text, extra=FATAL)
        return is_ours


def _pauses() -> Pauses:
    """Between looks at a queue that others hold."""
    return Pauses(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)


def host_name() -> str:
    """The name of this host, as the record of runs keeps it: plain ASCII."""
    return socket.gethostname().encode("ascii", "replace").decode()[:_LONGEST_TEXT]


def groups_text(groups: Sequence[int]) -> str:
    """Groups as the record of runs keeps them: `3,5,6`, or `all`; a list too long for it ends in a checksum."""
    text = ",".join(map(str, groups)) or ALL_GROUPS
    if len(text) <= _LONGEST_TEXT:
        return text
    return f"{text[: _LONGEST_TEXT - 12]}...{crc32(text.encode()):08x}"
