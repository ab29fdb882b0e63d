"""One attempt at a claimed task: what is known before its call, and how it ended."""

from __future__ import annotations

from ..model.attempt import Finish
from ..model.task import ClaimedTask
from .call import Failure
from .preparing import Call


class Attempt:
    """One attempt. Life (life.py) creates it, each step fills it in, and Finishing writes its finish."""

    __slots__ = ("call", "failure", "finish", "has_started", "limit", "ran_seconds", "task", "waited_seconds")

    finish: Finish
    """How the attempt ended; set when it ends."""

    def __init__(self, task: ClaimedTask, has_started: bool = False) -> None:
        self.task = task
        self.has_started = has_started
        """Whether the start is written: from then on it counts as an attempt."""
        self.call: Call | None = None
        """None until the row is ready to run, and once the attempt has ended."""
        self.limit = 0
        """How often the task may start; 0 until that is known."""
        self.waited_seconds = 0.0
        """From the time when the task was ready until its start."""
        self.ran_seconds = 0.0
        self.failure: Failure | None = None
        """Set even if on_fatal has completed the task."""

    @property
    def is_counted(self) -> bool:
        """Whether it counts: not if the row was bad or the task asked to wait."""
        return self.has_started and not self.finish.is_uncounted
