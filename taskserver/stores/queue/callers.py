"""Adding and completing on a caller's own connection: the same verbs, over another database."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ...errors import Conflict, DatabaseError, is_refusal
from ...interrupts.stopping import uninterrupted
from ...model.attempt import Finish, Outcome
from ...model.new_task import NewTask
from ..callers import SAVEPOINT, CallersDatabase, CallersDialect, on_connection
from ..statements import Write
from .adding import Adding
from .finish_writes import FinishWrites

WHAT_NOW = "roll your transaction back, as its row is part of that"


class Callers:
    """The verbs that write on a connection which each call is given, as a part of the transaction there."""

    def __init__(self, dialect: CallersDialect, mode: str, lease_seconds: int) -> None:
        self._dialect = dialect
        self._writes = FinishWrites(mode, lease_seconds)

    # ---- producers

    @uninterrupted
    def add(self, connection: object, task: NewTask) -> int:
        """→ new, or waiting, once the caller commits. The id of the new row, or of the row that has the key already.

        Raises InvalidTask, DatabaseError.
        """
        return self._add(connection, [task])[0]

    @uninterrupted
    def add_many(self, connection: object, tasks: Iterable[NewTask]) -> list[int]:
        """→ new, or waiting, once the caller commits; the ids, in order. An iterator's tasks are sent as they come.

        Raises InvalidTask, DatabaseError.
        """
        return self._add(connection, tasks)

    def _add(self, connection: object, tasks: Iterable[NewTask]) -> list[int]:
        with on_connection(self._dialect, connection) as database:
            adding = Adding(database, WHAT_NOW)
            as_sent = map(self._dialect.inserts.as_sent, tasks)
            return [task_id for ids in adding.insert_all(as_sent) for task_id in ids]

    REACHES = "SELECT id FROM {table} WHERE id = 0"

    def check(self, connection: object) -> None:
        """Raises InvalidTask or DatabaseError where a connection does not reach the queue's table."""
        with on_connection(self._dialect, connection) as database:
            database.rows(self.REACHES)

    # ---- a task that completes itself

    def complete(self, connection: object, finish: Finish) -> Outcome:
        """In progress, started → gone, archived, done, or new as the next stage, once the caller commits.

        LOST means that the row does not carry our claim any more. Raises InvalidTask where the connection is in no
        transaction, TooLong where the server would not take the result, with nothing written, Conflict where nothing is
        left of the caller's transaction, and DatabaseError.
        """
        with on_connection(self._dialect, connection) as database:
            finish = self._dialect.finish_as_sent(finish)
            self._dialect.set_savepoint(database)
            try:
                return self._complete(database, finish)
            except BaseException as error:
                try:  # else the caller could commit a part of the writes
                    database.execute(f"ROLLBACK TO {SAVEPOINT}")
                except DatabaseError:
                    # The caller's own writes are gone with the savepoint: a trigger may roll back all.
                    if isinstance(error, DatabaseError) and is_refusal(error):
                        raise Conflict(f"{error}; it rolled the whole transaction back") from error
                raise

    def _complete(self, database: CallersDatabase, finish: Finish) -> Outcome:
        if _write_all(database, self._writes.of(finish))[0]:
            return Outcome.AS_ASKED
        outcome, _ = self._writes.otherwise(database, finish)
        return self._writes.late(database, finish) if outcome is Outcome.LOST else outcome


def _write_all(database: CallersDatabase, writes: Sequence[Write]) -> list[int]:
    return [database.execute(sql, values).rowcount for sql, values in writes]
