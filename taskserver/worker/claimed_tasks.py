"""The tasks of one claim that are not started yet: the run takes them one by one, or the heartbeat gives them back."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Sequence
from logging import getLogger

from ..model.task import ClaimedTask
from ..stores import Store

LOG = getLogger("taskserver")


class ClaimedTasks:
    """Claimed, unstarted tasks; two threads take from them."""

    def __init__(self, tasks: Sequence[ClaimedTask], claimed_at: float, lease_seconds: float) -> None:
        """`claimed_at` is the instant of the claim, by time.monotonic."""
        self._unstarted = deque(tasks)
        self.lease_ends_at = claimed_at + lease_seconds
        self.give_back_at = claimed_at + lease_seconds / 2
        """By time.monotonic: nobody sits on unstarted tasks for longer than half a lease."""
        self.released = 0
        """How many tasks were given back so far."""

    def __len__(self) -> int:
        return len(self._unstarted)

    def is_stale(self) -> bool:
        """Whether the tasks are to be given back rather than started."""
        return time.monotonic() >= self.give_back_at

    def take(self) -> ClaimedTask | None:
        """The next task; None when none is left."""
        # Each step on the deque is one for all threads, so that a task is either taken or given back.
        try:
            return self._unstarted.popleft()
        except IndexError:
            return None

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
        """Put tasks that were taken before all others, in this order."""
        self._unstarted.extendleft(reversed(tasks))

    def put_last(self, tasks: Iterable[ClaimedTask]) -> None:
        """Put tasks that were taken behind all others."""
        self._unstarted.extend(tasks)

    def release(self, store: Store) -> None:
        """Give back all of the tasks. Raises DatabaseError, and then still has them."""
        tasks = []
        while (task := self.take()) is not None:
            tasks.append(task)
        if not tasks:
            return
        try:
            released = store.claims.release(tasks)
        except BaseException:
            self._unstarted.extend(tasks)
            raise
        self.released += released
        LOG.debug("released %d tasks", released)
