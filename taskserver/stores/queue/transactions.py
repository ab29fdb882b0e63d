"""A task's own transaction: it begins before the task's code, and commits together with the completion.

    open → begin, SAVEPOINT → the task's code → check: RELEASE SAVEPOINT → complete → commit

Anything that ends the transaction also ends the savepoint: while it exists, the transaction is still ours. Leases and
failures are written on other connections. The completion is written last and names the claim: if the lease was lost, it
matches no row, and everything is rolled back.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from ...errors import Conflict, DatabaseError, Deadlock, Fatal, ServerFull, Unavailable
from ...model.attempt import Finish, Outcome
from ...model.task import ClaimedTask
from ..database import T
from ..retrying import RetryPolicy, Scope, rest_after
from .store import Store

SAVEPOINT = "SAVEPOINT taskserver_task"
COMMIT = "COMMIT /* of a task, with its completion */"
"""The comment is for administrators and tests."""
OUR_SECONDS = 60.0
"""The timeout of our own statements: longer than a server waits for a lock."""

ENDED_BY_TASK = (
    "a transactional task may not end its transaction itself, as what it writes is committed with its completion: it "
    "did, by commit(), rollback(), close() or a statement that commits (as CREATE TABLE does on MySQL), or the "
    "database rolled it back and the task went on; see what it wrote before you retry it"
)
FAILED_IN_TASK = (
    "a statement of its transaction failed and the task went on, so all that it wrote was rolled back: let that error "
    "end the task, or undo first, with ROLLBACK TO taskserver_task"
)


class Transactions:
    """The transactions of one run's tasks, one after the other. Raises DatabaseError."""

    connection: Any = None
    """The driver's connection, for the task's code."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._database = store.database
        self._began_at: float | None = None

    # ---- before the task's code

    def open(self) -> None:
        """Open the task's connection. ServerFull is not retried."""
        self.connection = self._retrying((Conflict, Unavailable), self._database.open_task_connection)

    IS_OURS = "SELECT 1 FROM {table} WHERE id = ? AND status = 1 AND claim = ?"

    def begin(self, task: ClaimedTask) -> bool:
        """Begin the transaction of a started task. False if its lease was lost.

        Only checked with one writer: the wait for its lock may have been longer than the lease.
        """
        dialect = self._database.dialect
        dialect.set_timeout(self.connection, OUR_SECONDS)
        self._retrying((Conflict,), self._execute, dialect.begin_task)
        self._began_at = time.monotonic()
        self._execute(SAVEPOINT)
        dialect.set_timeout(self.connection, None)
        return not self._store.has_one_writer or bool(self._database.fetch(self.IS_OURS, (task.id, task.claim)))

    def _retrying(self, errors: tuple[type[DatabaseError], ...], work: Callable[..., T], *args: str) -> T:
        """Do work; retry after these errors, with the run's patience."""
        tries = self._database.tries(RetryPolicy(Scope.STATEMENT, self._database.conflict_seconds))
        while True:
            try:
                return work(*args)
            except DatabaseError as error:
                if not isinstance(error, errors) or isinstance(error, ServerFull) or not tries.wait_to_retry(error):
                    raise

    # ---- after the task's code

    def check(self) -> None:
        """Raises Fatal if the task ended the transaction, Conflict if it can only be rolled back."""
        dialect = self._database.dialect
        dialect.set_timeout(self.connection, OUR_SECONDS)
        if dialect.was_closed(self.connection):
            raise Fatal(ENDED_BY_TASK)
        try:
            self._execute(f"RELEASE {SAVEPOINT}")
        except (Deadlock, Unavailable):  # another node's transaction may end this one between two statements
            raise
        except DatabaseError as error:
            try:
                self._execute(f"ROLLBACK TO {SAVEPOINT}")
            except Unavailable:
                raise
            except DatabaseError:
                raise Fatal(ENDED_BY_TASK) from error
            raise Conflict(FAILED_IN_TASK) from error

    def commit(self, finish: Finish, outcome: Outcome) -> Outcome:
        """In progress → as the finish says, with all that the task wrote; the outcome.

        Raises DatabaseError if nothing was committed.
        """
        try:
            self._execute(COMMIT)
        except DatabaseError:
            self.close()
            # The broken transaction holds the row as long as it may still be committed.
            found = self._store.finishes.resolve(finish, outcome)
            if found is None:
                raise
            return found
        return outcome

    def close(self) -> None:
        """Close the connection, and so roll back an open transaction."""
        closing, self.connection = self.connection, None
        began_at, self._began_at = self._began_at, None
        if closing is not None:
            self._database.dialect.close_task_connection(closing)
        if began_at is not None and self._store.has_one_writer:
            rest_after(began_at)

    def _execute(self, sql: str) -> None:
        """Send a statement on the task's connection, without retries."""
        dialect = self._database.dialect
        try:
            self.connection.cursor().execute(sql)
        except dialect.driver_errors as error:
            raise dialect.error(error) from error
