"""One run of a worker: the life of its tasks from claim to finish, and why it ends.

    do due work (maintenance.py) → claim → run each task (life.py) → release the tasks that were not started

The loop ends when a limit is reached (limits.py shows how to add one), or when no new task is left.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from logging import WARNING, getLogger
from types import NoneType
from typing import TYPE_CHECKING

from ..errors import DatabaseError, TaskServerError
from ..interrupts.stop import Stop
from ..messages.log_records import optional_step
from ..messages.text import count_of
from ..model.attempt import FailedAttempt
from ..model.checks import check_kind
from ..model.task import Claim, ClaimedTask, LostTask
from ..settings.load import Settings, make_importable
from ..stores import Store
from ..stores.queue.claims import number_of
from ..stores.retrying import Pauses
from .limits import NO_LIMITS, Limits, RunLimits, check_system
from .maintenance import Maintenance
from .record import RunRecord
from .result import BECAUSE, Reason, RunResult

if TYPE_CHECKING:
    from ..model.selection import Selection
    from ..stores.queue.operations import Reclaimed
    from .callables import Callables
    from .claimed import Claimed
    from .finishing import Finishing
    from .life import Life
    from .lingering import Lingering
    from .run_context import RunContext
    from .stats import RunStats

LOG = getLogger("taskserver")

PRUNE_EVERY_SECONDS = 60
FIRST_CROWDED_PAUSE_SECONDS = 0.005
MAX_CROWDED_PAUSE_SECONDS = 1.0
MAX_HELD_SECONDS = 3.0
"""How long a run tries to release locked rows; then they wait for the end of their lease."""


class Runner:
    """Runs tasks of some groups until a limit is reached or no task is left."""

    def __init__(
        self,
        store: Store,
        settings: Settings,
        groups: Sequence[int] = (),
        limits: Limits = NO_LIMITS,
        stop: Stop | None = None,
        on_progress: Callable[[RunResult], object] | None = None,
        callables: Callables | None = None,
    ) -> None:
        """No `groups`: all; `on_progress` is called after each call. `callables`: by default those of the settings."""
        self._store = store
        self._settings = settings
        self._groups = groups
        self._stop = stop or Stop()
        self._on_progress = on_progress or (lambda result: None)
        self._callables = callables
        self._result = RunResult()
        self._record = RunRecord(store, groups, self._result, self._stop.line_began_at)
        self._limits = RunLimits(limits, self._stop, self._result)
        self._maintenance = Maintenance(store, settings, self._stats_of_run, self._on_lost)
        self._stats: RunStats | None = None
        self._life: Life | None = None
        self._lingering = self._linger() if limits.linger_seconds is not None else None
        self._run_context: RunContext
        """Set with the first task."""
        self._open = ExitStack()
        self._pruned_at = float("-inf")

    def run(self) -> RunResult:
        """Raises DatabaseError."""
        with self._store.database.with_patience(), self._open:
            self._store.tables.check()
            self._record.begin()
            LOG.info("run begins: groups %s", self._record.groups)
            try:
                self._maintenance.reclaim_from_dead_workers(self._record.host)
                if self._lingering is not None:
                    self._record.register()
                reason = self._until_reason()
                self._write_stats()
                if reason is not Reason.STOPPED:
                    self._prune()
                self._end(reason)
            except BaseException as error:
                with suppress(DatabaseError):
                    if not isinstance(error, DatabaseError):
                        self._write_stats()
                    self._end(Reason.ERROR)
                raise
        return self._result

    def _end(self, reason: Reason) -> None:
        self._record.end(reason, self._limits.elapsed())
        result = self._result
        released = f", {result.released} released" if result.released else ""
        LOG.info(
            "run ends after %.1f s, as %s (%s): %s%s",
            *(result.seconds, BECAUSE[reason], reason.value, result.in_words(), released),
        )

    # ---- for operators

    def run_one(self, task: ClaimedTask, claimed_at: float) -> RunResult:
        """Run a claimed task, without a record of the run. Raises DatabaseError.

        `claimed_at` is by time.monotonic.
        """
        self._record.number = number_of(task.claim)
        with self._store.database.with_patience(), self._open:
            try:
                self._run_claim(Claim([task], 1), claimed_at)
            finally:
                self._write_stats()
                self._record.unregister()
        self._result.end(self._limits.reason_to_end() or Reason.MAX_TASKS, self._limits.elapsed())
        return self._result

    def reclaim(self) -> tuple[int, int, int, int, int]:
        """Do all due work at once: the counts of `Maintenance.do_all`. Raises DatabaseError."""
        with self._open:
            self._maintenance.reclaim_from_dead_workers(self._record.host)
            counts = self._maintenance.do_all()
            self._write_stats()
            self._call_failure_hook()
        return counts

    # ---- the loop

    def _until_reason(self) -> Reason:
        pauses = _pauses()
        while not (reason := self._limits.reason_to_end()):
            has_more_due = self._maintenance.look()  # at most once a second, unless it found work
            self._call_failure_hook()
            claimed_at = time.monotonic()
            size = self._limits.claim_size.next(self._limits.tasks_left())
            claim = self._store.claims.claim(size, self._groups, self._record.number)
            if claim.changed:
                self._run_claim(claim, claimed_at)
                pauses = _pauses()
                if self._lingering is not None:
                    self._lingering.has_worked()
                continue
            if has_more_due:
                continue  # the woken rows may be of other groups, and more are due: look again
            # An empty claim does not prove that the queue is empty: others may lock the rows.
            is_crowded = self._store.claims.has_new(self._groups)
            if not (is_crowded and pauses.pause(self._settings.patience_seconds)) and not self._wait_for_tasks():
                reason = Reason.CROWDED if is_crowded else Reason.EMPTY
                break
        self._maintenance.report_given_up()
        self._call_failure_hook()
        return reason

    def _run_claim(self, claim: Claim, claimed_at: float) -> None:
        """Run tasks of one claim, and release those that were not started."""
        if not claim.tasks:
            return  # all its rows are due in the future: they wait now
        read_at, taken_before = time.monotonic(), self._result.taken
        LOG.debug("claimed %d tasks", len(claim.tasks))
        try:
            life = self._life_of_run()
        except BaseException:
            self._store.claims.release(claim.tasks)
            raise
        claimed = self._run_context.heartbeat.guard(claim.tasks, claimed_at)  # the lease began before the claim
        self._limits.claim_size.note_claimed(len(claim.tasks))
        self._run_context.stats.claimed(read_at)
        with ExitStack() as at_end:  # called in reverse order, each even if another one fails
            at_end.callback(self._call_failure_hook)
            at_end.callback(self._release, claimed)
            at_end.callback(self._save, life.finishing)
            if life.hooks.set_up():
                self._run_tasks(claimed, life)
        self._limits.claim_size.note(self._result.taken - taken_before, time.monotonic() - claimed_at)

    def _run_tasks(self, claimed: Claimed, life: Life) -> None:
        """Run tasks of one claim until there is a reason to end, or the claim is stale.

        The first task runs even then, else slow claims would never get anything done: its start checks the claim. The
        heartbeat releases the others if a task takes long.
        """
        has_time = True  # the first one in any case
        while has_time and not self._limits.reason_to_end() and (task := claimed.take()):
            try:
                if not self._fits(task):
                    claimed.put_back([task])
                    return
                life.run(task)
            except BaseException:
                if not claimed.was_started(task):  # else its code may have run
                    claimed.put_back([task])
                raise
            self._between_tasks(claimed, life)
            has_time = not (claimed.is_claimed_again or claimed.is_stale())

    def _fits(self, task: ClaimedTask) -> bool:
        """Whether to start a task, by the recent times of its name. If not, the run ends."""
        if not self._limits.has_max_time:
            return True
        seconds = self._stats_of_run().usual_seconds(task.task)
        fits = self._limits.fits(seconds, task.waited_seconds)
        if not fits:
            LOG.info(
                "skipped task %d %s: it may take %.1f s, longer than this run has left", task.id, task.task, seconds
            )
        return fits

    def _between_tasks(self, claimed: Claimed, life: Life) -> None:
        """Show the progress of the run, and do due work: each about once a second at most."""
        finishing = life.finishing
        finishing.save_old()
        self._on_progress(self._result)
        self._record.show()
        if finishing.has_due and self._maintenance.is_time():
            finishing.save()  # finished tasks must not wait for the look
            finishing.has_due = False
            self._maintenance.look()
        if self._run_context.stats.are_due():
            finishing.save()  # finished tasks must not wait for their stats
            self._run_context.stats.write()
        has_news = finishing.has_failed and life.hooks.has_failure_hook
        if (has_news or life.hooks.pending) and not claimed.has_started:
            finishing.save()  # a hook that ends the process must not cost another task an attempt
            self._call_failure_hook()

    def _save(self, finishing: Finishing) -> None:
        finishing.save()
        if finishing.has_due:
            finishing.has_due, self._maintenance.should_look_again = False, True

    def _release(self, claimed: Claimed) -> None:
        """Release the tasks that did not run; wait for locked rows of started ones, so that they lose no attempt."""
        pauses = _pauses()
        claimed.release(self._store)
        while claimed and pauses.pause(MAX_HELD_SECONDS):
            claimed.release(self._store)
        if not claimed.is_claimed_again:
            self._result.released += claimed.released

    def _call_failure_hook(self) -> None:
        """Call TASKSERVER_ON_FAILURE for failed attempts whose ends are written, while no task is started."""
        if self._life is not None:
            self._life.hooks.call_pending()

    def _wait_for_tasks(self) -> bool:
        """Wait for new tasks if the run lingers. False if there are none and its time is over."""
        if self._lingering is None:
            return False
        if self._life is not None:
            self._life.hooks.before_wait()
        self._write_stats()
        self._prune()
        self._record.show(every_seconds=0.0)
        return self._lingering.wait()

    def _prune(self) -> None:
        """Delete a portion of the done rows that are older than TASKSERVER_KEEP, at most once a minute."""
        keep_seconds = self._settings.keep_seconds
        if keep_seconds is None or time.monotonic() - self._pruned_at < PRUNE_EVERY_SECONDS:
            return
        from ..stores.queue.pruning import prune_portion

        self._pruned_at = time.monotonic()
        with optional_step("rows older than TASKSERVER_KEEP are not deleted", WARNING):
            if deleted := prune_portion(self._store, keep_seconds):
                LOG.info("deleted %s older than TASKSERVER_KEEP", count_of(deleted, "done task"))

    # ---- created when needed: an empty run does not import these

    def _linger(self) -> Lingering:
        from .lingering import Lingering

        return Lingering(
            self._store,
            self._settings.pauses,
            self._limits,
            self._maintenance,
            self._groups,
            self._record.show_alive,
        )

    def _life_of_run(self) -> Life:
        if self._life is None:
            from .life import Life
            from .run_context import watching

            stats = self._stats_of_run()
            self._record.register()
            self._run_context = self._open.enter_context(
                watching(*(self._store, self._settings, self._stop, self._result, stats, self._limits, self._callables))
            )
            self._life = Life(self._run_context)
            self._open.callback(self._call_failure_hook)  # if an error ends the run
        return self._life

    def _on_lost(self, lost: LostTask, text: str, is_fatal: bool) -> None:
        if self._settings.on_failure is not None:
            error = TaskServerError(text)
            self._life_of_run().hooks.call_later(FailedAttempt(lost.id, lost.task, lost.attempts, error, is_fatal))

    def _stats_of_run(self) -> RunStats:
        if self._stats is None:
            from .stats import RunStats

            self._stats = RunStats(self._store)
        return self._stats

    def _write_stats(self) -> None:
        if self._stats is not None:
            self._stats.write()


def _pauses() -> Pauses:
    """The pauses between claims while others lock the rows."""
    return Pauses(FIRST_CROWDED_PAUSE_SECONDS, MAX_CROWDED_PAUSE_SECONDS)


def run_task(store: Store, settings: Settings, task_id: int, stop: Stop | None) -> RunResult:
    """Run one task of any group here and now. Raises SettingError, InvalidTask, DatabaseError."""
    from ..stores.queue.operations import Operations

    check_system()
    check_kind("stop", stop, (Stop, NoneType), "a taskserver.Stop, or None")
    make_importable(settings.folder)
    claimed_at = time.monotonic()
    task = Operations(store).claim_one(task_id)
    return Runner(store, settings, limits=Limits(max_tasks=1), stop=stop).run_one(task, claimed_at)


def reclaim(store: Store, settings: Settings, force: Selection | None) -> Reclaimed:
    """Wake all due tasks and reclaim those with expired leases; `force` also reclaims claims that still hold.

    Raises SettingError, InvalidTask, DatabaseError.
    """
    from ..model.selection import Selection
    from ..stores.queue.operations import END_LEASE, Operations, Reclaimed

    check_kind("force", force, (Selection, NoneType), "a Selection, or None")
    forced = 0 if force is None else Operations(store).change(END_LEASE, force).changed
    return Reclaimed(forced, *Runner(store, settings).reclaim())
