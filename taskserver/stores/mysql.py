"""The store for MySQL and MariaDB, on PyMySQL: the home ground, on old shared servers too.

The dialect's hard part is the claim; the essay stands there.
"""

from __future__ import annotations

import codecs
import random
import ssl
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import pymysql
from pymysql.constants import CLIENT

from ..dsn import MySQLDsn, usual_socket
from ..errors import DatabaseError
from .database import P, Session, T, Write, with_ids
from .mysql_errors import (
    COLUMN_MISSING,
    INDEX_MISSING,
    NEEDS_TLS,
    RIGHTS_MISSING,
    STATEMENT_BINLOG,
    SYNTAX,
    TABLE_MISSING,
    hint_at,
    kind_of,
    number_of,
)
from .store import MOST_GROUPS, Store
from .tries import Way

if TYPE_CHECKING:
    from .facts import MySQLFacts
    from .task_session import TaskSession

CONNECT_SECONDS = 10
READ_SECONDS_IN_A_RUN = 10
"""A worker's statements are short: who says nothing for so long is no longer there, though TCP may believe so."""
READ_SECONDS = 60
"""Others wait longer, since they would not know whether their task was added."""

# UTC, as NOW() in a zone with summer time gives one hour twice a year; strict, so that nothing of ours is cut
# silently; backslash escapes on, as PyMySQL quotes with them.
# Locks of rows are waited for in short turns, between which a signal is heard and the patience ends.
SESSION = "SET time_zone = '+00:00', sql_mode = 'STRICT_ALL_TABLES', innodb_lock_wait_timeout = 1"
# A worker waits so for those of whole tables (a backup's), too: to hang up instead would leave the statement waiting on
# the server, with a connection that counts. Producers, and changes of tables, wait for as long as the server lets them.
IN_A_RUN = "lock_wait_timeout = 1"
AFTER_A_RUN = "SET lock_wait_timeout = DEFAULT"
READ_COMMITTED = "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED"
REPEATABLE_READ = "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ"

ANY_BYTES = "taskserver_any_bytes"


class _Abilities:
    """What this server can do, as found out on the way; for all connections of a store."""

    skips_locked = True
    joins_statements = True
    reads_any_bytes = False
    isolation = READ_COMMITTED


class MySQLStore(Store):
    """A queue in a MySQL or MariaDB database."""

    now = "NOW(6)"
    after = "NOW(6) + INTERVAL ? SECOND"
    seconds_since = "TIMESTAMPDIFF(MICROSECOND, {}, NOW(6)) / 1e6"
    instant_text = "DATE_FORMAT({}, '%Y-%m-%d %H:%i:%s.%f')"
    bytes_of = "OCTET_LENGTH({})"
    this_hour = "DATE_FORMAT(NOW(), '%Y-%m-%d %H:00:00')"
    greatest = "GREATEST"
    insert_or_ignore = "INSERT IGNORE"
    given = "VALUES({})"
    quoted = "`{}`"
    by_key = "FORCE INDEX (PRIMARY)"
    by_status = "FORCE INDEX (claim_by_group)"
    delete_by_key = "DELETE gone FROM {} AS gone FORCE INDEX (PRIMARY)"
    about_space = (
        "InnoDB keeps the space in its files, for new rows; OPTIMIZE TABLE {} copies what is left into files that are "
        "as small as they can be, if there is room for both"
    )
    schema_file = "mysql.sql"
    instant_type = "TIMESTAMP(6)"
    number_type = "BIGINT UNSIGNED"
    small_type = "SMALLINT UNSIGNED"
    flag_type = "TINYINT UNSIGNED"
    text_type = "TEXT"
    long_text_type = "MEDIUMTEXT"

    def __init__(self, dsn: MySQLDsn, table: str, mode: str, lease_seconds: int, patience_seconds: float) -> None:
        super().__init__(table, mode, lease_seconds, patience_seconds)
        self._dsn = dsn
        self._abilities = _Abilities()

    # ---- add
    #
    # In REPEATABLE READ a plain look does not see a key's row that another committed since this transaction's first
    # look, or sees one that is gone. A locking one does, and the row is locked already; but one for several keys would
    # wait for rows beside them.

    IDS_OF_UNSEEN_KEYS = Store.IDS_OF_KEYS + " FOR UPDATE"

    def _find_keys(self, sql: str, keys: Sequence[str]) -> dict[bytes, int]:
        ids = super()._find_keys(sql, keys) if self._abilities.isolation == READ_COMMITTED else {}
        for unseen in [key for key in keys if key.encode() not in ids]:
            ids |= super()._find_keys(self.IDS_OF_UNSEEN_KEYS, [unseen])
        return ids

    # ---- claim
    #
    # Each group gives its first rows in order straight from (status, group_id, priority, id); those few are put in
    # order together, and the UPDATE reaches the chosen ones by primary key. So a claim reads groups times limit
    # index entries, however many rows wait, are finished, or belong to others. What goes wrong in the naive forms:
    #
    # - UPDATE … WHERE group_id IN (…) ORDER BY priority, id LIMIT n has no index for that order: it sorts the whole
    #   backlog and locks all that it read, so a second worker waits for the first.
    # - Forcing (status, priority, id) instead reads past every sooner task of every other group.
    # - Without SKIP LOCKED two workers pick the same rows and one waits, or the two deadlock; that is all that
    #   servers before MariaDB 10.6 and MySQL 8.0.1 can do. It is right there too, as the outer WHERE looks again,
    #   and deadlocks are retried.
    #
    # STRAIGHT_JOIN and the forced keys: on a small or freshly filled table the optimizer would rather scan, and a
    # scanning UPDATE locks everything. Values are taken from `picked`, since a joined UPDATE promises no order of
    # its assignments.

    CLAIM = """
        UPDATE (SELECT id, due_at FROM ({picked}) AS candidates ORDER BY priority, id LIMIT ?) AS picked
        STRAIGHT_JOIN {table} AS task FORCE INDEX (PRIMARY) ON task.id = picked.id
        SET task.status = IF(picked.due_at > NOW(6), 5, 1),
            task.claim = IF(picked.due_at > NOW(6), NULL, ?),
            task.due_at = IF(picked.due_at > NOW(6), picked.due_at, NOW(6) + INTERVAL ? SECOND),
            task.started_at = NULL,
            task.updated_at = task.updated_at
        WHERE task.status = 0
    """
    PICK_OF_GROUP = """
        SELECT * FROM (SELECT id, priority, due_at FROM {table} FORCE INDEX (claim_by_group)
                       WHERE status = 0 AND group_id = ? AND (SELECT COUNT(*) FROM {paused} WHERE group_id = ?) = 0
                       ORDER BY priority, id LIMIT ?{skip_locked}) AS of_group
    """
    PICK_OF_ALL = """
        SELECT * FROM (SELECT id, priority, due_at FROM {table} FORCE INDEX (claim_any_group)
                       WHERE status = 0 AND (SELECT COUNT(*) FROM {paused}) = 0
                       ORDER BY priority, id LIMIT ?{skip_locked}) AS of_all
    """
    SKIP_LOCKED = " FOR UPDATE SKIP LOCKED"
    LOCK_UNHELD = "SELECT id FROM {table} FORCE INDEX (PRIMARY) WHERE id IN ({ids})" + SKIP_LOCKED
    LOOK_OF_GROUPS = """
        SELECT 1 FROM {table} FORCE INDEX (claim_by_group) WHERE status = 0 AND group_id IN ({ids}) LIMIT 1
    """
    LOOK_OF_ALL = "SELECT 1 FROM {table} FORCE INDEX (claim_any_group) WHERE status = 0 LIMIT 1"
    # From group to group, each read at once by the index: MariaDB would read every new row to find what is DISTINCT.
    NEXT_GROUP = """
        SELECT MIN(group_id) FROM {table} FORCE INDEX (claim_by_group) WHERE status = 0 AND group_id >= ?
    """
    LAST_GROUP = "SELECT MAX(group_id) FROM {table} FORCE INDEX (claim_by_group) WHERE status = 0"

    def _claim(self, token: int, limit: int, groups: Sequence[int]) -> int:
        values = self._claim_values(groups, limit, token)
        changed = self._skipping_locked(self._write, self._claim_statement(groups, self.SKIP_LOCKED), values)
        return self._write(self._claim_statement(groups, ""), values) if changed is None else changed

    def _skipping_locked(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
        """Do what needs SKIP LOCKED; None, and nothing was done, on a server that has it not."""
        if self._abilities.skips_locked:
            try:
                return work(*args, **kwargs)
            except DatabaseError as error:
                if number_of(error.__cause__) != SYNTAX:
                    raise
                self._abilities.skips_locked = False
        return None

    def _write_unheld(self, sql: str, ids: Sequence[int], values: Sequence[Any]) -> int | None:
        return self._skipping_locked(self._do, Way(True, 0), self._lock_and_write, sql, ids, values)

    def _locking(self, work: Callable[[str], T]) -> T:
        done = self._skipping_locked(work, self.SKIP_LOCKED)
        return work(" FOR UPDATE") if done is None else done

    def _lock_and_write(self, sql: str, ids: Sequence[int], values: Sequence[Any]) -> int:
        unheld = [row[0] for row in self._all(with_ids(self.LOCK_UNHELD, ids), ids)]
        return self._write_ids(sql, unheld, values) if unheld else 0

    def _claim_values(self, groups: Sequence[int], limit: int, token: int) -> Sequence[int]:
        picked = [value for group in groups for value in (group, group, limit)] or [limit]
        return (*picked, limit, token, self._lease_seconds)

    def _claim_statement(self, groups: Sequence[int], skip_locked: str) -> str:
        picked = " UNION ALL ".join([self.PICK_OF_GROUP] * len(groups)) or self.PICK_OF_ALL
        return self.CLAIM.replace("{picked}", picked).replace("{skip_locked}", skip_locked)

    def _has_new(self, groups: Sequence[int]) -> bool:
        if not groups:
            return bool(self._alone(self._all, self.LOOK_OF_ALL))
        return bool(self._alone(self._all, with_ids(self.LOOK_OF_GROUPS, groups), groups))

    def _groups_with_new(self) -> Sequence[int]:
        last = self._alone(self._one, self.LAST_GROUP)[0]
        if last is None:
            return []
        # From any on: where there are too many of them to find all, each is to have its turn.
        first = random.randint(0, last)
        return [*self._groups_between(first, last), *self._groups_between(0, first - 1)]

    def _groups_between(self, first: int, last: int) -> Iterator[int]:
        for _ in range(MOST_GROUPS):
            group = self._alone(self._all, self.NEXT_GROUP, (first,))[0][0] if first <= last else None
            if group is None or group > last:
                return
            yield group
            first = group + 1

    # ---- for client.py doctor

    def facts(self) -> MySQLFacts:
        from .mysql_facts import read_facts

        # Found out by trying, of rows that are none; this account may lack the right.
        with suppress(DatabaseError):
            self._skipping_locked(self._alone, self._all, with_ids(self.LOCK_UNHELD, (0,)), (0,))
        return read_facts(
            self, self._abilities.skips_locked, lambda error: number_of(error.__cause__) in RIGHTS_MISSING
        )

    def explain_claim(self, groups: Sequence[int]) -> Sequence[str]:
        statement = self._claim_statement(groups, self.SKIP_LOCKED if self._abilities.skips_locked else "")
        return self._alone(
            self._indexes_of, f"EXPLAIN FORMAT = TRADITIONAL {statement}", self._claim_values(groups, 1, 0)
        )

    def _indexes_of(self, sql: str, values: Sequence[Any]) -> list[str]:
        cursor = self._execute(sql, values)
        key = [column[0] for column in cursor.description].index("key")
        return [row[key] for row in cursor.fetchall() if row[key]]

    # ---- connections

    def _connect(self) -> Any:
        connect = partial(
            pymysql.connect,
            autocommit=True,
            # Matched rows, not changed ones: a write that changes nothing still found its claim.
            client_flag=CLIENT.FOUND_ROWS | CLIENT.MULTI_STATEMENTS,
            init_command=f"{SESSION}, {IN_A_RUN}" if self._is_in_run() else SESSION,
        )
        try:
            connection = self._log_in(connect)
            with connection.cursor() as cursor:
                cursor.execute(self._abilities.isolation)
        except Exception as error:  # whatever a server that is none of MySQL's makes the driver stumble over, too
            raise self._error(error, is_login=True) from None
        if self._abilities.reads_any_bytes:
            connection.encoding = ANY_BYTES
        return connection

    def full_words(self) -> dict[str, str]:
        database = self._dsn.database.replace("`", "``").replace("{", "{{").replace("}", "}}")
        return self._make_words(self.table, f"`{database}`.{self.quoted}")

    def open_task_session(self) -> TaskSession:
        from .mysql_task_session import MySQLTaskSession, TaskConnection

        try:
            # As the driver and the server have it by default, for whatever the task does with it.
            connection = self._log_in(partial(TaskConnection, autocommit=False))
            session = MySQLTaskSession(connection)
            with connection.cursor() as cursor:
                cursor.execute(self._abilities.isolation)
                if self._abilities.isolation != READ_COMMITTED:
                    self._bear_with_renewals(cursor)
                cursor.execute("SELECT @@max_allowed_packet")
                session.most_bytes = cursor.fetchone()[0]
        except Exception as error:
            raise self._error(error, is_login=True) from None
        return session

    def _bear_with_renewals(self, cursor: Any) -> None:
        # Where MariaDB minds that a row was changed since the transaction's snapshot, no task could be completed whose
        # lease was renewed meanwhile.
        with suppress(pymysql.MySQLError):
            cursor.execute("SET innodb_snapshot_isolation = OFF")

    def _log_in(self, connect: Callable[..., Any]) -> Any:
        mode = self._dsn.ssl_mode
        if mode or not self._dsn.is_loopback:
            return self._log_in_with(mode or "preferred", connect)
        # Nothing on the way could listen, so TLS would only cost time, unless the login insists on it.
        try:
            return self._log_in_with("disabled", connect)
        except (pymysql.MySQLError, RuntimeError) as error:
            if number_of(error) not in NEEDS_TLS and not isinstance(error, RuntimeError):
                raise
        return self._log_in_with("preferred", connect)

    def _log_in_with(self, ssl_mode: str, connect: Callable[..., Any]) -> Any:
        dsn = self._dsn
        seconds = min(CONNECT_SECONDS, self._local.answer_seconds)
        return connect(
            user=dsn.user or None,
            password=dsn.password.encode("utf-8", "surrogateescape"),
            host=dsn.host or None,
            port=dsn.port,
            unix_socket=dsn.unix_socket or usual_socket(dsn.host),
            database=dsn.database,
            charset="utf8mb4",
            connect_timeout=seconds,
            # Equal, as the driver would otherwise pay system calls for each change between them.
            read_timeout=seconds,
            write_timeout=seconds,
            ssl_disabled=ssl_mode == "disabled",
            ssl=_ssl_context(ssl_mode, dsn.ssl_ca),
        )

    def _make_ready(self, session: Session) -> None:
        # Before it is asked whether it still stands, and where it is new.
        self._set_timeouts(session.connection)
        super()._make_ready(session)
        self._set_timeouts(session.connection)

    def _set_timeouts(self, connection: Any) -> None:
        if connection is not None:
            # The driver has no public word for changing this.
            connection._read_timeout = connection._write_timeout = self._read_seconds()

    def _read_seconds(self) -> float | None:
        if self._local.is_unhurried:
            return None
        return min(READ_SECONDS_IN_A_RUN if self._is_in_run() else READ_SECONDS, self._local.answer_seconds)

    def _is_alive(self, connection: Any) -> bool:
        try:
            connection.ping(reconnect=False)
        except Exception as error:
            if not self._is_driver_error(error):
                raise
            return False
        return True

    def _changing(self, changes: dict[str, str], condition: str, key: str = "unique_key") -> str:
        # There is no condition for all of them together.
        new = {column: f"IF({condition}, {to}, {column})" if condition else to for column, to in changes.items()}
        return f"ON DUPLICATE KEY UPDATE {', '.join(f'{column} = {to}' for column, to in new.items())}"

    def _inserted_ids(self, cursor: Any, count: int) -> range:
        # InnoDB gives the rows of one INSERT … VALUES ids in a row, in the steps of this variable (Galera sets it).
        step = 1
        first = int(cursor.lastrowid)
        if count > 1:
            step = int(self._one("SELECT @@SESSION.auto_increment_increment")[0])
        return range(first, first + count * step, step)

    # ---- statements

    def begin_run(self, host: str, group_ids: str) -> None:
        self._alone(self._execute, f"SET {IN_A_RUN}")  # the connection may be from before the run
        super().begin_run(host, group_ids)

    def end_run(self, host: str, group_ids: str, seconds: float, reason: str, counts: Sequence[int]) -> None:
        super().end_run(host, group_ids, seconds, reason, counts)
        self._alone(self._execute, f"{AFTER_A_RUN}, autocommit = 1")

    def _commits_by_itself(self) -> bool:
        autocommit: bool = self._session.connection.get_autocommit()
        return autocommit

    def _begin(self) -> None:
        if self._commits_by_itself():
            super()._begin()

    def _together(self, writes: Sequence[Write], conflict_seconds: float) -> list[int]:
        # A task's writes come by the thousand, and the round trips are what they cost most: one instead of four.
        if not self._abilities.joins_statements:
            return super()._together(writes, conflict_seconds)
        try:
            return self._do(Way(False, conflict_seconds), self._send_joined, writes)
        except DatabaseError as error:
            if number_of(error.__cause__) != SYNTAX:
                raise
        # A proxy that takes one statement at a time; nothing was done.
        self._abilities.joins_statements = False
        return super()._together(writes, conflict_seconds)

    def _send_joined(self, writes: Sequence[Write]) -> list[int]:
        cursor = self._session.cursor
        texts = [_filled(cursor, self._compose(sql), values) for sql, values in writes]
        opening = [self._opening()] if self._commits_by_itself() else []
        try:
            cursor.execute("; ".join([*opening, *texts, "COMMIT"]))
            matched = [cursor.rowcount]
            while cursor.nextset():
                matched.append(cursor.rowcount)
        except Exception as error:
            if not self._is_driver_error(error):
                raise
            if number_of(error) != STATEMENT_BINLOG:
                raise self._error(error) from error
            self._leave_read_committed()
            return self._send_joined(writes)
        return matched[len(opening) : -1]

    def _opening(self) -> str:
        # In a run many transactions follow one another: without autocommit each of them is spared its BEGIN.
        return "SET autocommit = 0" if self._is_in_run() else "BEGIN"

    def _failed(self, sql: str, values: Sequence[Any], error: Exception) -> Any:
        if isinstance(error, UnicodeDecodeError) and not self._abilities.reads_any_bytes:
            return self._read_any_bytes(sql, values)
        if number_of(error) != STATEMENT_BINLOG:
            return super()._failed(sql, values, error)
        self._leave_read_committed()
        if self._session.in_transaction:
            self._begin()
        return self._execute(sql, values)

    def _read_any_bytes(self, sql: str, values: Sequence[Any]) -> Any:
        """MariaDB keeps what is no UTF-8, such as the surrogates that some programs make of emojis: read that too.

        Anew, as the driver stopped in the midst of an answer; statements that read rows can be repeated.
        """
        codecs.register(_find_codec)
        self._abilities.reads_any_bytes = True
        session = self._session
        self._disconnect(session)
        self._make_ready(session)
        return self._execute(sql, values)

    def _leave_read_committed(self) -> None:
        """Statement-based replication refuses writes in it, the first one of a transaction already."""
        self._abilities.isolation = REPEATABLE_READ
        self._execute("ROLLBACK")
        self._execute(REPEATABLE_READ)

    def _send(self, cursor: Any, sql: str, values: Sequence[Any]) -> None:
        cursor.execute(_filled(cursor, sql, values))

    def _with_marks(self, sql: str) -> str:
        return sql.replace("%", "%%").replace("?", "%s")

    # ---- errors

    def _is_driver_error(self, error: BaseException) -> bool:
        return isinstance(error, (pymysql.MySQLError, OSError, RuntimeError, ValueError))

    def _error(self, error: Exception, is_login: bool = False) -> DatabaseError:
        number = number_of(error)
        text = " ".join(str(error.args[-1] if error.args else error).split())
        where = self._dsn.place
        if number == TABLE_MISSING:
            return self._missing(f"{where} has no tables of {self.table}")
        if number == COLUMN_MISSING:
            return self._other_columns(where, text)
        if number == INDEX_MISSING:
            return DatabaseError(f"{where}: {text}: make it as in schema.sql")
        if isinstance(error, RuntimeError):
            return DatabaseError(
                f"{where}: this account's password needs TLS, which the server does not offer or ssl-mode forbids, "
                "or the package PyMySQL[rsa] (pip install 'PyMySQL[rsa]')"
            )
        hint = hint_at(number, text, self._dsn, is_login)
        what = f"{where}: {text or 'the connection is closed'} ({number or type(error).__name__})"
        return kind_of(number)(f"{what}: {hint}" if hint else what)


def _find_codec(name: str) -> codecs.CodecInfo | None:
    """UTF-8 in which every byte that is none becomes a lone surrogate, as where Python reads names of files."""
    if name != ANY_BYTES:
        return None

    def decode(text: Any, errors: str = "strict") -> tuple[str, int]:
        return codecs.utf_8_decode(text, "surrogateescape", True)

    return codecs.CodecInfo(codecs.utf_8_encode, decode, name=ANY_BYTES)


def _filled(cursor: Any, sql: str, values: Sequence[Any]) -> str:
    """A statement with its values in place, which the driver's protocol wants, and in the driver's own quotes."""
    # The driver would do it too, at a cost that counts here: numbers need none of its care.
    escape = cursor.connection.escape
    return sql % tuple([value if type(value) is int else escape(value) for value in values])


def _ssl_context(ssl_mode: str, ca_file: str) -> ssl.SSLContext | None:
    """None leaves it to the driver: off, or used where the server has it and not verified."""
    if ssl_mode in ("disabled", "preferred"):
        return None
    context = ssl.create_default_context(cafile=ca_file or None)
    # The certificates that servers make for themselves lack what 3.13 asks for by default.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    context.check_hostname = ssl_mode == "verify_identity"
    if ssl_mode == "required" and not ca_file:
        context.verify_mode = ssl.CERT_NONE
    return context
