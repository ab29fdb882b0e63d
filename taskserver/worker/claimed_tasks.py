"""The tasks of one claim that wait for their turn: the run takes them one by one, or the heartbeat gives them back.

Some of them may be started already, with others of their round (shared.py). They come first.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from logging import getLogger

from ..model.task import ClaimedTask
from ..stores import Store
from ..stores.queue.batches import Batches

LOG = getLogger("taskserver")


class ClaimedTasks:
    """Claimed tasks of which no code has run; two threads take from them."""

    def __init__(self, tasks: Sequence[ClaimedTask], claimed_at: float, lease_seconds: float) -> None:
        """`claimed_at` is the instant of the claim, by time.monotonic."""
        self._unstarted = deque(tasks)
        self._started: deque[ClaimedTask] = deque()
        self._ids_started: set[int] = set()
        """All that were ever among them."""
        self._to_unstart: deque[ClaimedTask] = deque()
        """Started tasks that are to be given back, and get no turn any more: others may hold their rows for now."""
        self._releases: deque[object] = deque()
        """One for each thread that has tasks in hand to give them back."""
        self.lease_ends_at = claimed_at + lease_seconds
        self.give_back_at = claimed_at + lease_seconds / 2
        """By time.monotonic: nobody sits on tasks that have not run for longer than half a lease."""
        self.released = 0
        """How many tasks were given back so far."""

    def __bool__(self) -> bool:
        """Whether there are tasks, also those that a thread is giving back just now, and may have to put back."""
        return bool(self._releases or self._unstarted or self._started or self._to_unstart)

    def is_stale(self) -> bool:
        """Whether the tasks are to be given back rather than started."""
        return time.monotonic() >= self.give_back_at

    def take(self) -> ClaimedTask | None:
        """The next task; None when none is left."""
        # Each step on the deque is one for all threads, so that a task is either taken or given back.
        return _next(self._started) or _next(self._unstarted)

    @property
    def has_started(self) -> bool:
        """Whether tasks are started, and have not had their turn."""
        return bool(self._started)

    def started(self) -> list[ClaimedTask]:
        """The tasks that are started, and have not had their turn."""
        return list(self._started)

    def put_started(self, tasks: Iterable[ClaimedTask]) -> None:
        """Put tasks that were taken, and are started now, before all that are not."""
        started = list(tasks)
        self._ids_started.update(task.id for task in started)
        self._started.extend(started)

    def take_alike(self, name: str, count: int, most_bytes: int) -> list[ClaimedTask]:
        """Up to `count` tasks of this name that were never started, wherever they stand; in their order.

        Their arguments and stages have at most so many bytes together.
        """
        taken: list[ClaimedTask] = []
        for task in tuple(self._unstarted):
            if len(taken) >= count:
                break
            if task.task == name and not task.attempts:
                most_bytes -= task.text_bytes
                if most_bytes < 0:
                    break
                try:
                    self._unstarted.remove(task)
                except ValueError:  # the heartbeat gives it back
                    continue
                taken.append(task)
        return taken

    def put_back(self, *tasks: ClaimedTask) -> None:
        """Put tasks that were taken before all others that are not started, in this order."""
        self._unstarted.extendleft(reversed(tasks))

    def put_back_unrun(self, task: ClaimedTask) -> None:
        """Put a task that was taken, and of which no code has run, where it stood, be it started."""
        if task.id in self._ids_started:
            self._started.appendleft(task)
        else:
            self.put_back(task)

    def put_last(self, tasks: Iterable[ClaimedTask]) -> None:
        """Put tasks that were taken behind all others."""
        self._unstarted.extend(tasks)

    def release(self, store: Store) -> None:
        """Give back all of the tasks. Raises DatabaseError, and then still has them.

        It still has started tasks, too, whose rows others hold, as a page whose transaction is open.
        """
        while (task := _next(self._started)) is not None:
            self._to_unstart.append(task)
        self._release(self._to_unstart, partial(self._unstart, Batches(store)))
        self._release(self._unstarted, store.claims.release)

    def _unstart(self, batches: Batches, tasks: list[ClaimedTask]) -> int:
        unstarted = batches.unstart(tasks)
        if unstarted < len(tasks):
            still = batches.started(tasks)
            self._to_unstart.extend(task for task in tasks if task.id in still)
        return unstarted

    def _release(self, several: deque[ClaimedTask], release: Callable[[list[ClaimedTask]], int]) -> None:
        tasks: list[ClaimedTask] = []
        self._releases.append(several)
        try:
            while (task := _next(several)) is not None:
                tasks.append(task)
            if tasks:
                released = release(tasks)
                self.released += released
                LOG.debug("released %d tasks", released)
        except BaseException:
            several.extend(tasks)
            raise
        finally:
            self._releases.pop()


def _next(several: deque[ClaimedTask]) -> ClaimedTask | None:
    # One step for all threads, where a look whether there is one would be another.
    try:
        return several.popleft()
    except IndexError:
        return None
