"""One run of a worker: the life of its tasks from claim to finish, and the reason for which it ends.

    do due work (maintenance.py) → claim → run each task (executor.py) → give back the tasks that were not started

The loop goes round until a limit is met, or no new task is left.
"""

from __future__ import annotations

import socket
import time
from binascii import crc32
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from logging import getLogger
from typing import TYPE_CHECKING

from ..errors import Conflict, DatabaseError
from ..interrupts.stopping import Stop
from ..model.task import ALL_GROUPS, Claim, ClaimedTask
from ..settings.load import Settings
from ..stores import Store
from ..stores.database.retrying import Pauses
from .limits import NO_LIMITS, Limits, RunLimits
from .maintenance import Maintenance
from .result import Reason, RunResult

if TYPE_CHECKING:
    from .claimed_tasks import ClaimedTasks
    from .equipment import Equipment
    from .finishing import Finishing
    from .stats import RunStats

LOG = getLogger("taskserver")

FIRST_PAUSE_SECONDS = 0.005
MAX_PAUSE_SECONDS = 1.0
_MAX_TEXT = 255


class Runner:
    """Takes tasks of some groups from a store and runs them, until a limit is met or none is left."""

    def __init__(
        self,
        store: Store,
        settings: Settings,
        groups: Sequence[int] = (),
        limits: Limits = NO_LIMITS,
        stop: Stop | None = None,
        on_progress: Callable[[RunResult], object] | None = None,
    ) -> None:
        """Without `groups` it takes tasks of all; `on_progress` hears after each task, or call of several."""
        self._store = store
        self._settings = settings
        self._groups = groups
        self._stop = stop or Stop()
        self._on_progress = on_progress or (lambda result: None)
        self._result = RunResult()
        self._limits = RunLimits(limits, self._stop, self._result)
        self._maintenance = Maintenance(store, settings, self._stats_of_run)
        self._stats: RunStats | None = None
        self._equipment: Equipment | None = None
        self._doubtful: list[int] = []
        """Tokens of claims of which an earlier try may yet take effect."""
        self._open = ExitStack()
        self._is_recorded = False
        """Whether the record of runs tells that this one began."""

    def run(self) -> RunResult:
        """Run tasks until there is a reason to end. Raises DatabaseError."""
        with self._store.database.patiently(), self._open:
            self._store.tables.check()
            host, groups = host_name(), groups_text(self._groups)
            self._begin(host, groups)
            LOG.info("run begins: groups %s", groups)
            try:
                reason = self._run_until_reason()
                self._write_stats()
                self._end(host, groups, reason)
            except BaseException as error:
                with suppress(DatabaseError):
                    if not isinstance(error, DatabaseError):
                        self._write_stats()
                    self._end(host, groups, Reason.ERROR)
                raise
        return self._result

    def _begin(self, host: str, groups: str) -> None:
        try:
            self._store.runs.begin(host, groups)
            self._is_recorded = True
        except Conflict as error:
            if self._store.has_one_writer:
                raise  # who holds the record holds all
            LOG.info("tasks run, though others hold the record of runs: %s", error)

    def _end(self, host: str, groups: str, reason: Reason) -> None:
        self._result.end(reason, self._limits.elapsed())
        result = self._result
        try:
            self._store.runs.end(host, groups, result.seconds, reason.value, result.counts(), self._is_recorded)
        except Conflict as error:
            if self._store.has_one_writer or reason is Reason.ERROR:
                raise
            LOG.warning("this run is not recorded, as others hold the record of runs: %s", error)
        LOG.info("run ends, %s: %s", reason.value, result)

    # ---- for operators

    def run_one(self, task: ClaimedTask, claimed_at: float) -> RunResult:
        """Run a task that is claimed already, apart from the record of runs. Raises DatabaseError.

        `claimed_at` is the instant of the claim, by time.monotonic.
        """
        with self._store.database.patiently(), self._open:
            try:
                self._run_claim(Claim([task], 1), claimed_at)
            finally:
                self._write_stats()
        self._result.end(self._limits.reason_to_end() or Reason.MAX_TASKS, self._limits.elapsed())
        return self._result

    def reclaim(self) -> tuple[int, int, int, int, int]:
        """Do all due work at once: the counts of `Maintenance.do_all`. Raises DatabaseError."""
        counts = self._maintenance.do_all()
        self._write_stats()
        return counts

    # ---- the loop

    def _run_until_reason(self) -> Reason:
        pauses = _pauses()
        while not (reason := self._limits.reason_to_end()):
            may_have_more = self._maintenance.look()
            self._release_doubtful()
            claimed_at = time.monotonic()
            claim = self._store.claims.claim(self._limits.claim_size(), self._groups)
            if claim.token_in_doubt is not None:
                self._doubtful.append(claim.token_in_doubt)
            if claim.changed:
                LOG.debug("claimed %d tasks", len(claim.tasks))
                self._run_claim(claim, claimed_at)
                pauses = _pauses()
            elif may_have_more:
                continue  # the rows that were woken may be other groups', and more are due: look again
            # A claim that got nothing is no sign of an empty queue: others may hold the rows that it would have got.
            elif not self._store.claims.has_new(self._groups):
                return Reason.EMPTY
            elif not pauses.pause(self._settings.patience_seconds):
                return Reason.CROWDED
        self._release_doubtful()
        if reason != Reason.STOPPED:
            self._maintenance.look_at_end()
        return reason

    def _release_doubtful(self) -> None:
        """Give back what a claim took after its connection had broken: a server that stood still goes on with it."""
        for token in self._doubtful:
            self._result.released += self._store.claims.release_claim(token)

    def _run_claim(self, claim: Claim, claimed_at: float) -> None:
        """Run tasks of one claim, and give back those that were not started."""
        if not claim.tasks:
            return  # the time of all its rows lies ahead: they wait now
        read_at = time.monotonic()  # waits are counted up to here, the lease from before the claim
        try:
            equipment = self._equip()
        except BaseException:
            self._store.claims.release(claim.tasks)
            raise
        claimed = equipment.heartbeat.guard(claim.tasks, claimed_at)
        equipment.stats.claimed(read_at)
        with ExitStack() as at_end:  # called in reverse order, each even where another one fails
            at_end.callback(self._count_released, claimed)
            at_end.callback(claimed.release, self._store)
            at_end.callback(self._save, equipment.finishing)
            self._run_tasks(claimed, equipment)

    def _run_tasks(self, claimed: ClaimedTasks, equipment: Equipment) -> None:
        """Run tasks of one claim until there is a reason to end, or they are too old.

        Half a lease after the claim the rest is left, as others may take it soon. The first task is tried even then, or
        slow claims would never get anything done: its start checks the claim. The heartbeat gives the others back where
        a task takes long.
        """
        executor, finishing, stats = equipment.executor, equipment.finishing, equipment.stats
        is_first = True
        while not self._limits.reason_to_end() and (is_first or not claimed.is_stale()) and (task := claimed.take()):
            is_first = False
            try:
                executor.run(task)
            except BaseException:
                claimed.put_back(task)  # a release leaves it alone if it was started
                raise
            self._on_progress(self._result)
            if finishing.may_have_due and self._maintenance.is_time():
                finishing.save()  # tasks that have ended must not wait for the look
                finishing.may_have_due = False
                self._maintenance.look()
            if stats.are_due():
                finishing.save()  # tasks that have ended must not wait for their stats
                stats.write()

    def _save(self, finishing: Finishing) -> None:
        """Write the finishes of the last tasks of a claim."""
        finishing.save_together()
        if finishing.may_have_due:
            finishing.may_have_due, self._maintenance.is_to_look_again = False, True

    def _count_released(self, claimed: ClaimedTasks) -> None:
        self._result.released += claimed.released

    # ---- made with the first task: an empty run imports nothing of it

    def _equip(self) -> Equipment:
        if self._equipment is None:
            from .equipment import equipped

            stats = self._stats_of_run()
            run = equipped(self._store, self._settings, self._stop, self._result, stats, self._limits)
            self._equipment = self._open.enter_context(run)
        return self._equipment

    def _stats_of_run(self) -> RunStats:
        if self._stats is None:
            from .stats import RunStats

            self._stats = RunStats(self._store)
        return self._stats

    def _write_stats(self) -> None:
        if self._stats is not None:
            self._stats.write()


def _pauses() -> Pauses:
    """The pauses between claims from a queue whose rows others hold."""
    return Pauses(FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS)


def host_name() -> str:
    """The name of this host, as the record of runs keeps it: plain ASCII."""
    return socket.gethostname().encode("ascii", "replace").decode()[:_MAX_TEXT]


def groups_text(groups: Sequence[int]) -> str:
    """Groups as the record of runs keeps them: `3,5,6`, or `all`; a list too long for it ends in a checksum."""
    text = ",".join(map(str, groups)) or ALL_GROUPS
    if len(text) <= _MAX_TEXT:
        return text
    return f"{text[: _MAX_TEXT - 12]}...{crc32(text.encode()):08x}"
