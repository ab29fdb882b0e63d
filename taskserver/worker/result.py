"""The result of a run: its counts, and why it ended."""

from __future__ import annotations

from enum import Enum


class Reason(str, Enum):
    """Why a run ended."""

    EMPTY = "empty"
    """No new task is left in its groups."""
    MAX_TASKS = "max_tasks"
    MAX_TIME = "max_time"
    MAX_MEMORY = "max_memory"
    CROWDED = "crowded"
    """Other sessions locked all new tasks for longer than the run's patience."""
    HANDED_OVER = "handed_over"
    """Another worker waited for the slot of this one, which lingered (worker.py --linger)."""
    OUTDATED = "outdated"
    """A task needs newer code, which the files have: the next run imports it."""
    STOPPED = "stopped"
    """The run was asked to stop, for example by a signal."""
    ERROR = "error"
    """An error ended the run, such as a database that went away."""


BECAUSE = {
    Reason.EMPTY: "no new task is left",
    Reason.MAX_TASKS: "it reached its limit of tasks",
    Reason.MAX_TIME: "its time may be too short for another task",
    Reason.MAX_MEMORY: "it reached its limit of memory",
    Reason.CROWDED: "other sessions lock all new tasks",
    Reason.HANDED_OVER: "another worker waits for its slot",
    Reason.OUTDATED: "the code of tasks has changed",
    Reason.STOPPED: "it was asked to stop",
    Reason.ERROR: "an error ended it",
}


def counts_in_words(done: int, failed: int, fatal: int, lost: int) -> str:
    """Counts for a person: `3 done, 1 to be retried, 0 fatal`."""
    more = (f", {failed} to be retried" if failed else "", f", {lost} lost" if lost else "")
    return f"{done} done{more[0]}, {fatal} fatal{more[1]}"


class RunResult:
    """The counts of a run, which grow while it runs; `reason` and `seconds` are set at its end."""

    def __init__(self) -> None:
        self.taken = 0
        """Tasks that the run took, bad rows too."""
        self.done = 0
        self.failed = 0
        """Attempts that failed, whose tasks will be retried."""
        self.fatal = 0
        self.cancelled = 0
        """Tasks that a person cancelled while the run had them."""
        self.postponed = 0
        """Tasks that raised Later, which counts no attempt."""
        self.lost = 0
        """Tasks whose claim this run lost; another run counts their ends."""
        self.released = 0
        """Tasks that were claimed and released unstarted."""
        self.seconds = 0.0
        self.reason: Reason | None = None

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in vars(self).items())
        return f"RunResult({shown})"

    def in_words(self) -> str:
        words = counts_in_words(self.done, self.failed, self.fatal, self.lost)
        words += f", {self.cancelled} cancelled" if self.cancelled else ""
        return f"{words}, {self.postponed} postponed" if self.postponed else words

    def end(self, reason: Reason, seconds: float) -> None:
        self.reason = reason
        self.seconds = seconds

    def all_counts(self) -> tuple[int, ...]:
        """Taken, done, failed, fatal, lost and released, as a running worker shows them."""
        return self.taken, self.done, self.failed, self.fatal, self.lost, self.released

    def counts(self) -> tuple[int, ...]:
        """Taken, done, fatal, lost and released for the record of runs; the rest of `taken` failed."""
        return self.taken - self.cancelled - self.postponed, self.done, self.fatal, self.lost, self.released
