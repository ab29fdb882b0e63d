"""PostgreSQL, on psycopg 3: an extra. Differs from MySQL where a comment says so."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING, Any, ClassVar

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from ...errors import Conflict, DatabaseError, InvalidTask, Refused
from ...messages.programs import CLIENT
from ...messages.text import shown
from ...settings.dsn import Dsn
from ..database import Database
from ..dialect import Dialect, Pace, Rows, assignments, id_of_key, ids_of_keys
from ..retrying import Hosts
from .claiming import PostgreSQLClaiming
from .errors import DRIVER_ERRORS, error_of
from .session import Connection, PostgreSQLSession, connect_to

if TYPE_CHECKING:
    from ..facts import Facts
    from .notices import Notices


CANCEL_SECONDS = 2.0

RETURNING_ID = " RETURNING id"
RETURNING_KEY = " RETURNING unique_key, id"

WORDS = {
    # Differs from MySQL: now() is the start of the transaction, and clock_timestamp() cannot use an index.
    "now": "statement_timestamp()",
    "after": "statement_timestamp() + make_interval(secs => ?)",
    "age": "CAST(EXTRACT(EPOCH FROM statement_timestamp() - {}) AS float8)",
    # In UTC in every time zone: a session's settings do not last behind a transaction pooler.
    "text": "to_char({} AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS.US')",
    "instant": "CAST(? AS timestamp) AT TIME ZONE 'UTC'",
    "this_hour": "date_trunc('hour', statement_timestamp(), 'UTC')",
    "bytes_of": "octet_length({})",
    "as_bytes": "{}",
    "position": "strpos({}, ?)",
    "greatest": "GREATEST",
    "insert_or_ignore": "INSERT",
    "or_ignore": "ON CONFLICT DO NOTHING",
    # DO UPDATE would write the row again.
    "keep_standing": "ON CONFLICT (unique_key) WHERE unique_key IS NOT NULL DO NOTHING",
    "any_key": "convert_from(decode(?, 'hex'), 'UTF8')",
    "given": "EXCLUDED.{}",
    "standing": "{0}.{1}",  # a bare column would be ambiguous
    "quoted": '"{}"',
    # Differs from MySQL: no hints. Each index has its own form of the status (schema.postgresql.sql); only a SELECT
    # that should use this index uses this form.
    "by_key": "",
    "by_status": "",
    "by_due": "",
    "group_status": "(0 + status)",
    "due_status": "(status + 0)",
    "undated_order": "due_at DESC,",
    "undated_order_up": "due_at,",
    "any_status": "(status - 0)",
    # As on SQLite, DISTINCT would read every entry of an index, so each group is searched after the last one.
    "groups_of_status": """
        WITH RECURSIVE found (group_id) AS (
            SELECT (SELECT MIN(group_id) FROM {0} WHERE (0 + status) = {2})
            UNION ALL
            SELECT (SELECT MIN(group_id) FROM {0} WHERE (0 + status) = {2} AND group_id > found.group_id)
            FROM found WHERE found.group_id IS NOT NULL
        )
        SELECT CAST({2} AS integer), group_id FROM found WHERE group_id IS NOT NULL LIMIT ?
    """,
    "limit_statements": "SET statement_timeout = '{0}s'",
    "delete_by_key": "DELETE FROM {}",
}
"""The words of PostgreSQL from 13 on."""


def numbered(sql: str) -> str:
    """A statement with PostgreSQL's marks $1, $2 instead of `?`."""
    numbers = count(1)
    return re.sub(r"\?", lambda _: f"${next(numbers)}", sql)


class PostgreSQLDialect(Dialect):
    """A queue in a PostgreSQL database."""

    driver_errors = DRIVER_ERRORS
    own_words = WORDS
    kind = "postgresql"

    def __init__(self, dsn: Dsn, table: str) -> None:
        super().__init__(table)
        self._dsn = dsn
        self.hosts = Hosts(dsn.by_host, lambda error, at: error_of(error, at, table, is_login=True))
        self.claiming = PostgreSQLClaiming()

    def error(self, error: BaseException, where: str = "") -> DatabaseError:
        return error_of(error, self._dsn, self.table, where)

    OTHER_OWNER = """
        SELECT pg_get_userbyid(relowner) FROM pg_class
        WHERE oid = to_regclass(?) AND NOT pg_has_role(relowner, 'USAGE')
    """

    def make_place(self, database: Database) -> None:
        """Raises DatabaseError if the database cannot store every text, or another account owns the tables."""
        encoding = database.fetch_value("SELECT current_setting('server_encoding')")
        if encoding != "UTF8":
            raise DatabaseError(
                f"{self._dsn.place}: the database's encoding is {encoding}, which cannot store every text: make a "
                "database with ENCODING 'UTF8' TEMPLATE template0 for the queue"
            )
        owner = database.fetch_value(self.OTHER_OWNER, (WORDS["quoted"].format(self.table),))
        if owner is not None:
            raise DatabaseError(
                f"{self._dsn.place}: the tables of {self.table} belong to {shown(owner)}: run {CLIENT} init as that "
                "account, by TASKSERVER_DSN and TASKSERVER_PASSWORD in the environment of this one command"
            )

    def new_session(self, hosts: Hosts | None = None) -> PostgreSQLSession:
        return PostgreSQLSession(hosts or self.hosts)

    def with_marks(self, sql: str) -> str:
        return numbered(sql)

    @staticmethod
    def upsert(changes: Mapping[str, str], condition: str, key: str = "unique_key") -> str:
        rows = " WHERE unique_key IS NOT NULL" if key == "unique_key" else ""  # as in its index
        where = f" WHERE {condition}" if condition else ""
        return f"ON CONFLICT ({key}){rows} DO UPDATE SET {assignments(changes)}{where}"

    # ---- add

    def key(self, key: str) -> str:
        if "\0" in key:
            raise InvalidTask(f"unique_key is {shown(key)}; allowed on PostgreSQL: a text without NUL")
        return super().key(key)

    def insert(self, place: Rows, sql: str, values: Sequence[Any], count: int) -> Sequence[int]:
        ids = [int(row[0]) for row in place.rows(sql + RETURNING_ID, values)]
        if len(ids) < count:
            raise Refused(
                f"{count - len(ids)} of {count} tasks were not added: a trigger or a rule of the table drops them"
            )
        return ids

    def insert_key(self, place: Rows, sql: str, values: Sequence[Any], key: str) -> int:
        # An existing row is unchanged, so it is not returned. The next statement sees it, even if it was committed just
        # now, unless a worker has deleted it.
        rows = place.rows(sql + RETURNING_ID, values)
        return int(rows[0][0]) if rows else id_of_key(place, key)

    def insert_keyed(self, place: Rows, sql: str, values: Sequence[Any], keys: Sequence[str]) -> Sequence[int]:
        ids = {key.encode(): row_id for key, row_id in place.rows(sql + RETURNING_KEY, values)}
        if unseen := [key for key in dict.fromkeys(keys) if key.encode() not in ids]:
            ids |= ids_of_keys(place, unseen)
        try:
            return [ids[key.encode()] for key in keys]
        except KeyError:
            raise Conflict("a task whose key stood was deleted meanwhile: add it again") from None

    # ---- a caller's own connection

    # Locks the row without writing it: no worker can claim or delete it before the caller commits.
    callers_words: ClassVar[dict[str, str]] = {
        "keep_standing": "ON CONFLICT (unique_key) WHERE unique_key IS NOT NULL "
        "DO UPDATE SET unique_key = EXCLUDED.unique_key WHERE FALSE"
    }

    @property
    def callers_place(self) -> str:
        return f"{self._dsn.place}, and their schema in its search_path"

    def callers_cursor(self, connection: Any) -> Any:
        if not isinstance(connection, psycopg.Connection):
            return connection.cursor()
        if connection.pgconn.pipeline_status:  # where outcomes arrive late
            raise InvalidTask("connection is in pipeline mode; allowed: one outside of `with connection.pipeline()`")
        return psycopg.Cursor(connection, row_factory=tuple_row)

    # ---- a task's own transaction

    # The driver begins the transaction. A task may compute, or wait for a lock, for longer than a host's timeouts. The
    # settings are for this transaction only: a pooler keeps no others.
    begin_task = """
        SELECT pg_catalog.set_config(name, '0', true) FROM pg_catalog.pg_settings
        WHERE name IN
            ('statement_timeout', 'lock_timeout', 'idle_in_transaction_session_timeout', 'transaction_timeout')
    """

    def open_task_connection(self, pace: Pace) -> Connection:
        connection = self.hosts.connect(
            lambda dsn, seconds: connect_to(dsn, seconds, self.hosts.are_several, prepare_threshold=None),
            pace.connect_seconds,
        )
        connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
        return connection

    def set_timeout(self, connection: Connection, seconds: float | None) -> None:
        connection.answer_seconds = seconds

    def was_closed(self, connection: Connection) -> bool:
        return connection.closed and not connection.broken

    def close_task_connection(self, connection: Connection) -> None:
        # Differs from MySQL: a statement continues without its client and would block the next attempt. Only a new
        # libpq can cancel it quickly.
        with suppress(*DRIVER_ERRORS):
            is_busy = connection.info.transaction_status == TransactionStatus.ACTIVE
            if is_busy and psycopg.capabilities.has_cancel_safe():
                connection.cancel_safe(timeout=CANCEL_SECONDS)
        super().close_task_connection(connection)

    # ---- other

    def notices(self, database: Database) -> Notices:
        from .notices import Notices

        return Notices(database)

    def facts(self) -> Facts:
        from .facts import FACTS

        return FACTS
