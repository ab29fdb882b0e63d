"""The connection that a task's code gets for its own transaction, whatever the database.

The dialects' own are in mysql_task_session.py and sqlite_task_session.py.
"""

from __future__ import annotations

import os
import sys
from abc import ABC, abstractmethod
from typing import Any

from ..errors import Fatal

SET_SAVEPOINT = "SAVEPOINT taskserver_task"
RELEASE_SAVEPOINT = "RELEASE SAVEPOINT taskserver_task"
MAY_NOT_END = (
    "a task may not end its transaction itself, as what it writes to taskserver.connection() is committed with its "
    "completion"
)
IDLE = "the task that this connection was for is over"
OURS = ("taskserver", "pymysql")
"""Packages between a task's code and its connection."""


class TaskSession(ABC):
    """A connection for tasks, as its dialect has it, and what is known of the transaction on it."""

    connection: Any
    """The driver's, which a task's code gets."""
    most_bytes = float("inf")
    """Of a statement."""

    def __init__(self) -> None:
        self.is_lent = False
        """Whether a task's code has it: it cannot be closed then, and a commit is refused, or noticed."""
        self.is_idle = False
        """Whether it waits for the next task: whoever kept it from the one before is refused."""
        self.ended_by = ""
        """The words by which that code ended its transaction, or tried to; else empty."""
        self.rolled_back_by = ""
        """What rolled it back but the task; empty where nothing did, or where the task began anew after it."""

    @abstractmethod
    def stands(self) -> bool:
        """Ask whether it still does, where it was idle."""

    @abstractmethod
    def begin(self) -> None:
        """Begin a transaction, with the savepoint. Raises what the driver raises."""

    @abstractmethod
    def hurry(self, is_in_hurry: bool) -> None:
        """Whether statements are ours from now on, which are short, or a task's, which may take their time."""

    @abstractmethod
    def finished(self) -> None:
        """The transaction was committed; another one may follow."""

    @abstractmethod
    def close(self) -> None:
        """Let go of it, and roll back what is not committed."""

    @abstractmethod
    def is_savepoint_missing(self, error: BaseException | None) -> bool:
        """Whether the driver says so with this error."""

    @abstractmethod
    def was_rolled_back(self) -> bool:
        """Where the savepoint is missing, and nothing tells why: whether it was the database."""

    def refuse(self, words: str) -> Fatal:
        """What the task gets that would end its transaction by these words; noted, as it may keep that to itself."""
        self.ended_by = self.ended_by or f"{words}{_place()} was refused, and committed nothing"
        return Fatal(f"{MAY_NOT_END}: {words} is refused")

    def notice(self, words: str) -> Fatal:
        """What it gets that has ended its transaction by them."""
        self.ended_by = (
            f"{words}{_place()} has ended it; if that committed what it had written, a retry writes it again"
        )
        return Fatal(f"{MAY_NOT_END}: {words} has ended it")


def _place() -> str:
    """Where in a task's code this was asked for, in words."""
    frame = sys._getframe(2)
    while str(frame.f_globals.get("__name__")).partition(".")[0] in OURS:
        if frame.f_back is None:
            return ""
        frame = frame.f_back
    return f" in {os.path.basename(frame.f_code.co_filename)}, line {frame.f_lineno},"
