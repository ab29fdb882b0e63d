"""One attempt at a claimed task, as it goes through its life: what is known before its call, and what came of it."""

from __future__ import annotations

from ..model.attempt import Finish
from ..model.task import ClaimedTask
from .call import Failure
from .preparing import Call


class Attempt:
    """One attempt. Life (life.py) makes it, each step fills it in, and Finishing writes its finish."""

    __slots__ = ("call", "failure", "finish", "has_started", "limit", "ran_seconds", "task", "waited_seconds")

    finish: Finish
    """How the attempt ends; there once it does."""

    def __init__(self, task: ClaimedTask, has_started: bool = False) -> None:
        self.task = task
        self.has_started = has_started
        """Whether the start is written: it counts as an attempt from then on."""
        self.call: Call | None = None
        """None until the row is ready to run, and once the attempt has ended."""
        self.limit = 0
        """How often the task may start; 0 until that is known."""
        self.waited_seconds = 0.0
        """From the instant at which the task was ready to its start."""
        self.ran_seconds = 0.0
        self.failure: Failure | None = None
        """What it failed with, even if on_fatal has completed the task."""

    @property
    def is_counted(self) -> bool:
        """Whether it counts as an attempt: not if the row was bad or the task asked to wait."""
        return self.has_started and not self.finish.is_uncounted
