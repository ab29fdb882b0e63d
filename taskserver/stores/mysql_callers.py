"""Adding on a caller's own connection to MySQL or MariaDB.

Differs from a connection of ours: its session may be in any time zone, character set, isolation level and sql_mode,
and none of these is changed. So instants are converted in the statement, and texts are sent in ASCII.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from ..arguments import MAX_BYTES, in_ascii
from ..errors import DatabaseError, InvalidTask
from ..lifecycle import NewTask
from ..stages import MAX_BYTES as MOST_BYTES_OF_STAGES
from .callers import CallersAdding, told
from .mysql import MySQLStore
from .mysql_errors import (
    COLUMN_MISSING,
    CONFLICTS,
    HINTS,
    LOST,
    RIGHTS_MISSING,
    TABLE_MISSING,
    kind_of,
    number_of,
)

READ_ONLY_TRANSACTION = 1792
NO_DATABASE = frozenset({1044, 1046, 1049})
LAST_SECOND = 2**31 - 1 - 86_400
"""A day before the end of the column, as the database's clock decides, and this is only a host's."""
AGAIN = "roll your transaction back, and do all of it again"
RIGHTS = "give the account of that connection the rights that docs/security.md names for what was added"


class MySQLCallers(CallersAdding, MySQLStore):
    """A queue in a MySQL or MariaDB database, on connections of others."""

    database = "MySQL"

    def __init__(self, *settings: Any) -> None:
        super().__init__(*settings)
        self._words = self.full_words()  # their session may be in another database of the server

    # ---- instants
    #
    # Between the column and a session stands the session's zone: an instant is given in that, too. NOW(6) plus an
    # interval would be an hour off across a change of summer time, and UNIX_TIMESTAMP(NOW(6)) in the hour that comes
    # twice; UNIX_TIMESTAMP() alone is right, and lacks what is smaller than a second.

    after = "FROM_UNIXTIME(UNIX_TIMESTAMP() + MICROSECOND(NOW(6)) * 0.000001 + ?)"
    ADD_ANY_ROW = """
        (?, ?, ?, ?, ?, ?, COALESCE({after}, CONVERT_TZ(?, '+00:00', @@SESSION.time_zone)), UNHEX(?), ?, ?)
    """

    # ---- texts
    #
    # What a session takes for text of its own character set would be spoiled, or cut, on the way into the column.
    # A key is sent in hexadecimal: bytes could not be, as drivers quote them with backslashes, whatever the sql_mode.

    def _as_sent(self, task: NewTask) -> NewTask:
        if task.delay_seconds is not None and time.time() + task.delay_seconds > LAST_SECOND:
            # The server would make NULL of it, and the task would wait for ever.
            raise InvalidTask(f"delay is {task.delay_seconds:.0f} seconds, which ends after 2038-01-18")
        return task._replace(
            args=in_ascii(task.args, MAX_BYTES),
            stages=in_ascii(task.stages, MOST_BYTES_OF_STAGES),
            unique_key=None if task.unique_key is None else task.unique_key.encode().hex(),
        )

    # ---- keys
    #
    # A look for the row that has a key could miss it, where the transaction sees the database as it was before another
    # committed that row; and with autocommit a worker may have deleted the row by then. So the INSERT itself tells.

    def _if_key_stands(self, is_rerun: bool, has_version: bool, is_later: bool) -> str:
        return f"{super()._if_key_stands(is_rerun, has_version, is_later)}, id = LAST_INSERT_ID(id)"

    def _insert_keyed(self, sql: str, values: Sequence[Any], tasks: Sequence[NewTask]) -> Sequence[int]:
        if len(tasks) > 1:  # it tells of one row alone
            return [self._insert([task])[0] for task in tasks]
        return [int(self._execute(sql, values).lastrowid)]

    # ---- errors

    def _error(self, error: Exception, is_login: bool = False) -> DatabaseError:
        number = number_of(error)
        if number == TABLE_MISSING:
            return self._no_tables(self._dsn.place)
        text = " ".join(str(error.args[1] if number is not None and len(error.args) > 1 else error).split())
        if number == COLUMN_MISSING:
            return self._other_columns(self._dsn.place, text)
        what = f"{text or 'it is closed'} ({number or type(error).__name__})"
        return told(kind_of(number), what, _hint_at(number))


def _hint_at(number: int | None) -> str:
    hints = {
        CONFLICTS: AGAIN,
        frozenset({READ_ONLY_TRANSACTION}): "begin a transaction that may write",
        NO_DATABASE: "is it to the database of TASKSERVER_DSN?",
        RIGHTS_MISSING: RIGHTS,
        LOST: "open another, and do all of your transaction again",
    }
    return next((hint for numbers, hint in hints.items() if number in numbers), HINTS.get(number or -1, ""))
