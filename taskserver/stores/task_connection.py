"""The connection that a task's code gets for its own transaction: the driver's, with a transaction begun on it.

It serves one task, and is closed after it. A savepoint stands from the transaction's first statement to its last one.
It goes with whatever ends the transaction, so while it stands the transaction is the one that was begun. The other part
of each dialect is in its own task_connection.py.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

SET_SAVEPOINT = "SAVEPOINT taskserver_task"
RELEASE_SAVEPOINT = "RELEASE SAVEPOINT taskserver_task"
ROLLBACK_TO_SAVEPOINT = "ROLLBACK TO SAVEPOINT taskserver_task"


class TaskConnection(ABC):
    """A connection for one task's own transaction."""

    connection: Any
    """The driver's connection."""
    refused = ""
    """The word by which the task's code tried to commit, which was refused; else empty."""
    has_gone_on = False
    """Whether statements were refused since the transaction was gone, with an error that does not say so."""

    def execute(self, composed: str, values: Sequence[Any] = ()) -> Any:
        """Send one composed statement of ours; the cursor that has its rows. Raises the driver's errors."""
        cursor = self.connection.cursor()
        cursor.execute(composed, values)
        return cursor

    def write(self, composed: str, values: Sequence[Any]) -> int:
        """Write by a statement of ours before the transaction, and commit; how many rows it matched.

        Raises the driver's errors.
        """
        matched = int(self.execute(composed, values).rowcount)
        self.connection.commit()
        return matched

    @abstractmethod
    def begin(self) -> None:
        """Begin the transaction, with the savepoint; the task's code has the connection then.

        Raises the driver's errors.
        """

    @abstractmethod
    def take_back(self) -> None:
        """Take the connection back for statements of ours, which are short: they wait less long for an answer."""

    @abstractmethod
    def is_savepoint_missing(self, error: BaseException | None) -> bool:
        """Whether the driver's error says that the savepoint is missing."""

    @property
    def has_ended(self) -> bool:
        """Whether the last answer said that no transaction is open any more; nothing is read for that."""
        return False

    @abstractmethod
    def is_nothing_committed(self) -> bool:
        """Where the savepoint is missing: whether it is known that nothing was committed on this connection.

        Raises the driver's errors.
        """

    @abstractmethod
    def close(self) -> None:
        """Close the connection, and roll back a transaction that is open."""
