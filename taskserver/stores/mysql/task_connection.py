"""The connection that a task's code gets on MySQL and MariaDB: PyMySQL's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pymysql
from pymysql.constants.SERVER_STATUS import SERVER_STATUS_IN_TRANS
from pymysql.cursors import Cursor

from ..task_connection import SET_SAVEPOINT, TaskConnection
from .errors import SAVEPOINT_MISSING, number_of
from .session import set_timeout

SECONDS_OF_OURS = 60
"""The wait for the answer to a statement of ours: longer than the server waits for a lock."""

IN_UTC = "SET @taskserver_time_zone = @@time_zone, time_zone = '+00:00'"
AS_BEFORE = "SET time_zone = @taskserver_time_zone"
# In some SQL modes LIKE has no escape, and BEGIN begins a block.
COUNTS = "SHOW SESSION STATUS LIKE 'Com%'"
COUNT_OF_SETS = "SHOW SESSION STATUS LIKE 'Com_set_option'"
BEGIN = "START TRANSACTION"
READS_AND_WRITES = "select insert insert_select update update_multi delete delete_multi replace replace_select"
GOES_BACK = "savepoint release_savepoint rollback rollback_to_savepoint"
COMMITS_NOTHING = frozenset(f"{READS_AND_WRITES} {GOES_BACK} admin_commands call_procedure change_db do".split())


class MySQLTaskConnection(TaskConnection):
    """A connection to MySQL or MariaDB for one task's own transaction."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self._thread_id = connection.thread_id()
        self._sets = 0
        """SETs from before the transaction: the driver's, the server's own and ours."""
        self._commits = 0
        """Commits of ours."""

    def write(self, composed: str, values: Sequence[Any]) -> int:
        # The task keeps the server's time zone, which may have an hour twice: a lease in it could end an hour early.
        self.connection.query(IN_UTC)
        matched = super().write(composed, values)
        self._commits += 1
        self.connection.query(AS_BEFORE)
        return matched

    def begin(self) -> None:
        self._sets = self._counts(COUNT_OF_SETS)["set_option"]
        self.connection.query(BEGIN)
        self.connection.query(SET_SAVEPOINT)
        set_timeout(self.connection, None)  # the task's own statements may take any time

    def take_back(self) -> None:
        set_timeout(self.connection, SECONDS_OF_OURS)

    def is_savepoint_missing(self, error: BaseException | None) -> bool:
        return number_of(error) == SAVEPOINT_MISSING

    @property
    def has_ended(self) -> bool:
        return not int(self.connection.server_status) & SERVER_STATUS_IN_TRANS

    def is_nothing_committed(self) -> bool:
        # The server counts a connection's statements by their kinds, those inside a procedure, too. A connection that
        # was reset, or another one, lacks our BEGIN.
        if self.connection.thread_id() != self._thread_id:
            return False
        counts = self._counts(COUNTS)
        ours = {"begin": 1, "set_option": self._sets, "commit": self._commits}
        if any(counts.pop(kind, None) != count for kind, count in ours.items()):
            return False  # a kind may be missing, where the task limits the rows that it reads
        return not any(
            count for kind, count in counts.items() if kind not in COMMITS_NOTHING and not kind.startswith("show_")
        )

    def _counts(self, sql: str) -> dict[str, int]:
        cursor = self.connection.cursor(Cursor)
        cursor.execute(sql)
        rows = [(str(name), count) for name, count in cursor.fetchall()]
        return {name[len("Com_") :].lower(): int(count) for name, count in rows if name.startswith("Com_")}

    def close(self) -> None:
        try:
            self.connection.close()
        except (pymysql.MySQLError, OSError):
            pass
