"""MySQL and MariaDB, on PyMySQL: the home ground, on old shared servers too."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar

import pymysql

from ...errors import DatabaseError
from ...settings.dsn import MySQLDsn
from ..dialect import Dialect
from ..session import Pace
from .claiming import MySQLClaiming
from .errors import DRIVER_ERRORS, error_of
from .session import READ_COMMITTED, Abilities, MySQLSession, log_in, set_isolation, set_timeout
from .words import WORDS, MySQLInserts, upsert

if TYPE_CHECKING:
    from ..facts import Facts

QUIET = (
    "SET sql_select_limit = 18446744073709551615, sql_big_selects = 1, wait_timeout = 86400 "
    "/*M!100300 , idle_transaction_timeout = 0, idle_write_transaction_timeout = 0, "
    "idle_readonly_transaction_timeout = 0*/"
)
"""A task may compute or wait for longer between two of its statements than hosts let a connection be idle, and reads
all rows that it asks for."""


class MySQLDialect(Dialect):
    """A queue in a MySQL or MariaDB database."""

    driver_errors = DRIVER_ERRORS
    own_words = WORDS
    upsert = staticmethod(upsert)
    kind = "mysql"
    about_space = (
        "InnoDB keeps the space in its files, for new rows; OPTIMIZE TABLE {} copies what is left into files that are "
        "as small as they can be, if there is room for both"
    )
    skips_locked = True
    skip_locked = " FOR UPDATE SKIP LOCKED"
    for_update = " FOR UPDATE"
    for_update_at_once = " FOR UPDATE NOWAIT"
    joins_statements = True

    def __init__(self, dsn: MySQLDsn, table: str) -> None:
        super().__init__(table)
        self._dsn = dsn
        # In full, as a caller's session may be in another database of the server.
        database = dsn.database.replace("`", "``").replace("{", "{{").replace("}", "}}")
        self.callers_quoted = f"`{database}`.{WORDS['quoted']}"
        self.abilities = Abilities()
        self.claiming = MySQLClaiming()
        self._inserts = MySQLInserts(self.abilities)

    @property
    def inserts(self) -> MySQLInserts:
        return self._inserts

    def with_marks(self, sql: str) -> str:
        return sql.replace("%", "%%").replace("?", "%s")

    def error(self, error: BaseException, where: str = "") -> DatabaseError:
        return error_of(error, self._dsn, self.table, where=where)

    # ---- connections

    def new_session(self) -> MySQLSession:
        return MySQLSession(self._dsn, self.abilities, self.login_error)

    def login_error(self, error: BaseException) -> DatabaseError:
        """Our error for an error at login: nothing was sent by then."""
        return error_of(error, self._dsn, self.table, is_login=True)

    def open_task_connection(self, pace: Pace) -> Any:
        try:
            # With the defaults of the driver and the server, but for QUIET: the task may do anything with it.
            connection = log_in(self._dsn, pace.answer_seconds, autocommit=False, init_command=QUIET)
            set_isolation(connection, self.abilities)
            if self.abilities.isolation != READ_COMMITTED:
                _allow_renewals(connection)
        except Exception as error:
            raise self.login_error(error) from None
        return connection

    def set_timeout(self, connection: Any, seconds: float | None) -> None:
        set_timeout(connection, seconds)

    def was_closed(self, connection: Any) -> bool:
        return bool(connection._closed)  # public is only whether it is open, which a broken one is not either

    # ---- a caller's own connection

    # The server converts an instant from the session's time zone to the column's, so a statement gives it in the
    # session's. NOW(6) plus an interval would be an hour off across a change of summer time, and UNIX_TIMESTAMP(NOW(6))
    # in the hour that comes twice. UNIX_TIMESTAMP() is right; it lacks the microseconds.
    callers_words: ClassVar[dict[str, str]] = {
        "after": "FROM_UNIXTIME(UNIX_TIMESTAMP() + MICROSECOND(NOW(6)) * 0.000001 + ?)",
        "instant": "CONVERT_TZ(?, '+00:00', @@SESSION.time_zone)",
        "lock_edges": "FOR UPDATE",  # the session may be in REPEATABLE READ
    }

    @property
    def callers_place(self) -> str:
        return self._dsn.place

    # ---- for client.py doctor

    def facts(self) -> Facts:
        from .facts import FACTS

        return FACTS


def _allow_renewals(connection: Any) -> None:
    # MariaDB may refuse a write to a row that was changed since the transaction's snapshot. Then no task whose lease
    # was renewed meanwhile could be completed.
    with suppress(pymysql.MySQLError), connection.cursor() as cursor:
        cursor.execute("SET innodb_snapshot_isolation = OFF")
