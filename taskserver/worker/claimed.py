"""The pending tasks of one claim: the run takes them one by one, or the heartbeat releases them.

Some may be started already, with others of their round (rounds.py): these come first.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from logging import getLogger
from threading import Lock

from ..model.task import ClaimedTask
from ..stores import Store
from ..stores.queue.batches import Batches

LOG = getLogger("taskserver")

MAX_TURN_SECONDS = 1.0
"""After this time the rest of a claim is released: its tasks are slow, other workers may take them, and more urgent
tasks must not wait behind them."""


class Claimed:
    """Claimed tasks whose code has not run. Two threads take from them, under a lock."""

    is_claimed_again = False
    """Whether the tasks are released for a larger claim, as more of them run together."""

    def __init__(self, tasks: Sequence[ClaimedTask], claimed_at: float, lease_seconds: float) -> None:
        """`claimed_at` is by time.monotonic."""
        self._lock = Lock()
        self._waiting = deque(tasks)
        self._started_ids: set[int] = set()
        """Of all tasks that were ever started here."""
        self._unreleased: list[ClaimedTask] = []
        """Started tasks whose release is uncertain: they do not run, as other workers may have them."""
        self._leave_at = claimed_at + MAX_TURN_SECONDS
        self.lease_ends_at = claimed_at + lease_seconds
        self.give_back_at = claimed_at + lease_seconds / 2
        """By time.monotonic: no worker holds pending tasks for longer than half a lease."""
        self.released = 0
        """Number of released tasks so far."""

    def __bool__(self) -> bool:
        with self._lock:  # a running release may have to put tasks back
            return bool(self._waiting or self._unreleased)

    def is_stale(self) -> bool:
        """Whether to release the tasks instead of starting them; later if a round is started."""
        now = time.monotonic()
        return now >= self.give_back_at or (now >= self._leave_at and not self.has_started)

    # ---- for the run

    def take(self) -> ClaimedTask | None:
        with self._lock:
            return self._waiting.popleft() if self._waiting else None

    def take_if(self, matches: Callable[[ClaimedTask], bool]) -> ClaimedTask | None:
        with self._lock:
            return self._waiting.popleft() if self._waiting and matches(self._waiting[0]) else None

    def take_alike(self, name: str, count: int, most_bytes: int) -> list[ClaimedTask]:
        """Up to `count` tasks of this name that were never started, in their order.

        `most_bytes` is the limit for all their arguments and stages together.
        """
        taken: list[ClaimedTask] = []
        with self._lock:
            for task in self._waiting:
                if task.task == name and not task.attempts:
                    most_bytes -= task.text_bytes
                    if len(taken) == count or most_bytes < 0:
                        break
                    taken.append(task)
            ids = {task.id for task in taken}
            self._waiting = deque(task for task in self._waiting if task.id not in ids)
        return taken

    def put_back(self, tasks: Sequence[ClaimedTask]) -> None:
        """Put taken tasks back before all others, in this order; a release skips those that were started after all."""
        with self._lock:
            self._waiting.extendleft(reversed(tasks))

    # ---- started tasks that wait for their turn

    def put_started(self, tasks: Sequence[ClaimedTask]) -> None:
        """Put started tasks, whose code has not run, before all others."""
        with self._lock:
            self._started_ids.update(task.id for task in tasks)
            self._waiting.extendleft(reversed(tasks))

    def started(self) -> list[ClaimedTask]:
        with self._lock:
            return [task for task in self._waiting if task.id in self._started_ids]

    def was_started(self, task: ClaimedTask) -> bool:
        return task.id in self._started_ids

    @property
    def has_started(self) -> bool:
        with self._lock:
            return bool(self._waiting) and self._waiting[0].id in self._started_ids

    # ---- release

    def release(self, store: Store) -> None:
        """Release all tasks. Keeps them if it raises DatabaseError, and started tasks whose rows others lock."""
        with self._lock:
            started = [*self._unreleased, *(task for task in self._waiting if task.id in self._started_ids)]
            if started:
                self._waiting = deque(task for task in self._waiting if task.id not in self._started_ids)
                self._unreleased, batches = started, Batches(store)
                unstarted = batches.unstart(started)
                still = batches.started(started) if unstarted < len(started) else ()
                self._unreleased = [task for task in started if task.id in still]
                self.released += unstarted
            if self._waiting:
                released = store.claims.release(self._waiting)
                self._waiting.clear()
                self.released += released
                LOG.debug("released %d tasks", released)
