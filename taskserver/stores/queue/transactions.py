"""A task's own transaction: begun before its code runs, and committed together with the task's completion.

The transaction has a connection of its own, so that the run goes on with leases and failures meanwhile. The task's
writes and the end of its row are one commit, so a worker or a database that dies has done both or neither. The row of
the task is written last, by its claim: where the lease was lost the write matches nothing, and all is rolled back.

A savepoint stands from the transaction's first statement to its last one. It goes with whatever ends the transaction,
so while it stands the transaction is the one that was begun. The dialect's session (TaskSession) knows what ended it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ...errors import Conflict, DatabaseError, Fatal, Unavailable
from ...model.attempt import Finish, Outcome
from ...model.task import ClaimedTask
from ..database.database import P
from ..database.retrying import RetryPolicy, Scope, Tries
from ..database.statements import Statements, Write, words_of
from ..database.task_session import MAY_NOT_END, RELEASE_SAVEPOINT, TaskSession
from .finish_writes import outcome_of, outcome_otherwise
from .store import Store

COMMIT = "COMMIT /* of a task, with its completion */"
"""A text that no task uses: a task must not find a statement that was prepared for us."""

ROLLED_BACK = "its transaction was rolled back, and it went on"


class Transactions:
    """The transactions of one run's tasks, one after the other, on one connection."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._database = store.database
        self._dialect = store.database.dialect
        self._session: TaskSession | None = None
        # The names of tables in full, as the task may have gone to another database of the server.
        words = words_of(self._dialect.words, self._dialect.table, self._dialect.quoted_in_full)
        self._statements = Statements(words, self._dialect.with_marks)

    @property
    def most_bytes(self) -> float:
        """The longest statement that the open connection takes."""
        return self._open.most_bytes

    @property
    def connection(self) -> Any:
        """The driver's connection, for the task's code."""
        return self._open.connection

    @property
    def _open(self) -> TaskSession:
        assert self._session is not None
        return self._session

    # ---- before the task's code

    IS_OURS = "SELECT 1 FROM {table} WHERE id = ? AND status = 1 AND claim = ?"

    def prepare(self) -> None:
        """Open a connection, unless one stands. Raises DatabaseError."""
        if self._session is not None and not self._session.stands():
            self.abandon()
        tries = self._tries()
        while self._session is None:
            try:
                self._session = self._database.open_task_session()
            except (Conflict, Unavailable) as error:
                if not tries.go_on_after(error):
                    raise

    def begin(self, task: ClaimedTask) -> bool:
        """Begin the transaction of a started task. False where the task is not ours any more.

        That is asked only where the database has one writer: the wait for its lock may have been longer than the lease.
        Raises DatabaseError.
        """
        tries = self._tries()
        while True:
            try:
                self.prepare()
                self._translated(self._open.begin)
                break
            except DatabaseError as error:
                self.abandon()  # the task before may have left the session in a state of no use
                if not (isinstance(error, (Conflict, Unavailable)) and tries.go_on_after(error)):
                    raise
        if self._store.has_one_writer and not self._is_ours(task):
            self.abandon()
            return False
        session = self._open
        session.ended_by = session.rolled_back_by = ""
        session.hurry(False)
        session.is_lent = True
        return True

    def _tries(self) -> Tries:
        return self._database.tries(RetryPolicy(Scope.STATEMENT, self._database.conflict_seconds))

    def _is_ours(self, task: ClaimedTask) -> bool:
        return bool(self._execute(self.IS_OURS, (task.id, task.claim)).fetchall())

    # ---- after the task's code

    def check(self) -> None:
        """Raises Fatal where the task ended its transaction itself, and DatabaseError where the database did."""
        session = self._open
        session.is_lent = False
        if session.ended_by:
            raise Fatal(f"{MAY_NOT_END}: {session.ended_by}")
        if session.rolled_back_by:
            raise Conflict(f"{ROLLED_BACK}: {session.rolled_back_by}")
        session.hurry(True)
        try:
            self._execute(RELEASE_SAVEPOINT)
        except DatabaseError as error:
            if not session.is_savepoint_missing(error.__cause__):
                raise
            if session.was_rolled_back():
                raise Conflict(f"{ROLLED_BACK}: the database did so, and kept the reason to itself") from error
            raise Fatal(
                f"{MAY_NOT_END}: it did, by COMMIT, BEGIN, ROLLBACK or a statement that commits by itself, as CREATE "
                "TABLE does; what that committed a retry writes again (taskserver.connection().rollback() is allowed)"
            ) from error

    def fault_of_failed(self) -> Fatal | None:
        """Fatal if the failed task had already ended its transaction, so that it is not retried; else None."""
        try:
            self.check()
        except Fatal as error:
            return error
        except DatabaseError:
            pass  # the transaction was rolled back or broke, so nothing was committed
        return None

    def complete(self, finish: Finish) -> Outcome:
        """Commit the task's writes together with its end; LOST where all was rolled back instead.

        in progress, started → gone, archived or done; or new, as the next stage. Raises DatabaseError where nothing was
        committed.
        """
        try:
            if self._dialect.set_our_names and not _is_ascii(finish):
                self._execute(self._dialect.set_our_names)
            outcome = self._finish(finish)
            if outcome is Outcome.LOST:
                self.abandon()
                return outcome
        except BaseException:
            self.abandon()
            raise
        try:
            self._execute(COMMIT)
        except DatabaseError as error:
            self.abandon()
            return self._find_out(finish, outcome, error)
        except BaseException:
            self.abandon()
            raise
        self._open.finished()
        return outcome

    def _finish(self, finish: Finish) -> Outcome:
        writes = self._store.finish_writes
        if self._write_all(writes.of(finish))[0]:
            return outcome_of(finish)
        outcome = outcome_otherwise(finish, self._write_all(writes.otherwise(finish)))
        if outcome is Outcome.LOST and self._write_all(writes.late(finish))[0]:
            return Outcome.AS_ASKED
        return outcome

    def _find_out(self, finish: Finish, outcome: Outcome, error: DatabaseError) -> Outcome:
        """The outcome of a commit whose answer is lost: the row tells. Raises the error where nothing was committed.

        The broken transaction has the row's lock for as long as it may still be committed. So once a renewal could
        write to the row, the transaction is over.
        """
        if self._store.leases.renew(finish.task):
            raise error
        return outcome if self._store.finishes.took_effect(finish) else Outcome.LOST

    def abandon(self) -> None:
        """Close the connection, and so roll back its open transaction."""
        session, self._session = self._session, None
        if session is not None:
            session.is_lent = False
            session.close()

    # ---- statements

    def _write_all(self, writes: Sequence[Write]) -> list[int]:
        return [self._execute(sql, values).rowcount for sql, values in writes]

    def _execute(self, sql: str, values: Sequence[Any] = ()) -> Any:
        # Not through Database.execute: a statement here must not be mended by sending it again in another transaction.
        cursor = self.connection.cursor()
        self._translated(self._dialect.send, cursor, self._statements.compose(sql), values)
        return cursor

    def _translated(self, do: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        """Do something with the driver; its errors become ours."""
        try:
            do(*args, **kwargs)
        except self._dialect.driver_errors as error:
            raise self._dialect.error(error) from error


def _is_ascii(finish: Finish) -> bool:
    following = finish.next_stage
    texts = [finish.result] if following is None else [following.task, following.args]
    return all((text or "").isascii() for text in texts)
