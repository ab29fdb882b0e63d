"""A task's own transaction: begun before its code runs, and committed together with the task's completion.

The transaction has a connection of its own, so that the run goes on with leases and failures meanwhile. The task's
writes and the end of its row are one commit, so a worker or a database that dies has done both or neither. The row of
the task is written last, by its claim: where the lease was lost the write matches nothing, and all is rolled back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...errors import Conflict, DatabaseError, Fatal, Unavailable
from ...model.attempt import Finish, Outcome
from ...model.task import ClaimedTask
from ..database.database import P, T
from ..database.retrying import RetryPolicy, Scope
from ..database.task_connection import RELEASE_SAVEPOINT, TaskConnection
from .store import Store

COMMIT = "COMMIT /* of a task, with its completion */"
"""A text by which an administrator, or a test, knows it from others."""

MAY_NOT_END = (
    "a task may not end its transaction itself, as what it writes to taskserver.connection() is committed with its "
    "completion"
)
REFUSED = f"{MAY_NOT_END}: commit() or COMMIT was refused, and committed nothing"
ENDED = (
    f"{MAY_NOT_END}: it did, by COMMIT, BEGIN or a statement that commits by itself, as CREATE TABLE does, or what "
    "ended it cannot be known; what that committed a retry writes again"
)
ROLLED_BACK = (
    "its transaction was rolled back, and it went on: by rollback(), or by the database after an error, as a deadlock, "
    "that it kept to itself; ROLLBACK TO taskserver_task undoes its writes, and the transaction goes on"
)


class Transactions:
    """The transactions of one run's tasks, one after the other, each on a connection of its own."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._database = store.database
        self._task_connection: TaskConnection | None = None

    @property
    def connection(self) -> Any:
        """The driver's connection, for the task's code."""
        return self._open.connection

    @property
    def _open(self) -> TaskConnection:
        assert self._task_connection is not None
        return self._task_connection

    @property
    def has_gone_on(self) -> bool:
        """Whether the task's statements were refused, as its transaction was gone."""
        return self._open.has_gone_on

    # ---- before the task's code

    IS_OURS = "SELECT 1 FROM {table} WHERE id = ? AND status = 1 AND claim = ?"

    def open(self) -> None:
        """Open a connection. Raises DatabaseError."""
        self._task_connection = self._tried((Conflict, Unavailable), self._database.open_task_connection)

    def begin(self, task: ClaimedTask) -> bool:
        """Begin the transaction of a started task. False where the task is not ours any more.

        That is asked only where the database has one writer: the wait for its lock may have been longer than the lease.
        Raises DatabaseError.
        """
        if self._task_connection is None:
            self.open()
        self._tried((Conflict,), self._open.begin)
        if not self._store.has_one_writer:
            return True
        return bool(self._database.fetch(self.IS_OURS, (task.id, task.claim)))

    def _tried(self, kinds: tuple[type[DatabaseError], ...], do: Callable[[], T]) -> T:
        """Do something; again after an error of these kinds, with the patience of the run."""
        tries = self._database.tries(RetryPolicy(Scope.STATEMENT, self._database.conflict_seconds))
        while True:
            try:
                return self._translated(do)
            except kinds as error:
                if not tries.go_on_after(error):
                    raise

    # ---- after the task's code

    def check(self) -> None:
        """Raises Fatal where the task may have committed by itself, and DatabaseError where all was rolled back."""
        opened = self._open
        opened.take_back()
        if opened.refused:
            raise Fatal(REFUSED)
        try:
            self._execute(RELEASE_SAVEPOINT)
        except DatabaseError as error:
            if not opened.is_savepoint_missing(error.__cause__):
                self.check_unread()
                raise
            if self._translated(opened.is_nothing_committed):
                raise Conflict(ROLLED_BACK) from error
            raise Fatal(ENDED) from error

    def check_unread(self) -> None:
        """The same of a connection that broke, or may not be read: by its last answer. Raises Fatal."""
        if self._open.has_ended:
            raise Fatal(ENDED)

    def commit(self, finish: Finish, outcome: Outcome) -> Outcome:
        """Commit the task's writes and its completion; what the completion came to, as its row tells.

        Raises DatabaseError where nothing was committed.
        """
        try:
            self._execute(COMMIT)
        except DatabaseError:
            self.close()
            # The broken transaction has the row's lock for as long as it may still be committed.
            found = self._store.finishes.find_out(finish, outcome)
            if found is None:
                raise
            return found
        return outcome

    def close(self) -> None:
        """Close the connection, and so roll back its open transaction."""
        closing, self._task_connection = self._task_connection, None
        if closing is not None:
            closing.close()

    # ---- statements

    def _execute(self, sql: str) -> None:
        # Not through Database.execute: a statement here must not be mended by sending it again in another transaction.
        self._translated(lambda: self.connection.cursor().execute(sql))

    def _translated(self, do: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Do something with the driver; its errors become ours."""
        try:
            return do(*args, **kwargs)
        except self._database.dialect.driver_errors as error:
            raise self._database.dialect.error(error) from error
