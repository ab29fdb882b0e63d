"""Writing on a caller's own connection to MySQL or MariaDB.

Differs from a connection of ours: the caller's session may be in any time zone, character set, isolation level and
sql_mode, and we change none of these. So instants are converted in the statement, and texts are sent in ASCII.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...errors import DatabaseError, InvalidTask
from ...model.attempt import Finish
from ...model.new_task import NewTask
from ...settings.dsn import MySQLDsn
from ..callers import (
    BEGIN_AGAIN,
    CALLERS_RIGHTS_HINT,
    OPEN_ANOTHER,
    SAVEPOINT,
    CallersDatabase,
    CallersDialect,
    callers_error,
    finish_in_ascii,
    no_transaction,
    task_in_ascii,
)
from ..dialect import Inserts, other_columns
from ..statements import Statements, words_of
from .errors import (
    COLUMN_MISSING,
    CONFLICTS,
    HINTS,
    LOST_CONNECTION,
    RIGHTS_MISSING,
    SAVEPOINT_MISSING,
    SNAPSHOT_CHANGED,
    TABLE_MISSING,
    TOO_LONG,
    kind_of,
    number_of,
)
from .words import WORDS, inserted_ids, upsert

if TYPE_CHECKING:
    from ..dialect import Rows

READ_ONLY_TRANSACTION = 1792
NO_DATABASE = frozenset({1044, 1046, 1049})
LAST_SECOND = 2**31 - 1 - 86_400
"""A day before the column's last instant: the database's clock decides, and this host's may differ."""


# The server converts an instant from the session's time zone to the column's, so a statement gives it in the session's.
# NOW(6) plus an interval would be an hour off across a change of summer time, and UNIX_TIMESTAMP(NOW(6)) in the hour
# that comes twice. UNIX_TIMESTAMP() is right, but lacks the microseconds.
CALLERS_WORDS = WORDS | {
    "lock_edges": "FOR UPDATE",  # the session may be REPEATABLE READ
    "any_text": "CONVERT(UNHEX(?) USING utf8mb4)",
    "after": "FROM_UNIXTIME(UNIX_TIMESTAMP() + MICROSECOND(NOW(6)) * 0.000001 + ?)",
    "keep_standing": f"{WORDS['keep_standing']}, id = LAST_INSERT_ID(id)",
    "any_row": """
        (?, ?, ?, ?, ?, ?, COALESCE({after}, CONVERT_TZ(?, '+00:00', @@SESSION.time_zone)), UNHEX(?), ?, ?)
    """,
}
"""The words for a session of any time zone and character set."""


class CallersInserts(Inserts):
    """Adding through a session of any kind."""

    keyed_rows_per_statement = 1  # LAST_INSERT_ID tells of one row alone

    def as_sent(self, task: NewTask) -> NewTask:
        # The session would read our text in its own character set, and so spoil or cut it: ASCII is the same in all of
        # them. A key is sent in hexadecimal: drivers quote bytes with backslashes, whatever the sql_mode.
        if task.delay_seconds is not None and time.time() + task.delay_seconds > LAST_SECOND:
            # The server would make NULL of the instant, and the task would wait for ever.
            raise InvalidTask(f"delay is {task.delay_seconds:.0f} seconds, which ends after 2038-01-18")
        return task_in_ascii(task)

    def insert(self, database: Rows, sql: str, values: Sequence[Any], count: int) -> Sequence[int]:
        return inserted_ids(database, sql, values, count)

    def insert_keyed(self, database: Rows, sql: str, values: Sequence[Any], keys: Sequence[str]) -> Sequence[int]:
        return [int(database.execute(sql, values).lastrowid)]


class MySQLCallers(CallersDialect):
    """A queue in a MySQL or MariaDB database, on connections of others."""

    database = "MySQL"
    how_to_shorten = HINTS[TOO_LONG]

    def __init__(self, dsn: MySQLDsn, table: str) -> None:
        self._dsn = dsn
        self.table = table
        self.inserts = CallersInserts()
        # Names in full, as a caller's session may be in another database of the server.
        self.statements = Statements(words_of(CALLERS_WORDS, table, _in_full(dsn, WORDS["quoted"])), str)

    def upsert(self, changes: Mapping[str, str], condition: str, key: str = "unique_key") -> str:
        # A look for the row that has a key could miss it: the caller's transaction may see the database as it was
        # before another one committed that row, and with autocommit a worker may have deleted it. So the INSERT itself
        # returns the row's id.
        return f"{upsert(changes, condition, key)}, id = LAST_INSERT_ID(id)"

    def finish_as_sent(self, finish: Finish) -> Finish:
        return finish_in_ascii(finish)

    def set_savepoint(self, database: CallersDatabase) -> None:
        # No driver's attribute tells this in the same way as another's; a savepoint outside of a transaction is gone
        # with its own statement.
        database.execute(f"SAVEPOINT {SAVEPOINT}")
        try:
            database.execute(f"ROLLBACK TO SAVEPOINT {SAVEPOINT}")
        except DatabaseError as error:
            if number_of(error.__cause__) != SAVEPOINT_MISSING:
                raise
            raise no_transaction() from None

    def most_bytes(self, database: CallersDatabase) -> float:
        return int(database.rows("SELECT @@SESSION.max_allowed_packet LIMIT 1")[0][0]) - 2  # two more it hangs up on

    def error(self, error: Exception) -> DatabaseError:
        number = number_of(error)
        if number == TABLE_MISSING:
            return self.no_tables(self._dsn.place)
        text = " ".join(str(error.args[1] if number is not None and len(error.args) > 1 else error).split())
        if number == COLUMN_MISSING:
            return other_columns(self._dsn.place, self.table, text)
        what = f"{text or 'it is closed'} ({number or type(error).__name__})"
        return callers_error(kind_of(number), what, _hint_at(number))


def _hint_at(number: int | None) -> str:
    hints = {
        frozenset({SNAPSHOT_CHANGED}): f"{BEGIN_AGAIN}, in READ COMMITTED",
        CONFLICTS: BEGIN_AGAIN,
        frozenset({READ_ONLY_TRANSACTION}): "begin a transaction that may write",
        NO_DATABASE: "is it to the database of TASKSERVER_DSN?",
        RIGHTS_MISSING: CALLERS_RIGHTS_HINT,
        LOST_CONNECTION: OPEN_ANOTHER,
    }
    return next((hint for numbers, hint in hints.items() if number in numbers), HINTS.get(number or -1, ""))


def _in_full(dsn: MySQLDsn, quoted: str) -> str:
    """A table's name `{}` behind its database's."""
    database = dsn.database.replace("`", "``").replace("{", "{{").replace("}", "}}")
    return f"`{database}`.{quoted}"
