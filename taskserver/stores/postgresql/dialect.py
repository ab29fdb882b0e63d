"""PostgreSQL, on psycopg 3: an extra."""

from __future__ import annotations

from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from ...errors import DatabaseError, InvalidTask
from ...messages.printable import shown
from ...messages.programs import CLIENT
from ...settings.dsn import PostgreSQLDsn
from ..database import Database
from ..dialect import Dialect
from ..session import Pace
from .claiming import PostgreSQLClaiming
from .errors import DRIVER_ERRORS, error_of
from .session import Connection, PostgreSQLSession, connect_to
from .words import WORDS, PostgreSQLInserts, numbered, upsert

if TYPE_CHECKING:
    from ..facts import Facts
    from .notices import Notices


CANCEL_SECONDS = 2.0


class PostgreSQLDialect(Dialect):
    """A queue in a PostgreSQL database."""

    driver_errors = DRIVER_ERRORS
    own_words = WORDS
    upsert = staticmethod(upsert)
    kind = "postgresql"
    about_space = (
        "PostgreSQL keeps the space in its files, for new rows; VACUUM FULL {} copies what is left into files that are "
        "as small as they can be, if there is room for both, and nobody can use the table meanwhile"
    )
    skips_locked = True
    skip_locked = " FOR UPDATE SKIP LOCKED"
    for_update = " FOR UPDATE"
    for_update_at_once = " FOR UPDATE NOWAIT"
    joins_statements = checks_joined = True

    def __init__(self, dsn: PostgreSQLDsn, table: str) -> None:
        super().__init__(table)
        self._dsn = dsn
        self.claiming = PostgreSQLClaiming()

    @cached_property
    def inserts(self) -> PostgreSQLInserts:
        return PostgreSQLInserts()

    def with_marks(self, sql: str) -> str:
        return numbered(sql)

    def error(self, error: BaseException, where: str = "") -> DatabaseError:
        return error_of(error, self._dsn, self.table, where)

    # ---- connections

    def new_session(self) -> PostgreSQLSession:
        return PostgreSQLSession(self._dsn, self._login_error)

    def _login_error(self, error: BaseException) -> DatabaseError:
        return error_of(error, self._dsn, self.table, is_login=True)

    # The driver begins the transaction before its first statement. A task may compute, or wait for a lock, for longer
    # than hosts let a statement or a transaction take. Behind a pooler settings are those of the one transaction.
    begin_task = """
        SELECT pg_catalog.set_config(name, '0', true) FROM pg_catalog.pg_settings
        WHERE name IN
            ('statement_timeout', 'lock_timeout', 'idle_in_transaction_session_timeout', 'transaction_timeout')
    """

    def open_task_connection(self, pace: Pace) -> Connection:
        try:
            connection = connect_to(self._dsn, pace.answer_seconds, prepare_threshold=None)
            connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
        except Exception as error:  # a server that is none of PostgreSQL's may make the driver raise anything
            raise self._login_error(error) from None
        return connection

    def set_timeout(self, connection: Connection, seconds: float | None) -> None:
        connection.answer_seconds = seconds

    def was_closed(self, connection: Connection) -> bool:
        return connection.closed and not connection.broken

    def close_task_connection(self, connection: Connection) -> None:
        # A statement goes on without us, and keeps its locks from the next attempt. An old libpq could wait for long.
        with suppress(*DRIVER_ERRORS):
            is_busy = connection.info.transaction_status == TransactionStatus.ACTIVE
            if is_busy and psycopg.capabilities.has_cancel_safe():
                connection.cancel_safe(timeout=CANCEL_SECONDS)
        super().close_task_connection(connection)

    # ---- a caller's own connection

    # Locks the row, and writes it not: until the caller commits no worker can claim it, nor delete it.
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
        if connection.pgconn.pipeline_status:  # which tells late what a statement came to
            raise InvalidTask("connection is in pipeline mode; allowed: one outside of `with connection.pipeline()`")
        return psycopg.Cursor(connection, row_factory=tuple_row)

    # ---- tables

    FOREIGN_OWNER = """
        SELECT pg_get_userbyid(relowner) FROM pg_class
        WHERE oid = to_regclass(?) AND NOT pg_has_role(relowner, 'USAGE')
    """

    def make_place(self, database: Database) -> None:
        """Raises DatabaseError where the database cannot hold every text, or the tables belong to another account."""
        encoding = database.fetch_value("SELECT current_setting('server_encoding')")
        if encoding != "UTF8":
            raise DatabaseError(
                f"{self._dsn.place}: the database's encoding is {encoding}, in which not every task, nor every error "
                "of one, can be stored and read: make a database with ENCODING 'UTF8' TEMPLATE template0 for the queue"
            )
        owner = database.fetch_value(self.FOREIGN_OWNER, (WORDS["quoted"].format(self.table),))
        if owner is not None:
            raise DatabaseError(
                f"{self._dsn.place}: the tables of {self.table} belong to {shown(owner)}: run {CLIENT} init as that "
                "account, by TASKSERVER_DSN and TASKSERVER_PASSWORD in the environment of this one command"
            )

    # ---- for a run that lingers

    def notices(self, database: Database) -> Notices:
        from .notices import Notices

        return Notices(database)

    # ---- rows that are not committed yet

    # ---- for client.py doctor

    def facts(self) -> Facts:
        from .facts import FACTS

        return FACTS
