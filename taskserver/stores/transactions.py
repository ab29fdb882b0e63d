"""A task's own transaction: begun before its code runs, and committed together with the task's completion.

On a connection apart from that of the run, which goes on with leases and failures meanwhile. What the task writes there
and the end of its row are one commit, so a worker or a database that dies has done both or neither. The queue's row is
touched in the last statement alone, by the claim: a lease that was lost matches nothing, and all is rolled back.

A savepoint that stands from the first statement to the last one is the sign that the transaction is still the one that
was begun: it goes with whatever ends that. Who ended it knows the session of the dialect (TaskSession).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..errors import Conflict, DatabaseError, Fatal, Unavailable
from ..lifecycle import ClaimedTask, Finish, Outcome
from .database import P, Write
from .store import Store
from .task_session import MAY_NOT_END, RELEASE_SAVEPOINT, TaskSession
from .tries import Tries, Way

COMMIT = "COMMIT /* of a task, with its completion */"
"""In words that no task uses: a statement that was prepared once for us must not be one that a task finds prepared."""

OUR_NAMES = "SET NAMES utf8mb4"
ROLLED_BACK = "its transaction was rolled back, and it went on"


class Transactions:
    """The transactions of one run's tasks, one after the other, on one connection."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._session: TaskSession | None = None
        self._words = store.full_words()
        self._statements: dict[str, str] = {}

    @property
    def most_bytes(self) -> float:
        """Of a statement on the connection that is open."""
        return self._open.most_bytes

    @property
    def connection(self) -> Any:
        """The driver's, for the task's code."""
        return self._open.connection

    @property
    def _open(self) -> TaskSession:
        assert self._session is not None
        return self._session

    # ---- before the task's code

    IS_OURS = "SELECT 1 FROM {table} WHERE id = ? AND status = 1 AND claim = ?"

    def prepare(self) -> None:
        """Have a connection that stands. Raises DatabaseError."""
        if self._session is not None and not self._session.stands():
            self.abandon()
        tries = self._tries()
        while self._session is None:
            try:
                self._session = self._store.open_task_session()
            except (Conflict, Unavailable) as error:
                if not tries.go_on_after(error):
                    raise

    def begin(self, task: ClaimedTask) -> bool:
        """Begin the transaction of a started task. Whether it is still ours, which nobody asks but where that is free.

        Raises DatabaseError.
        """
        tries = self._tries()
        while True:
            try:
                self.prepare()
                self._translated(self._open.begin)
                break
            except DatabaseError as error:
                self.abandon()  # the task before may have made the session one that is of no use
                if not (isinstance(error, (Conflict, Unavailable)) and tries.go_on_after(error)):
                    raise
        if self._store.one_writer and not self._is_ours(task):
            self.abandon()
            return False
        session = self._open
        session.ended_by = session.rolled_back_by = ""
        session.hurry(False)
        session.is_lent = True
        return True

    def _tries(self) -> Tries:
        return Tries(Way(None, self._store._conflict_seconds), self._store._local.patience)

    def _is_ours(self, task: ClaimedTask) -> bool:
        # Who waited for the one lock there is may have waited for longer than the lease.
        return bool(self._execute(self.IS_OURS, (task.id, task.claim)).fetchall())

    # ---- after it

    def check(self) -> None:
        """Raises Fatal where the task ended its transaction itself, DatabaseError where the database did."""
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
        """What is to be said of a task that failed, where it ended its transaction before: it must not do so twice."""
        try:
            self.check()
        except Fatal as error:
            return error
        except DatabaseError:
            pass  # rolled back, or broken: nothing was committed that it did not tell of
        return None

    def complete(self, finish: Finish) -> int:
        """Commit what the task wrote together with its end. The Outcome; LOST where all was rolled back instead.

        Raises DatabaseError where nothing was committed.
        """
        try:
            if not (self._store.one_writer or _is_ascii(finish)):
                self._execute(OUR_NAMES)  # the task may have chosen others
            outcome = self._finish(finish)
            if outcome == Outcome.LOST:
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

    def _finish(self, finish: Finish) -> int:
        store = self._store
        outcome = store.outcome_of(finish, self._write_all(store.writes_of(finish))[0])
        if outcome != Outcome.LOST:
            return outcome
        outcome = store.outcome_otherwise(finish, self._write_all(store.writes_otherwise(finish)))
        if outcome != Outcome.LOST:
            return outcome
        return int(self._write_all(store.writes_late(finish))[0] == 1)

    def _find_out(self, finish: Finish, outcome: int, error: DatabaseError) -> int:
        """The answer to the commit is lost. The row tells, once it is clear that nobody else holds it.

        The broken transaction has the row's lock for as long as it may still be committed: so who could write to the
        row knows that it is over.
        """
        if self._store.renew(finish.task):
            raise error
        return outcome if self._store.took_effect(finish) else Outcome.LOST

    def abandon(self) -> None:
        """Let go of the connection, and so roll back what was not committed."""
        session, self._session = self._session, None
        if session is not None:
            session.is_lent = False
            session.close()

    # ---- statements

    def _write_all(self, writes: Sequence[Write]) -> list[int]:
        return [self._execute(sql, values).rowcount for sql, values in writes]

    def _execute(self, sql: str, values: Sequence[Any] = ()) -> Any:
        # Not as other verbs are done: nothing here may be mended by doing it again in another transaction.
        cursor = self.connection.cursor()
        self._translated(self._store._send, cursor, self._composed(sql), values)
        return cursor

    def _composed(self, sql: str) -> str:
        """With the names of tables in full, as the task may have gone to another database of the server."""
        composed = self._statements.get(sql)
        if composed is None:
            sql_in_full = sql.format_map(self._words)
            composed = self._statements[sql] = self._store._with_marks(" ".join(sql_in_full.split()))
        return composed

    def _translated(self, do: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        """Do something with the driver; its errors become ours."""
        try:
            do(*args, **kwargs)
        except Exception as error:
            if not self._store._is_driver_error(error):
                raise
            raise self._store._error(error) from error


def _is_ascii(finish: Finish) -> bool:
    following = finish.next_stage
    texts = [finish.result] if following is None else [following.task, following.args]
    return all((text or "").isascii() for text in texts)
