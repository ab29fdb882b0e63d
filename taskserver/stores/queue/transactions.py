"""A task's own transaction: begun before its code runs, and committed together with the task's completion.

    open → begin, SAVEPOINT → the task's code → check: RELEASE SAVEPOINT → complete → commit

It has a connection of its own, so that the run goes on with leases and failures meanwhile. Whatever ends the
transaction takes the savepoint with it: while that stands, the transaction is the one that was begun. The row of the
task is written last, by its claim: if the lease was lost, the write matches nothing, and all is rolled back.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from ...errors import Conflict, DatabaseError, Fatal, ServerFull, Unavailable
from ...interrupts.stopping import uninterrupted
from ...model.attempt import Finish, Outcome
from ...model.task import ClaimedTask
from ..database import T
from ..retrying import RetryPolicy, Scope, rest_after
from .store import Store

SET_SAVEPOINT = "SAVEPOINT taskserver_task"
RELEASE_SAVEPOINT = "RELEASE SAVEPOINT taskserver_task"
ROLLBACK_TO_SAVEPOINT = "ROLLBACK TO SAVEPOINT taskserver_task"
COMMIT = "COMMIT /* of a task, with its completion */"
"""A text by which an administrator, or a test, knows it from others."""
SECONDS_OF_OURS = 60.0
"""The wait for the answer to a statement of ours: longer than a server waits for a lock."""

ENDED = (
    "a transactional task may not end its transaction itself, as what it writes is committed with its completion: it "
    "did, by commit(), rollback(), close() or a statement that commits (as CREATE TABLE does on MySQL), or the "
    "database rolled it back and the task went on; see what it wrote before you retry it"
)
FAILED = (
    "a statement of its transaction failed, and the task went on: ROLLBACK TO taskserver_task undoes what it wrote, "
    "and the transaction goes on"
)


class Transactions:
    """The transactions of one run's tasks, one after the other, each on a connection of its own.

    Raises DatabaseError.
    """

    connection: Any = None
    """The driver's connection, for the task's code."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._database = store.database
        self._began_at: float | None = None

    # ---- before the task's code

    def open(self) -> None:
        """Open the task's connection. Raises ServerFull at once."""
        self.connection = self._tried(_may_pass, self._database.open_task_connection)

    PUT_OFF = """
        UPDATE {table} {by_key}
        SET status = 3, claim = NULL, attempts = attempts - CASE WHEN started_at IS NULL THEN 0 ELSE 1 END,
            started_at = NULL, due_at = {after}, error_text = ?, updated_at = {now}
        WHERE id = ? AND status = 1 AND claim = ? AND (attempts > 0 OR started_at IS NULL) AND {is_cancelled} = 0
    """

    def put_off(self, task: ClaimedTask, why: str, seconds: float) -> bool:
        """In progress → error, due again in so many seconds, with no attempt counted: none of its code ran.

        False if the task was cancelled, changed or taken over meanwhile.
        """
        return self._database.change(self.PUT_OFF, (seconds, why, task.id, task.claim)) == 1

    IS_OURS = "SELECT 1 FROM {table} WHERE id = ? AND status = 1 AND claim = ?"

    def begin(self, task: ClaimedTask) -> bool:
        """Begin the transaction of a started task. False if the task is not ours any more.

        Only a database with one writer is asked that: the wait for its lock may have been longer than the lease.
        """
        dialect = self._database.dialect
        dialect.set_timeout(self.connection, SECONDS_OF_OURS)
        self._tried(_is_conflict, self._execute, dialect.begin_task)
        self._began_at = time.monotonic()
        self._execute(SET_SAVEPOINT)
        dialect.set_timeout(self.connection, None)  # the task's own statements may take any time
        return not self._store.has_one_writer or bool(self._database.fetch(self.IS_OURS, (task.id, task.claim)))

    def _tried(self, may_pass: Callable[[DatabaseError], bool], do: Callable[..., T], *args: str) -> T:
        """Do something; again after an error that may pass, with the patience of the run."""
        tries = self._database.tries(RetryPolicy(Scope.STATEMENT, self._database.conflict_seconds))
        while True:
            try:
                return do(*args)
            except DatabaseError as error:
                if not may_pass(error) or not tries.go_on_after(error):
                    raise

    # ---- after the task's code

    def check(self) -> None:
        """Raises Fatal if the transaction is not the one that was begun, DatabaseError if it cannot be committed."""
        dialect = self._database.dialect
        dialect.set_timeout(self.connection, SECONDS_OF_OURS)
        if dialect.was_closed(self.connection):
            raise Fatal(ENDED)
        try:
            self._execute(RELEASE_SAVEPOINT)
        except Unavailable:
            raise
        except DatabaseError as error:
            try:
                self._execute(ROLLBACK_TO_SAVEPOINT)
            except Unavailable:
                raise
            except DatabaseError:
                raise Fatal(ENDED) from error
            raise Conflict(FAILED) from error

    def commit(self, finish: Finish, outcome: Outcome) -> Outcome:
        """In progress → as the finish says, with all that the task wrote; what the completion came to.

        Raises DatabaseError if nothing was committed.
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
        closing, self.connection = self.connection, None
        began_at, self._began_at = self._began_at, None
        if closing is not None:
            self._database.dialect.close_task_connection(closing)
        if began_at is not None and self._store.has_one_writer:
            rest_after(began_at)

    @uninterrupted
    def _execute(self, sql: str) -> None:
        """Send one statement on the task's connection. It is never sent again in another transaction."""
        dialect = self._database.dialect
        try:
            self.connection.cursor().execute(sql)
        except dialect.driver_errors as error:
            raise dialect.error(error) from error


def _is_conflict(error: DatabaseError) -> bool:
    return isinstance(error, Conflict)


def _may_pass(error: DatabaseError) -> bool:
    return isinstance(error, (Conflict, Unavailable)) and not isinstance(error, ServerFull)
