"""Adding on a caller's own connection: the same adding, over another database."""

from __future__ import annotations

from collections.abc import Iterable

from ...interrupts.stopping import uninterrupted
from ...model.new_task import NewTask
from ..database.callers import CallersDialect, on_connection
from .adding import Adding

WHAT_NOW = "roll your transaction back, as its row is part of that"


class CallersAdding:
    """The verbs of producers, each on the connection that it is given."""

    def __init__(self, dialect: CallersDialect) -> None:
        self._dialect = dialect

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
