"""Executes tasks that share their commits: `@task(commit_every=N)`.

A round is up to N tasks that stand next to each other in their claim:

    take up the first → start it together with the others → call each when it has its turn → finish all together
                                                          ↘ a second later: finish those that have ended, and go on

A started task that has not had its turn stands before all others of its claim (claimed_tasks.py). It is given back as
they are, and its attempt is not counted then. Only tasks that were never started share a round: a task that kills its
worker costs the others of its round one attempt, and none of them shares a round again.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from ..model.attempt import Finish
from ..model.task import CANCELLED, ClaimedTask
from ..stores.queue.batches import Batches
from .alone import AloneExecution
from .attempts import Attempts, ReadyTask
from .callables import TaskCallable
from .finishing import Finishing
from .reporting import Reporter
from .run_context import RunContext
from .starts import Starts
from .stats import Attempt

SAVE_SECONDS = 1.0
"""Finishes are written so long after the first start of a round at the latest; sooner where the lease is short."""


class SharedExecution:
    """Executes tasks one by one, many of which share a start and a finish."""

    def __init__(
        self,
        run: RunContext,
        attempts: Attempts,
        starts: Starts,
        finishing: Finishing,
        reporter: Reporter,
        alone: AloneExecution,
    ) -> None:
        self._run = run
        self._batches = Batches(run.store)
        self._attempts = attempts
        self._starts = starts
        self._finishing = finishing
        self._reporter = reporter
        self._alone = alone
        self._waiting: dict[int, int] = {}
        """The claims of started tasks that have not had their turn, by id."""
        self._called: list[ClaimedTask] = []
        """Tasks that have had their turn since finishes were written last."""
        # The lease of a task that has its turn is to last for as long as those of other tasks do: see _save.
        self._save_seconds = min(SAVE_SECONDS, run.settings.lease_seconds / 12)
        self._look_seconds = self._save_seconds / 4
        """The heartbeat looks so often whether it is time to write."""
        self._renewed_at = 0.0
        """By time.monotonic: when the leases of tasks that wait for their turn began."""
        self._save_at = float("inf")
        """By time.monotonic: the finishes of the round that is under way are written then; infinity without one."""
        self._cancelled_by_id: dict[int, bool] | None = None
        """Of the tasks that still carried their claim at the last look: whether a person cancelled each."""

    def execute(self, ready: ReadyTask, attempt: Attempt | None) -> None:
        """Start a task with others behind it, unless `attempt` says that it is started, and call it alone.

        Raises DatabaseError.
        """
        attempt = attempt or self._start(ready)
        if attempt is None:
            return
        self._run.heartbeat.save_ended_at = self._save_at - self._look_seconds
        self._alone.execute(ready, attempt)
        self._called.append(ready.task)
        if not self._run.heartbeat.claimed.has_started:
            self._end_round()
        elif time.monotonic() >= self._save_at:
            self._save()

    # ---- start a round

    def _start(self, ready: ReadyTask) -> Attempt | None:
        """Start a task, alone or with others. Its attempt; None where its claim is gone."""
        self._end_round()
        others, by_limit = self._take_others(ready)
        if not others:
            return self._attempts.start(ready.task, ready.max_attempts)
        first, claimed = ready.task, self._run.heartbeat.claimed
        try:
            self._finishing.save_together()
            began_at = time.monotonic()
            started, held = self._start_together(by_limit)
        except BaseException:
            claimed.put_back(*others)  # a release leaves started ones alone
            raise
        claimed.put_back(*(task for task in held if task.id != first.id))
        rest = [task for task in others if task.id in started]
        claimed.put_started(rest)
        self._begin_round([first, *rest], began_at)
        if first.id in started:
            return self._attempts.attempt(first, has_started=True)
        # Somebody holds its row, which has its turn now: wait for that as for any other.
        return self._attempts.start(first, ready.max_attempts) if first in held else None

    def _take_others(self, ready: ReadyTask) -> tuple[list[ClaimedTask], dict[int, list[ClaimedTask]]]:
        """Take the tasks that can be started with this one, up to the first one that cannot.

        Returns them, and all of the round by the limits of attempts of their callables.
        """
        claimed, callables = self._run.heartbeat.claimed, self._run.callables
        most, usual = self._room(ready.task, ready.call.callable)
        others: list[ClaimedTask] = []
        by_limit = {usual: [ready.task]}
        while len(others) + 1 < most and (task := claimed.take()) is not None:
            room, usual = self._room(task, callables.find_imported(task.task))
            if room < len(others) + 2:
                claimed.put_back(task)
                break
            most = min(most, room)
            others.append(task)
            by_limit.setdefault(usual, []).append(task)
        return others, by_limit

    def _room(self, task: ClaimedTask, found: TaskCallable | None) -> tuple[int, int]:
        """The most tasks that may be in a round with this one (1: it is to be started alone), and its usual limit."""
        usual = self._attempts.usual_max_attempts(found)
        if found is None or found.options.commit_every is None or task.attempts or not task.has_texts:
            return 1, usual
        # A task that may start only once must not lose its start by another one's crash.
        limit = usual if task.max_attempts is None else task.max_attempts
        return (found.options.commit_every if limit > 1 else 1), usual

    def _start_together(self, by_limit: dict[int, list[ClaimedTask]]) -> tuple[set[int], list[ClaimedTask]]:
        """Start tasks, with one commit for each limit."""
        ids: set[int] = set()
        held: list[ClaimedTask] = []
        for limit, several in by_limit.items():
            started = self._starts.start(several, limit)
            ids |= started.ids
            held += started.held
        return ids, held

    # ---- a round

    def _begin_round(self, tasks: Sequence[ClaimedTask], began_at: float) -> None:
        heartbeat = self._run.heartbeat
        self._waiting = {task.id: task.claim for task in tasks[1:]}
        self._renewed_at = began_at
        self._save_at = began_at + self._save_seconds
        self._finishing.gather(len(tasks))
        heartbeat.waiting = self._called
        heartbeat.save_ended = self._finishing.save_meanwhile
        heartbeat.look_each(self._look_seconds)

    def has_started(self, task: ClaimedTask) -> bool:
        """Whether a task was started with others, and has its turn now."""
        return self._waiting.get(task.id) == task.claim

    def begin_turn(self, task: ClaimedTask) -> Attempt | None:
        """The attempt of a started task that has its turn; None where it is over. Raises DatabaseError."""
        del self._waiting[task.id]
        self._attempts.prepare()
        if self._cancelled_by_id is None:
            return self._run.stats.started(task)
        is_cancelled = self._cancelled_by_id.get(task.id)
        if is_cancelled is None:
            self._reporter.report_lost(task, "before its code ran")
        elif is_cancelled:
            self._finishing.add(Finish(task, CANCELLED, uncount=True), None)
        else:
            return self._run.stats.started(task)
        return None

    def _save(self) -> None:
        """Write the finishes of tasks that have ended, and look what became of the others in the meantime."""
        self._finishing.save_together()
        self._called.clear()
        now = time.monotonic()
        self._save_at = now + self._save_seconds
        waiting = self._run.heartbeat.claimed.started()
        if not waiting:
            return
        if now - self._renewed_at >= self._run.settings.lease_seconds / 6:
            self._batches.renew(waiting)
            self._renewed_at = now
        self._cancelled_by_id = self._run.store.leases.claimed_still(waiting)

    def _end_round(self) -> None:
        self._called.clear()
        if self._save_at == float("inf"):
            return
        self._save_at, self._cancelled_by_id = float("inf"), None
        self._run.heartbeat.save_ended_at, self._run.heartbeat.waiting = float("inf"), ()
        self._finishing.save_together()
