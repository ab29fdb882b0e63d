"""The connection that a task's code gets for its own transaction: the part that all dialects share.

The other part of each dialect is in mysql/task_session.py and sqlite/task_session.py.
"""

from __future__ import annotations

import os
import sys
from abc import ABC, abstractmethod
from typing import Any

from ...errors import Fatal

SET_SAVEPOINT = "SAVEPOINT taskserver_task"
RELEASE_SAVEPOINT = "RELEASE SAVEPOINT taskserver_task"
MAY_NOT_END = (
    "a task may not end its transaction itself, as what it writes to taskserver.connection() is committed with its "
    "completion"
)
IDLE = "the task that this connection was for is over"
OURS = ("taskserver", "pymysql")
"""Packages whose frames may stand between a task's code and its connection."""


class TaskSession(ABC):
    """A connection for tasks' own transactions, and the state of the transaction on it."""

    connection: Any
    """The driver's connection, which a task's code gets."""
    most_bytes = float("inf")
    """The longest statement that the server takes."""

    def __init__(self) -> None:
        self.is_lent = False
        """Whether a task's code has the connection: it cannot close it then, and a commit is refused, or noticed."""
        self.is_idle = False
        """Whether the session waits for the next task: code that kept the connection from an earlier one is refused."""
        self.ended_by = ""
        """The words by which the task's code ended its transaction, or tried to; else empty."""
        self.rolled_back_by = ""
        """The error that rolled the transaction back; empty without one, or where the task began anew after it."""

    @abstractmethod
    def stands(self) -> bool:
        """Whether the connection still stands; the server is asked only after a pause."""

    @abstractmethod
    def begin(self) -> None:
        """Begin a transaction, with the savepoint. Raises the driver's errors."""

    @abstractmethod
    def hurry(self, is_in_hurry: bool) -> None:
        """Limit the wait for answers, to statements of ours, which are short; or (False) let a task's take any time."""

    @abstractmethod
    def finished(self) -> None:
        """Note that the transaction was committed; another one may follow."""

    @abstractmethod
    def close(self) -> None:
        """Close the connection, and roll back its open transaction."""

    @abstractmethod
    def is_savepoint_missing(self, error: BaseException | None) -> bool:
        """Whether the driver's error says that the savepoint is missing."""

    @abstractmethod
    def was_rolled_back(self) -> bool:
        """Whether the database rolled the transaction back, where the savepoint is missing and no error told why."""

    def refuse(self, words: str) -> Fatal:
        """The error for a task that tries to end its transaction by these words.

        The session notes the words, as the task may swallow the error.
        """
        self.ended_by = self.ended_by or f"{words}{_where_called()} was refused, and committed nothing"
        return Fatal(f"{MAY_NOT_END}: {words} is refused")

    def notice(self, words: str) -> Fatal:
        """The error for a task that has ended its transaction by these words; the session notes them."""
        self.ended_by = (
            f"{words}{_where_called()} has ended it; if that committed what it had written, a retry writes it again"
        )
        return Fatal(f"{MAY_NOT_END}: {words} has ended it")


def _where_called() -> str:
    """File and line of the task's code that made this call, as a part of a sentence."""
    frame = sys._getframe(2)
    while str(frame.f_globals.get("__name__")).partition(".")[0] in OURS:
        if frame.f_back is None:
            return ""
        frame = frame.f_back
    return f" in {os.path.basename(frame.f_code.co_filename)}, line {frame.f_lineno},"
