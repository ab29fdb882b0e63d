"""Writing on a caller's own connection to PostgreSQL: psycopg's or psycopg2's, perhaps beneath a framework.

Differs from a connection of ours: the caller's session may be in any character set and isolation level, and its cursors
may give rows in any form. So texts are sent in ASCII, keys in hexadecimal. A caller's transaction that an error ended
takes no statement any more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.rows import tuple_row

from ...errors import Conflict, ConnectionLost, DatabaseError, InvalidTask
from ...model.attempt import Finish
from ...model.new_task import NewTask
from ...settings.dsn import PostgreSQLDsn
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
from ..dialect import IDS_OF_KEYS, Inserts, other_columns
from ..statements import Statements, words_of
from .errors import (
    COLUMN_MISSING,
    HINTS,
    IN_FAILED_TRANSACTION,
    NO_SCHEMA,
    NO_TRANSACTION,
    READ_ONLY,
    RIGHTS_MISSING,
    TABLE_MISSING,
    kind_of,
    state_of,
    text_of,
)
from .words import RETURNING_ID, WORDS, all_of, check_key, numbered, upsert

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..dialect import Rows

KEY_TRIES = 10
"""A worker may delete the row that has a key, between the INSERT and the look for it, where each is committed."""
ANY_KEY = "convert_from(decode(?, 'hex'), 'UTF8')"
KEY_IN_HEX = "encode(convert_to(unique_key, 'UTF8'), 'hex')"
NO_PATH = "is it to the database of TASKSERVER_DSN, and their schema in its search_path?"
HINTS_HERE = {
    IN_FAILED_TRANSACTION: "an error went before in this transaction: roll it back, and do all of it again",
    READ_ONLY: "begin a transaction that may write",
    RIGHTS_MISSING: CALLERS_RIGHTS_HINT,
    NO_SCHEMA: NO_PATH,
}


CALLERS_WORDS = WORDS | {
    "any_text": ANY_KEY,
    "any_row": f"(?, ?, ?, ?, ?, ?, COALESCE({{after}}, {{instant}}), {ANY_KEY}, ?, ?)",
    # Locks the row, and writes it not: until the caller commits no worker can claim it, nor delete it.
    "keep_standing": (
        "ON CONFLICT (unique_key) WHERE unique_key IS NOT NULL DO UPDATE SET unique_key = EXCLUDED.unique_key "
        "WHERE FALSE"
    ),
}
"""The words for a session of any character set."""


class CallersInserts(Inserts):
    """Adding through a session of any kind."""

    def as_sent(self, task: NewTask) -> NewTask:
        if task.unique_key is not None:
            check_key(task.unique_key)
        return task_in_ascii(task)

    def insert(self, database: Rows, sql: str, values: Sequence[Any], count: int) -> Sequence[int]:
        # A caller's driver may be told to read numbers as something else.
        return all_of(count, [int(row[0]) for row in database.rows(sql + RETURNING_ID, values)])

    def insert_keyed(self, database: Rows, sql: str, values: Sequence[Any], keys: Sequence[str]) -> Sequence[int]:
        look = IDS_OF_KEYS.replace("unique_key, id", f"{KEY_IN_HEX}, id").replace(
            "{ids}", ", ".join([ANY_KEY] * len(keys))
        )
        for _ in range(KEY_TRIES):
            ids = _by_key(database.rows(f"{sql} RETURNING {KEY_IN_HEX}, id", values))
            # A row that stays as it is, since it has the key already, is not returned.
            if len(ids) < len(keys):
                ids |= _by_key(database.rows(look, keys))
            if len(ids) == len(keys):
                return [ids[key] for key in keys]
        raise Conflict("on the connection that was given: workers delete the tasks whose keys stand: add them again")


def _by_key(rows: Sequence[tuple[Any, ...]]) -> dict[str, int]:
    return {key.decode() if isinstance(key, bytes) else str(key): int(row_id) for key, row_id in rows}


class PostgreSQLCallers(CallersDialect):
    """A queue in a PostgreSQL database, on connections of others."""

    database = "PostgreSQL"
    where_else = ", and their schema in its search_path"

    def __init__(self, dsn: PostgreSQLDsn, table: str) -> None:
        self._dsn = dsn
        self.table = table
        self.inserts = CallersInserts()
        self.statements = Statements(words_of(CALLERS_WORDS, table), str)

    def upsert(self, changes: Mapping[str, str], condition: str, key: str = "unique_key") -> str:
        return upsert(changes, condition, key)

    def finish_as_sent(self, finish: Finish) -> Finish:
        return finish_in_ascii(finish)

    # ---- the connection

    def check_connection(self, connection: object) -> None:
        if isinstance(connection, psycopg.AsyncConnection) or getattr(connection, "async_", 0) == 1:
            raise InvalidTask(
                "connection is one of asyncio; allowed: an open psycopg.Connection, or one of psycopg2, that waits for "
                "its answers"
            )

    def suit(self, cursor: Any) -> Callable[[str], str] | None:
        if not isinstance(cursor, psycopg.Cursor):
            return None
        cursor.row_factory = tuple_row  # that of the caller's connection may make anything of a row
        return numbered if isinstance(cursor, psycopg.RawCursor) else None

    def check_place(self, database: CallersDatabase) -> None:
        connection = database.connection
        if isinstance(connection, psycopg.Connection) and connection.pgconn.pipeline_status:
            raise InvalidTask("connection is in pipeline mode; allowed: one outside of `with connection.pipeline()`")
        ours, theirs = self._dsn.database, getattr(getattr(connection, "info", None), "dbname", None)
        if theirs in (None, ours):
            return
        # A pooler may have another name for the same database.
        ((real,),) = database.rows("SELECT CAST(current_database() AS text)")
        real = real.decode() if isinstance(real, bytes) else real
        if real != ours:
            raise self.wrong_place(f"the database {real}", self._dsn.place)

    def set_savepoint(self, database: CallersDatabase) -> None:
        try:
            database.execute(f"SAVEPOINT {SAVEPOINT}")
        except DatabaseError as error:
            if _state_of(error.__cause__) != NO_TRANSACTION:
                raise
            raise no_transaction() from None

    # ---- errors

    def error(self, error: Exception) -> DatabaseError:
        drivers, state = _drivers_error(error), _state_of(error)
        text = text_of(drivers)
        if state == TABLE_MISSING:
            return self.no_tables(self._dsn.place)
        if state == COLUMN_MISSING:
            return other_columns(self._dsn.place, self.table, text)
        kind = kind_of(state)
        if not state and type(drivers).__name__ in ("OperationalError", "InterfaceError"):
            kind = ConnectionLost
        hint = HINTS_HERE.get(state, HINTS.get(state, ""))
        if issubclass(kind, Conflict):
            hint = BEGIN_AGAIN
        elif issubclass(kind, ConnectionLost):
            hint = OPEN_ANOTHER
        return callers_error(kind, f"{text or 'it is closed'} ({state or type(error).__name__})", hint)


def _drivers_error(error: BaseException) -> BaseException:
    """The driver's error, beneath one of Django's."""
    cause = error.__cause__
    return error if cause is None or hasattr(error, "diag") else cause


def _state_of(error: BaseException | None) -> str:
    """The SQLSTATE in an error of psycopg, of psycopg2, or of Django."""
    drivers = None if error is None else _drivers_error(error)
    return state_of(drivers) or getattr(drivers, "pgcode", None) or ""
