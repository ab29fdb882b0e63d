"""A task's own transaction: begun before its code runs, and committed together with the task's completion.

The transaction has a connection of its own, so that the run goes on with leases and failures meanwhile. Where the
server has no second one for the account, the run gives up its own for the time of the task. The task's
writes and the end of its row are one commit, so a worker or a database that dies has done both or neither. The row of
the task is written last, by its claim: where the lease was lost the write matches nothing, and all is rolled back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ...errors import Conflict, DatabaseError, Fatal, ServerFull, Unavailable
from ...model.attempt import Finish, Outcome
from ...model.task import ClaimedTask
from ..database import P, T
from ..retrying import RetryPolicy, Scope
from ..task_connection import RELEASE_SAVEPOINT, TaskConnection
from .leases import START
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
        self._is_in_place = False
        """Whether the run gave up its own connection for this one."""
        self._has_given_up_own = False

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

    def can_open_beside(self) -> bool:
        """Whether the run has a connection beside which another may be had.

        Where it gave up its own for the task before, it would lack that one once the task's is open.
        """
        return not self._has_given_up_own or self._database.is_connected

    def open(self) -> None:
        """Open a connection beside the run's own. Raises ServerFull at once, and DatabaseError."""
        self._task_connection = self._tried(_may_pass_unless_full, self._database.open_task_connection)

    UNSTART = """
        UPDATE {table} {by_key} SET attempts = attempts - 1, started_at = NULL, updated_at = updated_at
        WHERE id = ? AND status = 1 AND claim = ? AND attempts > 0 AND started_at IS NOT NULL
    """

    def unstart(self, task: ClaimedTask) -> None:
        """In progress, started → in progress, unstarted, with its attempt uncounted, as none of its code ran.

        A task that was changed meanwhile stays started. Raises DatabaseError.
        """
        self._database.change(self.UNSTART, (task.id, task.claim))

    def open_in_place(self) -> None:
        """Open a connection in the place of the run's own, which is closed; waits for one. Raises DatabaseError.

        Workers that each kept their own, and waited for a second one, would wait for one another.
        """
        self._task_connection = self._tried(_may_pass, self._open_in_place)
        self._is_in_place = self._has_given_up_own = True

    def _open_in_place(self) -> TaskConnection:
        self._database.disconnect()  # again before each try: the heartbeat may have connected
        return self._database.open_task_connection()

    def start(self, task: ClaimedTask, max_attempts: int) -> bool:
        """In progress, unstarted → in progress, started, on the connection in place. False where it is not ours.

        Raises DatabaseError.
        """
        values = (max_attempts, self._store.lease_seconds, task.id, task.claim)
        return self._translated(self._open.write, self._database.compose(START), values) == 1

    def begin(self, task: ClaimedTask) -> bool:
        """Begin the transaction of a started task. False where the task is not ours any more.

        That is asked where the database has one writer, as the wait for its lock may have been longer than the lease,
        and in the place of the run's connection: there nothing renews the lease, so the transaction locks the row.
        Raises DatabaseError.
        """
        self._tried(_is_conflict, self._open.begin)
        ours = (task.id, task.claim)
        if self._is_in_place:
            locking = self.IS_OURS + self._database.dialect.for_update
            return bool(self._tried(_is_conflict, lambda: self._execute(locking, ours).fetchall()))
        return not self._store.has_one_writer or bool(self._database.fetch(self.IS_OURS, ours))

    @property
    def holds_lock(self) -> bool:
        """Whether the open transaction keeps all others from the task's row, and the run from writing."""
        return self._store.has_one_writer or self._is_in_place

    def _tried(self, may_pass: Callable[[DatabaseError], bool], do: Callable[[], T]) -> T:
        """Do something; again after an error that may pass, with the patience of the run."""
        tries = self._database.tries(RetryPolicy(Scope.STATEMENT, self._database.conflict_seconds))
        while True:
            try:
                return self._translated(do)
            except DatabaseError as error:
                if not may_pass(error) or not tries.go_on_after(error):
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
            if self._is_nothing_committed():
                raise Conflict(ROLLED_BACK) from error
            raise Fatal(ENDED) from error

    def _is_nothing_committed(self) -> bool:
        try:
            return self._translated(self._open.is_nothing_committed)
        except DatabaseError:  # the connection broke: it cannot be known any more
            return False

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
        closing, self._task_connection, self._is_in_place = self._task_connection, None, False
        if closing is not None:
            closing.close()

    # ---- statements

    def _execute(self, sql: str, values: Sequence[object] = ()) -> Any:
        """Send one statement on the task's connection; the driver's cursor."""
        # Not through Database.execute: a statement here must not be mended by sending it again in another transaction.
        return self._translated(self._open.execute, self._database.compose(sql), values)

    def _translated(self, do: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Do something with the driver; its errors become ours."""
        try:
            return do(*args, **kwargs)
        except self._database.dialect.driver_errors as error:
            raise self._database.dialect.error(error) from error


def _is_conflict(error: DatabaseError) -> bool:
    return isinstance(error, Conflict)


def _may_pass(error: DatabaseError) -> bool:
    return isinstance(error, (Conflict, Unavailable))


def _may_pass_unless_full(error: DatabaseError) -> bool:
    return _may_pass(error) and not isinstance(error, ServerFull)
