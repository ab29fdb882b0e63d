"""The tasks of one claim that wait for their turn: the run takes them one by one, or the heartbeat gives them back.

Some may be started already, with others of their round (rounds.py): these come first.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from logging import getLogger
from threading import Lock

from ..model.task import ClaimedTask
from ..stores import Store
from ..stores.queue.batches import Batches

LOG = getLogger("taskserver")


class Claimed:
    """Claimed tasks of which no code has run. Two threads take from them: under a lock, so that each task goes once."""

    was_full = False
    """Whether the claim got as many tasks as it asked for."""
    is_claimed_again = False
    """Whether the next claim takes its tasks again at once, as more of them run together."""

    def __init__(self, tasks: Sequence[ClaimedTask], claimed_at: float, lease_seconds: float) -> None:
        """`claimed_at` is the instant of the claim, by time.monotonic."""
        self._lock = Lock()
        self._unstarted = deque(tasks)
        self._started: deque[ClaimedTask] = deque()
        self._started_ids: set[int] = set()
        """Of all that were ever started here."""
        self._are_given_back = False
        """Whether a release of the started ones was tried: they get no turn, as some may be new again, and others'."""
        self.lease_ends_at = claimed_at + lease_seconds
        self.give_back_at = claimed_at + lease_seconds / 2
        """By time.monotonic: nobody sits on tasks that have not run for longer than half a lease."""
        self.released = 0
        """How many tasks were given back so far."""

    def __bool__(self) -> bool:
        with self._lock:  # a release that is under way may have to put tasks back
            return bool(self._unstarted or self._started)

    def is_stale(self) -> bool:
        """Whether the tasks are to be given back rather than started."""
        return time.monotonic() >= self.give_back_at

    # ---- for the run

    def take(self) -> ClaimedTask | None:
        """The next task; None if none is left."""
        with self._lock:
            if self._started and not self._are_given_back:
                return self._started.popleft()
            return self._unstarted.popleft() if self._unstarted else None

    def take_if(self, suits: Callable[[ClaimedTask], bool]) -> ClaimedTask | None:
        """The next task that is not started, if it suits."""
        with self._lock:
            return self._unstarted.popleft() if self._unstarted and suits(self._unstarted[0]) else None

    def take_alike(self, name: str, count: int, most_bytes: int) -> list[ClaimedTask]:
        """Up to `count` tasks of this name that were never started, wherever they stand; in their order.

        Their arguments and stages have at most so many bytes together.
        """
        taken: list[ClaimedTask] = []
        with self._lock:
            for task in self._unstarted:
                if task.task == name and not task.attempts:
                    most_bytes -= task.text_bytes
                    if len(taken) == count or most_bytes < 0:
                        break
                    taken.append(task)
            ids = {task.id for task in taken}
            self._unstarted = deque(task for task in self._unstarted if task.id not in ids)
        return taken

    def put_back(self, *tasks: ClaimedTask, are_started: bool = False) -> None:
        """Put tasks that were taken before all others, in this order.

        If one of them is started after all, a release leaves it, unless `are_started` says so and no code of it ran.
        """
        with self._lock:
            if are_started:
                self._started_ids.update(task.id for task in tasks)
            (self._started if are_started else self._unstarted).extendleft(reversed(tasks))

    def put_last(self, tasks: Iterable[ClaimedTask]) -> None:
        """Put tasks that were taken behind all others that are not started."""
        with self._lock:
            self._unstarted.extend(tasks)

    # ---- tasks that are started, and wait for their turn

    def put_started(self, tasks: Iterable[ClaimedTask]) -> None:
        """Put tasks that were taken, and are started now, before all that are not."""
        with self._lock:
            self._started.extend(tasks)
            self._started_ids.update(task.id for task in self._started)

    @property
    def has_started(self) -> bool:
        """Whether any wait for their turn."""
        return bool(self._started) and not self._are_given_back

    def started(self) -> list[ClaimedTask]:
        """All of them."""
        with self._lock:
            return [] if self._are_given_back else list(self._started)

    def was_started(self, task: ClaimedTask) -> bool:
        """Whether a task that was taken is started."""
        return task.id in self._started_ids

    # ---- release

    def release(self, store: Store) -> None:
        """Give back all of the tasks. Raises DatabaseError, and then still has them.

        It also still has started tasks whose rows others hold, as a page whose transaction is open.
        """
        with self._lock:
            if self._started:
                self._are_given_back = True
                batches, started = Batches(store), list(self._started)
                unstarted = batches.unstart(started)
                still = batches.started(started) if unstarted < len(started) else ()
                self._started = deque(task for task in started if task.id in still)
                self.released += unstarted
            if self._unstarted:
                released = store.claims.release(self._unstarted)
                self._unstarted.clear()
                self.released += released
                LOG.debug("released %d tasks", released)
