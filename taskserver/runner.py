"""One run of a worker: the life of its tasks from claim to finish, and the reason for which it ends.

The loop reads top to bottom: wake → claim → run each task (executor.py) → release what was not started.
"""

from __future__ import annotations

import random
import socket
import time
from binascii import crc32
from collections import deque
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from logging import getLogger
from typing import TYPE_CHECKING, NamedTuple

from .errors import DatabaseError
from .run_result import Reason, RunResult
from .settings import Settings
from .stopping import Stop
from .stores import Store
from .stores.rows import ALL_GROUPS
from .task import ClaimedTask

if TYPE_CHECKING:
    from .executor import Executor

LOG = getLogger("taskserver")

WAKE_EVERY_SECONDS = 1.0
FIRST_PAUSE_SECONDS = 0.005
LONGEST_PAUSE_SECONDS = 1.0
_LONGEST_TEXT = 255


class Limits(NamedTuple):
    """How far a run may go."""

    max_tasks: int = 0
    """0: no limit."""
    batch: int = 100
    """Claimed at once, at most."""
    max_seconds: float | None = None


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
        self._limits = limits
        self._stop = stop
        self._on_progress = on_progress
        self._result = RunResult()
        self._executor: Executor | None = None
        self._began_at = time.monotonic()
        self._woke_at = float("-inf")

    def run(self) -> RunResult:
        """Run tasks until there is a reason to end. Raises DatabaseError."""
        result, store = self._result, self._store
        store.check_tables()
        host, groups = host_name(), groups_text(self._groups)
        store.begin_run(host, groups)
        LOG.info("run begins: groups %s", groups)
        try:
            self._end(host, groups, self._run_until_reason())
        except BaseException:
            with suppress(DatabaseError):
                self._end(host, groups, Reason.ERROR)
            raise
        return result

    def _end(self, host: str, groups: str, reason: Reason) -> None:
        self._result.end(reason, self._elapsed())
        self._store.end_run(host, groups, self._result.seconds, reason.value, self._result.counts())
        LOG.info("run ends, %s: %s", reason.value, self._result)

    def _run_until_reason(self) -> Reason:
        pauses = _Pauses(self._settings.patience_seconds)
        while not (reason := self._reason_to_end()):
            self._wake()
            claim = self._store.claim(self._claim_size(), self._groups)
            if claim.changed:
                LOG.debug("claimed %d tasks", len(claim.tasks))
                self._run_claimed(claim.tasks)
                pauses.begin_anew()
            # A claim that got nothing is no sign of an empty queue: others may hold the rows that it would have got.
            elif not self._store.has_new(self._groups):
                return Reason.EMPTY
            elif not pauses.take_one():
                return Reason.CROWDED
        return reason

    def _run_claimed(self, tasks: Sequence[ClaimedTask]) -> None:
        """Run tasks of one claim until there is a reason to end; give back those that were not started."""
        executor = self._executor = self._executor or self._make_executor()
        unstarted = deque(tasks)
        try:
            while unstarted and not self._reason_to_end():
                # It stays in the queue until it is through: a release leaves a started one alone.
                executor.run(unstarted[0])
                unstarted.popleft()
                self._on_progress(self._result)
        finally:
            try:
                executor.save()
            finally:
                self._release(unstarted)

    def _release(self, unstarted: Collection[ClaimedTask]) -> None:
        if unstarted:
            self._result.released += self._store.release(unstarted)
            LOG.debug("released %d tasks", len(unstarted))

    def _make_executor(self) -> Executor:
        # Imported with the first task: most runs of a crontab find none, and need neither json nor inspect.
        from .executor import Executor

        return Executor(self._store, self._settings, self._stop, self._result)

    def _wake(self) -> None:
        if time.monotonic() - self._woke_at < WAKE_EVERY_SECONDS:
            return
        self._woke_at = time.monotonic()
        if woken := self._store.wake():
            LOG.debug("woke %d tasks", woken)
            # A portion at most: the next claim looks whether more are due.
            self._woke_at = float("-inf")

    # ---- limits

    def _reason_to_end(self) -> Reason | None:
        limits, taken = self._limits, self._result.taken
        if self._stop.asked:
            return Reason.STOPPED
        if limits.max_tasks and taken >= limits.max_tasks:
            return Reason.MAX_TASKS
        if limits.max_seconds is not None and self._elapsed() + self._usual_seconds() >= limits.max_seconds:
            return Reason.MAX_TIME
        return None

    def _elapsed(self) -> float:
        return time.monotonic() - self._began_at

    def _usual_seconds(self) -> float:
        """What a task of this run took so far, on average."""
        return self._elapsed() / self._result.taken if self._result.taken else 0.0

    def _claim_size(self) -> int:
        batch, max_tasks = self._limits.batch, self._limits.max_tasks
        return min(batch, max_tasks - self._result.taken) if max_tasks else batch


class _Pauses:
    """Growing, random pauses between looks at a queue that others hold, up to a patience in all."""

    def __init__(self, patience_seconds: float) -> None:
        self._patience_seconds = patience_seconds
        self.begin_anew()

    def begin_anew(self) -> None:
        self._pause = FIRST_PAUSE_SECONDS
        self._give_up_at: float | None = None

    def take_one(self) -> bool:
        """Sleep; False, without sleeping, once the patience has run out."""
        now = time.monotonic()
        if self._give_up_at is None:
            self._give_up_at = now + self._patience_seconds
        if now >= self._give_up_at:
            return False
        time.sleep(min(self._pause * random.uniform(0.5, 1.5), self._give_up_at - now))
        self._pause = min(self._pause * 2, LONGEST_PAUSE_SECONDS)
        return True


def host_name() -> str:
    """The name of this host, as the record of runs keeps it: plain ASCII."""
    return socket.gethostname().encode("ascii", "replace").decode()[:_LONGEST_TEXT]


def groups_text(groups: Sequence[int]) -> str:
    """Groups as the record of runs keeps them: `3,5,6`, or `all`; a list too long for it ends in a checksum."""
    text = ",".join(map(str, groups)) or ALL_GROUPS
    if len(text) <= _LONGEST_TEXT:
        return text
    return f"{text[: _LONGEST_TEXT - 12]}...{crc32(text.encode()):08x}"
