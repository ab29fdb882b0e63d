"""Executes tasks that share their commits: `@task(commit_every=N)`.

A round is up to N tasks that stand next to each other in their claim:

    take up the first → start it together with the others → call each when it has its turn → finish all together
                                                          ↘ a second later: finish those that have ended, and go on

The finishes of a round share the commit of the next start.

A started task that has not had its turn stands before all others of its claim (claimed_tasks.py). It is given back as
they are, and its attempt is not counted then. Only tasks that were never started share a round: a task that kills its
worker costs the others of its round one attempt, and none of them shares a round again.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from ..errors import BadTask, ModuleBroken
from ..messages.error_text import describe
from ..model.attempt import Finish
from ..model.task import CANCELLED, ClaimedTask
from ..stores.queue.batches import Batches
from .alone import AloneExecution
from .attempts import Attempts, ReadyTask
from .callables import TaskCallable
from .finishing import Finishing
from .preparing import prepare
from .reporting import Reporter
from .run_context import RunContext
from .starts import Started, Starts
from .stats import Attempt

MAX_ROUND_BYTES = 2 * 1024 * 1024
"""Arguments of one round, as JSON: as objects they may take thirty times as much memory."""
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
        self._waiting: dict[int, ReadyTask] = {}
        """Started tasks that have not had their turn, by id."""
        self._called: list[ClaimedTask] = []
        """Tasks that have had their turn since finishes were written last."""
        # The lease of a task that has its turn is to last for as long as those of other tasks do: see _save.
        self._save_seconds = min(SAVE_SECONDS, run.settings.lease_seconds / 12)
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
        self._close_round()  # where the rest of it was given back
        attempt = attempt or self._start(ready)
        if attempt is not None:
            self._call(ready, attempt)
            self._go_on()

    def has_started(self, task: ClaimedTask) -> bool:
        """Whether a task that has its turn was started with others."""
        ready = self._waiting.get(task.id)
        return ready is not None and ready.task.claim == task.claim

    def execute_started(self, task: ClaimedTask) -> None:
        """Call a task that was started with others. Raises DatabaseError."""
        ready = self._waiting.pop(task.id)
        self._attempts.prepare()
        is_cancelled = False if self._cancelled_by_id is None else self._cancelled_by_id.get(task.id)
        if is_cancelled is None:
            self._reporter.report_lost(task, "before its code ran")
        elif is_cancelled:
            self._finishing.add(Finish(task, CANCELLED, uncount=True), None)
        else:
            self._call(ready, self._run.stats.started(task))
        self._go_on()

    def _call(self, ready: ReadyTask, attempt: Attempt) -> None:
        self._run.heartbeat.save_ended_at = self._save_at
        self._alone.execute(ready, attempt)
        self._called.append(ready.task)

    def _go_on(self) -> None:
        """Write finishes once their second is over; those of a round that is over go with the next start."""
        if not self._run.heartbeat.claimed.has_started:
            self._close_round()
        elif time.monotonic() >= self._save_at:
            self._save()

    # ---- start a round

    def _start(self, ready: ReadyTask) -> Attempt | None:
        """Start a task, alone or with others. Its attempt; None where its claim is gone."""
        first, others, started = ready.task, list[ReadyTask](), Started(set(), [ready.task])
        try:
            self._take_others(ready, others)
            if others:
                started = self._start_round(ready, others)
        except BaseException:
            # A release leaves those alone that were started.
            self._run.heartbeat.claimed.put_back(*(other.task for other in others))
            raise
        if first.id in started.ids:
            return self._attempts.attempt(first, has_started=True)
        # Alone; or somebody holds its row, which has its turn now, and is waited for as any other.
        return self._attempts.start(first, ready.max_attempts) if first in started.held else None

    def _take_others(self, ready: ReadyTask, others: list[ReadyTask]) -> None:
        """Take the tasks that can be started with this one, up to the first one that cannot.

        Bad rows between them are over with that.
        """
        claimed = self._run.heartbeat.claimed
        most, most_bytes = self._room(ready.task, ready.call.callable), MAX_ROUND_BYTES - ready.task.text_bytes
        while len(others) + 1 < most and (task := claimed.take()) is not None:
            room = self._room(task, self._run.callables.find_imported(task.task))
            most_bytes -= task.text_bytes
            if room < len(others) + 2 or most_bytes < 0 or self._run.limits.is_too_large():
                claimed.put_back(task)
                break
            try:
                call = prepare(task, self._run.callables)
            except BadTask as error:
                if self._run.needs_newer_code(task):  # as its own turn will tell
                    claimed.put_back(task)
                    break
                self._run.result.taken += 1
                self._finishing.add(Finish(task, describe(error)), None)
            except (ModuleBroken, MemoryError):  # as its own turn will tell
                claimed.put_back(task)
                break
            else:
                most = min(most, room)
                others.append(ReadyTask(task, call, self._attempts.max_attempts(task, call)))

    def _room(self, task: ClaimedTask, found: TaskCallable | None) -> int:
        """The most tasks that may be in a round with this one: 1 where it is to be started alone."""
        if found is None or found.options.commit_every is None or task.attempts or not task.has_texts:
            return 1
        if task.is_undated:  # as its own turn will tell
            return 1
        # A task that may start only once must not lose its start by another one's crash.
        limit = self._attempts.usual_max_attempts(found) if task.max_attempts is None else task.max_attempts
        return found.options.commit_every if limit > 1 else 1

    def _start_round(self, ready: ReadyTask, others: Sequence[ReadyTask]) -> Started:
        """Start tasks together; those others wait for their turn then that could be started."""
        began_at = time.monotonic()
        started = self._start_together([ready, *others])
        heartbeat = self._run.heartbeat
        heartbeat.claimed.put_back(*(task for task in started.held if task.id != ready.task.id))
        waiting = [other for other in others if other.task.id in started.ids]
        heartbeat.claimed.put_started(other.task for other in waiting)
        self._waiting = {other.task.id: other for other in waiting}
        self._renewed_at = began_at
        self._save_at = began_at + self._save_seconds
        self._finishing.gather(len(waiting) + 1)
        heartbeat.waiting, heartbeat.save_ended = self._called, self._finishing.save_meanwhile
        return started

    def _start_together(self, several: Sequence[ReadyTask]) -> Started:
        """Start tasks, with one commit for each limit of attempts that their callables have."""
        by_limit: dict[int, list[ClaimedTask]] = {}
        for task, call, _ in several:
            by_limit.setdefault(self._attempts.usual_max_attempts(call.callable), []).append(task)
        each = [self._starts.start(tasks, limit, self._finishing) for limit, tasks in by_limit.items()]
        return Started(set().union(*(one.ids for one in each)), [task for one in each for task in one.held])

    # ---- finish a round

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
        self._cancelled_by_id = self._run.store.finishes.claimed_still(waiting)

    def _close_round(self) -> None:
        self._called.clear()
        self._save_at, self._cancelled_by_id = float("inf"), None
        self._run.heartbeat.save_ended_at, self._run.heartbeat.waiting = float("inf"), ()
        self._finishing.gather(0)
