"""The connection that a task's code gets on MySQL and MariaDB: PyMySQL's own."""

from __future__ import annotations

import pymysql
from pymysql.connections import Connection
from pymysql.cursors import Cursor

from ..database.task_connection import SET_SAVEPOINT, TaskConnection
from .errors import SAVEPOINT_MISSING, number_of
from .session import wait_for_answers

SECONDS_OF_OURS = 60
"""The wait for the answer to a statement of ours: longer than the server waits for a lock."""

# The server counts a connection's statements by their kinds, those inside a procedure, too. Where it has seen none but
# these, nothing was committed: the three SETs and the BEGIN are the ones with which the connection begins.
MOST = {"set_option": 3, "begin": 1}
READS_AND_WRITES = [
    "select",
    "insert",
    "insert_select",
    "update",
    "update_multi",
    "delete",
    "delete_multi",
    "replace",
    "replace_select",
]
GOES_BACK = ["savepoint", "release_savepoint", "rollback", "rollback_to_savepoint"]
COMMITS_NOTHING = frozenset([*READS_AND_WRITES, *GOES_BACK, "admin_commands", "call_procedure", "change_db", "do"])


class MySQLTaskConnection(TaskConnection):
    """A connection to MySQL or MariaDB for one task's own transaction."""

    def __init__(self, connection: Connection[Cursor]) -> None:
        self.connection: Connection[Cursor] = connection

    def begin(self) -> None:
        self.connection.query("BEGIN")
        self.connection.query(SET_SAVEPOINT)
        wait_for_answers(self.connection, None)  # the task's own statements may take any time

    def take_back(self) -> None:
        wait_for_answers(self.connection, SECONDS_OF_OURS)

    def is_savepoint_missing(self, error: BaseException | None) -> bool:
        return number_of(error) == SAVEPOINT_MISSING

    def is_nothing_committed(self) -> bool:
        cursor = self.connection.cursor(Cursor)
        cursor.execute("SHOW SESSION STATUS LIKE 'Com\\_%'")
        counts = {str(name)[len("Com_") :].lower(): int(count) for name, count in cursor.fetchall()}
        return all(
            count <= MOST.get(kind, 0) or kind in COMMITS_NOTHING or kind.startswith("show_")
            for kind, count in counts.items()
        )

    def close(self) -> None:
        try:
            self.connection.close()
        except (pymysql.MySQLError, OSError):
            pass
