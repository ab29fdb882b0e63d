"""MySQL and MariaDB, on PyMySQL, also on old shared servers. The other dialects say how they differ from this."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar

import pymysql

from ...errors import DatabaseError
from ...settings.dsn import Dsn
from ..dialect import Dialect, Pace, Rows, assignments, ids_of_keys
from ..retrying import Hosts
from .claiming import MySQLClaiming
from .errors import DRIVER_ERRORS, error_of
from .session import READ_COMMITTED, Abilities, MySQLSession, connect_to, set_timeout

if TYPE_CHECKING:
    from ..facts import Facts

QUIET = (
    "SET sql_select_limit = 18446744073709551615, sql_big_selects = 1, wait_timeout = 86400 "
    "/*M!100300 , idle_transaction_timeout = 0, idle_write_transaction_timeout = 0, "
    "idle_readonly_transaction_timeout = 0*/"
)
"""For a task's own connection: the task gets all rows of its SELECTs, and may compute for longer between two
statements than hosts let a connection be idle."""

WORDS = {
    "now": "NOW(6)",
    "after": "NOW(6) + INTERVAL ? SECOND",
    "age": "TIMESTAMPDIFF(MICROSECOND, {}, NOW(6)) / 1e6",
    "text": "DATE_FORMAT({}, '%Y-%m-%d %H:%i:%s.%f')",
    "this_hour": "DATE_FORMAT(NOW(), '%Y-%m-%d %H:00:00')",
    "bytes_of": "OCTET_LENGTH({})",
    "as_bytes": "CAST({} AS BINARY)",
    "position": "INSTR({}, ?)",
    "is_undated": "due_at + 0 = 0",
    "greatest": "GREATEST",
    "insert_or_ignore": "INSERT IGNORE",
    # The INSERT itself returns the id of the existing row: a SELECT could miss that row in an old snapshot.
    "keep_standing": "ON DUPLICATE KEY UPDATE unique_key = unique_key, id = LAST_INSERT_ID(id)",
    "any_key": "UNHEX(?)",
    "given": "VALUES({})",
    "quoted": "`{}`",
    "by_key": "FORCE INDEX (PRIMARY)",
    "by_status": "FORCE INDEX (claim_by_group)",
    "by_due": "FORCE INDEX (wake_due)",
    "groups_of_status": "SELECT DISTINCT status, group_id FROM {0} {1} WHERE status = {2} ORDER BY group_id LIMIT ?",
    "limit_statements": (
        "SET @seconds = {0}/*!50708 , max_execution_time = {0}000*//*M!100101 , max_statement_time = {0}*/"
    ),
    "delete_by_key": "DELETE gone FROM {} AS gone FORCE INDEX (PRIMARY)",
}
"""The words of MySQL from 5.7 on, and MariaDB from 10.3 on."""


class MySQLDialect(Dialect):
    """A queue in a MySQL or MariaDB database."""

    driver_errors = DRIVER_ERRORS
    own_words = WORDS
    kind = "mysql"

    def __init__(self, dsn: Dsn, table: str) -> None:
        super().__init__(table)
        self._dsn = dsn
        # The full name: a caller's session may use another database of the server.
        database = dsn.database.replace("`", "``").replace("{", "{{").replace("}", "}}")
        self.callers_quoted = f"`{database}`.{WORDS['quoted']}"
        self.hosts = Hosts(dsn.by_host, lambda error, at: error_of(error, at, table, is_login=True))
        self.abilities = Abilities()
        self.claiming = MySQLClaiming()

    def error(self, error: BaseException, where: str = "") -> DatabaseError:
        return error_of(error, self._dsn, self.table, where)

    def new_session(self, hosts: Hosts | None = None) -> MySQLSession:
        return MySQLSession(hosts or self.hosts, self.abilities)

    def with_marks(self, sql: str) -> str:
        return sql.replace("%", "%%").replace("?", "%s")

    @staticmethod
    def upsert(changes: Mapping[str, str], condition: str, key: str = "unique_key") -> str:
        # MySQL has no single condition for all changes.
        new = {column: f"IF({condition}, {to}, {column})" if condition else to for column, to in changes.items()}
        returns_id = ", id = LAST_INSERT_ID(id)" if key == "unique_key" else ""
        return f"ON DUPLICATE KEY UPDATE {assignments(new)}{returns_id}"

    # ---- add

    def insert(self, place: Rows, sql: str, values: Sequence[Any], count: int) -> Sequence[int]:
        first = int(place.execute(sql, values).lastrowid)
        if count == 1:
            return (first,)
        # InnoDB gives the rows of one INSERT … VALUES consecutive ids, in steps of this variable (Galera sets it).
        step = int(place.rows("SELECT @@SESSION.auto_increment_increment LIMIT 1")[0][0])
        return range(first, first + count * step, step)

    def insert_key(self, place: Rows, sql: str, values: Sequence[Any], key: str) -> int:
        return int(place.execute(sql, values).lastrowid)

    def insert_keyed(self, place: Rows, sql: str, values: Sequence[Any], keys: Sequence[str]) -> Sequence[int]:
        # In REPEATABLE READ a plain SELECT reads the transaction's first snapshot. A locking one sees the right row,
        # which is already locked. With several keys it would wait for neighbouring rows, so each key has its own.
        place.execute(sql, values)
        ids = ids_of_keys(place, keys) if self.abilities.isolation == READ_COMMITTED else {}
        for unseen in [key for key in keys if key.encode() not in ids]:
            ids |= ids_of_keys(place, [unseen], " FOR UPDATE")
        return [ids[key.encode()] for key in keys]

    # ---- a caller's own connection

    # The server converts instants from the session's time zone. NOW(6) plus an interval would be an hour off across a
    # change of summer time, and UNIX_TIMESTAMP(NOW(6)) in the repeated hour. UNIX_TIMESTAMP() is right, but lacks the
    # microseconds.
    callers_words: ClassVar[dict[str, str]] = {
        "after": "FROM_UNIXTIME(UNIX_TIMESTAMP() + MICROSECOND(NOW(6)) * 0.000001 + ?)",
        "instant": "CONVERT_TZ(?, '+00:00', @@SESSION.time_zone)",
        "lock_edges": "FOR UPDATE",  # the session may be in REPEATABLE READ
    }

    @property
    def callers_place(self) -> str:
        return self._dsn.place

    # ---- a task's own transaction

    def open_task_connection(self, pace: Pace) -> Any:
        # The task may do anything with it, so all but QUIET are defaults of the driver and the server.
        connection = connect_to(self.hosts, pace, self.abilities, autocommit=False, init_command=QUIET)
        if self.abilities.isolation != READ_COMMITTED:
            _allow_renewals(connection)
        return connection

    def set_timeout(self, connection: Any, seconds: float | None) -> None:
        set_timeout(connection, seconds)

    def was_closed(self, connection: Any) -> bool:
        return bool(connection._closed)  # the public `open` is False for a broken one too

    # ---- other

    def facts(self) -> Facts:
        from .facts import FACTS

        return FACTS


def _allow_renewals(connection: Any) -> None:
    # MariaDB may refuse a write to a row that was changed after the transaction's snapshot. A renewed lease would then
    # prevent the task's completion.
    with suppress(pymysql.MySQLError), connection.cursor() as cursor:
        cursor.execute("SET innodb_snapshot_isolation = OFF")
