"""A session: one thread's connection, and a dialect's verbs on it."""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from ..errors import DatabaseError
from .retrying import Patience
from .words import Write


class RowsChanged(DatabaseError):
    """A write matched fewer rows than it should; its transaction is rolled back."""

    def __init__(self) -> None:
        super().__init__("rows were changed meanwhile")


class Pace(threading.local):
    """How a thread deals with the database; each thread has its own."""

    session: Session | None = None
    patience: Patience | None = None
    """Only a run's thread and its heartbeat have patience."""
    is_unhurried = False
    """Whether a statement may take any time."""
    answer_seconds = float("inf")
    """The longest wait for an answer, where a dialect would wait longer."""

    @property
    def is_in_run(self) -> bool:
        return self.patience is not None


class Session(ABC):
    """A connection, made when it is first needed and made again after it broke.

    Its verbs raise the driver's own errors, unless they say otherwise; the database makes ours of them.
    """

    def __init__(self) -> None:
        self.connection: Any = None
        self.cursor: Any = None
        self.pid = os.getpid()
        self.in_transaction = False
        self.in_use = threading.RLock()
        """Held for the length of a verb, so that a process that is forked meanwhile leaves the connection alone."""
        self.generation = 0
        """That of the database when it connected."""
        self.used_at = 0.0
        """By time.monotonic."""

    @abstractmethod
    def connect(self, pace: Pace) -> None:
        """Connect, and make the connection ready for use. Raises DatabaseError."""

    @abstractmethod
    def close(self) -> None:
        """Close the connection; swallow the driver's errors."""

    def hasten(self, pace: Pace) -> None:  # noqa: B027
        """Set how long the connection waits for answers. Called before each verb, so it must cost next to nothing."""

    def is_alive(self) -> bool:
        """Ask an idle connection whether it still stands."""
        return True

    @property
    def commits_by_itself(self) -> bool:
        """Whether a statement outside of a transaction is committed when it returns."""
        return True

    def begin(self) -> None:
        self.send("BEGIN")

    def roll_back(self) -> None:
        self.send("ROLLBACK")

    @abstractmethod
    def send(self, sql: str, values: Sequence[Any] = ()) -> Any:
        """Send one composed statement; the cursor that has its rows."""

    def send_joined(self, writes: Sequence[Write], are_apart: bool) -> list[int]:
        """Send composed writes as one transaction in one round trip; how many rows each matched.

        `are_apart`: no write touches the row of another.
        """
        raise NotImplementedError
