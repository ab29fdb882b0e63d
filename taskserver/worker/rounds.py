"""Rounds: tasks of `@task(commit_every=N)` that are started in one commit, called one by one, finished in one commit.

A round is up to N neighbours in their claim whose modules are imported. Those that wait for their
turn stand before all others of the claim (claimed.py), and are given back uncounted as these are. The finishes of a
round share the commit of the next start, or are written a second after its start.

Only tasks that were never started share a round: a task that kills its worker costs the others of its round one
attempt, and none of them shares a round again.
"""

from __future__ import annotations

import time

from ..interrupts.alarm import INFINITY
from ..model.attempt import Finish
from ..model.task import CANCELLED, ClaimedTask
from ..stores.queue.batches import Batches
from .attempt import Attempt
from .attempts import Attempts
from .finishing import Finishing
from .reporting import Reporter
from .run_context import RunContext

SAVE_SECONDS = 1.0
"""Finishes are written this long after the first start of a round at the latest; sooner if the lease is short."""


class Rounds:
    """The rounds of one run, one after the other."""

    def __init__(self, run: RunContext, attempts: Attempts, finishing: Finishing, reporter: Reporter) -> None:
        self._run = run
        self._attempts = attempts
        self._finishing = finishing
        self._reporter = reporter
        self._batches = Batches(run.store)
        self._save_seconds = min(SAVE_SECONDS, run.settings.lease_seconds / 12)
        run.heartbeat.save_ended = finishing.save_meanwhile
        self._renewed_at = 0.0
        self._called: list[ClaimedTask] = []
        """Tasks of the round that have had their turn since finishes were written last."""
        self._cancelled_by_id: dict[int, bool] | None = None
        """Of the tasks that still carried their claim at the last look: whether a person cancelled each."""

    # ---- start

    def start(self, attempt: Attempt) -> bool:
        """Start a task together with its neighbours, unless it is started. False: its claim is gone."""
        others = [] if attempt.has_started else self._take_neighbours(attempt)
        if not others:
            return self._attempts.start(attempt)
        claimed, first, began_at = self._run.heartbeat.claimed, attempt.task, time.monotonic()
        try:
            ids, held = self._attempts.start_together([first, *others], self._usual_limit(first))
        except BaseException:
            claimed.put_back(others)  # a release leaves those that were started
            raise
        claimed.put_back([task for task in held if task is not first])
        claimed.put_started([task for task in others if task.id in ids])
        self._open(began_at)
        if first.id in ids:
            self._attempts.note_start(attempt)
            return True
        # Others hold its row: that is waited for, as with any task.
        return self._attempts.start(attempt) if first in held else False

    def _take_neighbours(self, attempt: Attempt) -> list[ClaimedTask]:
        """Take the tasks that are started with this one, up to the first that must not be."""
        room = self._room(attempt.task)
        if room < 2:
            return []
        others: list[ClaimedTask] = []
        limit = self._usual_limit(attempt.task)

        def suits(task: ClaimedTask) -> bool:
            nonlocal room
            room = min(room, self._room(task))
            return len(others) + 2 <= room and self._usual_limit(task) == limit

        claimed = self._run.heartbeat.claimed
        while task := claimed.take_if(suits):
            others.append(task)
        return others

    def _room(self, task: ClaimedTask) -> int:
        """The most tasks of a round with this one: 1 if it has to be started by itself."""
        found = self._run.callables.find_imported(task.task)
        if found is None or found.options.commit_every is None or task.attempts or task.is_undated:
            return 1
        # A task that may start only once must not lose its start by another one's crash.
        return found.options.commit_every if self._attempts.limit_of(task, found) > 1 else 1

    def _usual_limit(self, task: ClaimedTask) -> int:
        return self._attempts.usual_limit(self._run.callables.find_imported(task.task))

    # ---- turn by turn

    def may_run(self, attempt: Attempt) -> bool:
        """Whether the code of a task may run: started with others, it may be cancelled or lost since."""
        task = attempt.task
        if not self._run.heartbeat.claimed.was_started(task):
            if self._is_open:
                self._close()  # the rest of the round was given back
            return True
        is_cancelled = False if self._cancelled_by_id is None else self._cancelled_by_id.get(task.id)
        if is_cancelled is None:
            self._reporter.report_lost(task, "before its code ran")
            return False
        self._attempts.note_start(attempt)
        self._called.append(task)
        if is_cancelled:
            self._finishing.add(attempt, Finish(task, CANCELLED, uncount=True))
            return False
        return True

    def go_on(self) -> None:
        """Write finishes if they are a second old; those of a round that is over go with the next start."""
        if not self._is_open:
            return
        if not self._run.heartbeat.claimed.has_started:
            self._close()
        elif time.monotonic() >= self._run.heartbeat.save_ended_at:
            self._save()

    def _save(self) -> None:
        """Write finishes, keep the leases of tasks that wait for their turn, and look which were cancelled or lost."""
        self._finishing.save()
        self._called.clear()
        now = time.monotonic()
        self._run.heartbeat.save_ended_at = now + self._save_seconds
        waiting = self._run.heartbeat.claimed.started()
        if not waiting:
            return
        if now - self._renewed_at >= self._run.settings.lease_seconds / 6:
            self._batches.renew(waiting)
            self._renewed_at = now
        self._cancelled_by_id = self._run.store.finishes.claimed_still(waiting)

    @property
    def _is_open(self) -> bool:
        """Whether there is a round."""
        return self._run.heartbeat.save_ended_at != INFINITY

    def _open(self, began_at: float) -> None:
        self._called.clear()
        self._renewed_at, self._cancelled_by_id = began_at, None
        self._run.heartbeat.waiting, self._run.heartbeat.save_ended_at = self._called, began_at + self._save_seconds

    def _close(self) -> None:
        self._called.clear()
        self._cancelled_by_id = None
        self._run.heartbeat.waiting, self._run.heartbeat.save_ended_at = (), INFINITY
