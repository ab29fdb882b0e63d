"""The tasks of one claim that were not started yet."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Sequence
from logging import getLogger

from .lifecycle import ClaimedTask
from .stores import Store

LOG = getLogger("taskserver")


class Unstarted:
    """Those tasks: the runner takes them, or the heartbeat gives them back."""

    def __init__(self, tasks: Sequence[ClaimedTask], claimed_at: float, lease_seconds: float) -> None:
        self._unstarted = deque(tasks)
        self.lease_ends_at = claimed_at + lease_seconds
        self.give_back_at = claimed_at + lease_seconds / 2
        """By time.monotonic: nobody sits on unstarted tasks for longer than half a lease."""
        self.released = 0

    def __len__(self) -> int:
        return len(self._unstarted)

    def is_stale(self) -> bool:
        return time.monotonic() >= self.give_back_at

    def take(self) -> ClaimedTask | None:
        """The next one; None when none is left."""
        # Each of these is one step for all threads, so that a task is either taken or given back.
        try:
            return self._unstarted.popleft()
        except IndexError:
            return None

    def take_alike(self, name: str, most: int) -> list[ClaimedTask]:
        """Up to so many more of this name, wherever they stand, that were never started; in their order."""
        taken: list[ClaimedTask] = []
        for task in tuple(self._unstarted):
            if len(taken) >= most:
                break
            if task.task == name and not task.attempts:
                try:
                    self._unstarted.remove(task)
                except ValueError:  # the heartbeat gives it back
                    continue
                taken.append(task)
        return taken

    def put_back(self, task: ClaimedTask) -> None:
        self._unstarted.appendleft(task)

    def put_last(self, tasks: Iterable[ClaimedTask]) -> None:
        self._unstarted.extend(tasks)

    def release(self, store: Store) -> None:
        """Give back all of them. Raises DatabaseError, and then still has them."""
        tasks = []
        while (task := self.take()) is not None:
            tasks.append(task)
        if not tasks:
            return
        try:
            released = store.release(tasks)
        except BaseException:
            self._unstarted.extend(tasks)
            raise
        self.released += released
        LOG.debug("released %d tasks", released)
