"""Rounds: tasks of `@task(commit_every=N)` that are started in one commit, called one by one, finished in one commit.

A round is up to N neighbours in their claim whose modules are imported. Its waiting tasks come before all others of the
claim (claimed.py), and are released uncounted like them. Finishes wait at most a second for others of the round, or
share the commit of the next start.

Only tasks that were never started share a round. A task that kills its worker costs the others of its round one
attempt, and none of them shares a round again.
"""

from __future__ import annotations

from ..interrupts.alarm import now
from ..model.attempt import Finish
from ..model.task import CANCELLED, ClaimedTask
from .attempt import Attempt
from .attempts import Attempts
from .finishing import Finishing
from .reporting import Reporter
from .run_context import RunContext

LOOK_AT_ROUND_SECONDS = 1.0
"""How often waiting tasks are checked for a cancel or a lost lease; more often if the lease is short."""


class Rounds:
    """The rounds of one run, one after the other."""

    def __init__(self, run: RunContext, attempts: Attempts, finishing: Finishing, reporter: Reporter) -> None:
        self._run = run
        self._attempts = attempts
        self._finishing = finishing
        self._reporter = reporter
        self._cancelled_by_id: dict[int, bool] = {}
        """Tasks that had their claim at the last look, and whether a person cancelled each."""
        self._look_seconds = min(LOOK_AT_ROUND_SECONDS, run.settings.lease_seconds / 12)
        self._looked_at = 0.0

    # ---- start

    def start(self, attempt: Attempt) -> bool:
        """Start a task with its neighbours, unless it is started. False if its claim is gone."""
        others = [] if attempt.has_started else self._take_neighbours(attempt)
        if not others:
            return self._attempts.start(attempt)
        claimed, first, began_at = self._run.heartbeat.claimed, attempt.task, now()
        try:
            ids, held = self._attempts.start_together([first, *others], self._usual_limit(first))
        except BaseException:
            claimed.put_back(others)  # a release skips started ones
            raise
        claimed.put_back([task for task in held if task is not first])
        claimed.put_started([task for task in others if task.id in ids])
        self._cancelled_by_id, self._looked_at = dict.fromkeys(ids, False), began_at
        if first.id in ids:
            self._attempts.note_start(attempt)
            return True
        # If others lock its row, wait for it, as for any task.
        return self._attempts.start(attempt) if first in held else False

    def _take_neighbours(self, attempt: Attempt) -> list[ClaimedTask]:
        """Take the tasks that can start with this one, up to the first that can't."""
        room = self._room(attempt.task)
        if room < 2:
            return []
        others: list[ClaimedTask] = []
        limit = self._usual_limit(attempt.task)

        def matches(task: ClaimedTask) -> bool:
            nonlocal room
            room = min(room, self._room(task))
            return len(others) + 2 <= room and self._usual_limit(task) == limit

        claimed = self._run.heartbeat.claimed
        while task := claimed.take_if(matches):
            others.append(task)
        return others

    def _room(self, task: ClaimedTask) -> int:
        """The largest round for this task; 1 if it must start by itself."""
        found = self._run.callables.find_imported(task.task)
        if found is None or found.options.commit_every is None or task.attempts or task.is_undated:
            return 1
        # A task with one attempt must not lose it by another one's crash.
        return found.options.commit_every if self._attempts.limit_of(task, found) > 1 else 1

    def _usual_limit(self, task: ClaimedTask) -> int:
        return self._attempts.usual_limit(self._run.callables.find_imported(task.task))

    # ---- turn by turn

    def may_run(self, attempt: Attempt) -> bool:
        """Whether the code of a task may run: a task that was started with others may be cancelled or lost since."""
        task, claimed = attempt.task, self._run.heartbeat.claimed
        if not claimed.was_started(task):
            return True
        if now() >= self._looked_at + self._look_seconds:
            self._looked_at = now()
            self._cancelled_by_id = self._run.store.finishes.still_claimed([task, *claimed.started()])
        is_cancelled = self._cancelled_by_id.get(task.id)
        if is_cancelled is None:
            self._reporter.report_lost(task, "before its code ran")
            return False
        self._attempts.note_start(attempt)
        if is_cancelled:
            self._finishing.add(attempt, Finish(task, CANCELLED, is_uncounted=True))
        return not is_cancelled
