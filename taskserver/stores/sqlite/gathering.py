"""The tasks of an iterator, gathered before they are added to SQLite.

A transaction that writes keeps all others from writing, and an iterator of tasks may wait for anything. So its tasks
are first gathered in a temporary table of the connection, which is on the disk where it is large.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ...model.new_task import NewTask
from ..database.database import Database
from ..database.statements import marks
from ..queue.adding import PLAIN_VALUES, portions

FORGET = "DROP TABLE IF EXISTS temp.taskserver_gathered"
GATHER = """
    CREATE TEMP TABLE taskserver_gathered
        (task, args, group_id, priority, max_attempts, delay_seconds, due_at, unique_key, rerun, version,
         stages, depends_on)
"""
GATHER_ROWS = "INSERT INTO temp.taskserver_gathered VALUES "
GATHERED = "SELECT * FROM temp.taskserver_gathered WHERE rowid > ? ORDER BY rowid LIMIT ?"
VALUES = len(NewTask._fields)


class SQLiteGathering:
    """The table of gathered tasks, on the connection of the thread that uses it."""

    def gather(self, database: Database, tasks: Iterable[NewTask]) -> None:
        """Take all tasks that an iterator gives."""
        database.execute(FORGET)
        database.execute(GATHER)
        mark, max_rows = f"({marks(VALUES)})", database.inserts.rows_per_statement * PLAIN_VALUES // VALUES
        with database.occupied():  # an iterator must not add tasks itself
            for portion in portions(tasks, database.inserts, max_rows):
                rows = ", ".join([mark] * len(portion))
                database.execute(GATHER_ROWS + rows, [value for task in portion for value in task])

    def gathered(self, database: Database) -> Iterator[NewTask]:
        """The gathered tasks, in the iterator's order."""
        read = 0
        while rows := database.rows(GATHERED, (read, database.inserts.rows_per_statement)):
            read += len(rows)
            yield from (NewTask(*row) for row in rows)

    def forget(self, database: Database) -> None:
        """Give the space of the gathered tasks back."""
        database.execute(FORGET)
