"""What a run did, and why it ended."""

from __future__ import annotations

from enum import Enum

FATAL = {"is_fatal": True}
"""Marks the log record of a task that became fatal, as a worker shows only so many of them."""


class Reason(str, Enum):
    """Why a run ended."""

    EMPTY = "empty"
    """No new task was left in its groups."""
    MAX_TASKS = "max_tasks"
    MAX_TIME = "max_time"
    MAX_MEMORY = "max_memory"
    CROWDED = "crowded"
    """New tasks were there, and others held them for all the time that it was willing to wait."""
    STOPPED = "stopped"
    """It was asked to stop, as by a signal."""
    ERROR = "error"
    """An error ended it, such as a database that went away."""


class RunResult:
    """What a run did. Counts grow while it runs; `reason` stands once it ended."""

    def __init__(self) -> None:
        self.taken = 0
        """Tasks that it took up, bad rows too."""
        self.done = 0
        self.failed = 0
        """Will be tried again."""
        self.fatal = 0
        self.lost = 0
        """Taken over by another worker while this one had them; that one tells what became of them."""
        self.released = 0
        """Claimed, and given back unstarted."""
        self.seconds = 0.0
        self.reason: Reason | None = None

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in vars(self).items())
        return f"RunResult({shown})"

    def end(self, reason: Reason, seconds: float) -> None:
        self.reason = reason
        self.seconds = seconds

    def counts(self) -> tuple[int, ...]:
        """As the record of runs has them."""
        return self.taken, self.done, self.fatal, self.lost, self.released
