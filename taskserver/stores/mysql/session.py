"""A connection to MySQL or MariaDB on PyMySQL: login and TLS, settings of the session, statements.

The server chooses how the password is sent. Some ways reveal it: mysql_clear_password, dialog, and sha256_password and
caching_sha2_password inside TLS or encrypted with a key that the server just sent. A program that impersonates the
server could choose one of these.
"""

from __future__ import annotations

import codecs
import ssl
from collections.abc import Callable, Sequence
from typing import Any
from weakref import ref

import pymysql
from pymysql.constants import CLIENT

from ...host import peer
from ...settings.dsn import VERIFY_IDENTITY, Dsn
from ..dialect import Pace, Session
from ..retrying import Hosts
from ..words import MAX_UTF8_BYTES, SHORT_BYTES, Write
from .errors import CLEAR_PASSWORD, DRIVER_ERRORS, NEEDS_TLS, TLS_FAILED, TOO_LONG, number_of, usual_socket

# Hosts change the defaults of sessions, so these are set:
# - UTC: in a zone with summer time NOW() repeats one hour a year.
# - Strict, so that no value is cut silently; with backslash escapes, which PyMySQL uses.
# - Lock timeouts of a second: between two waits, signals are handled and the patience can end.
# - A host's max_join_size refuses a claim among many tasks, sql_safe_updates refuses every claim, sql_select_limit
#   hides claimed tasks, and completion_type CHAIN or RELEASE undoes what follows a COMMIT. Without unique_checks a key
#   may exist twice.
# - autocommit: MySQL's greeting says that it is on even if the host turned it off, and the driver believes that.
#   Setting it from 0 to 1 ends a transaction that an init_connect began.
# - A host's statement timeout is meant for web pages. Our statements are short, or a person waits for them.
# Each server ignores the comments for other servers.
SESSION = (
    "SET time_zone = '+00:00', sql_mode = 'STRICT_ALL_TABLES', innodb_lock_wait_timeout = 1, lock_wait_timeout = 1, "
    "sql_big_selects = 1, autocommit = 0, autocommit = 1, sql_safe_updates = 0, "
    "sql_select_limit = 18446744073709551615, completion_type = 0, unique_checks = 1"
    "/*!50708 , max_execution_time = 0*//*M!100101 , max_statement_time = 0*/"
)
BINLOG = "SELECT @@log_bin, @@binlog_format"
READ_COMMITTED = "READ COMMITTED"
REPEATABLE_READ = "REPEATABLE READ"

ANY_BYTES = "taskserver_any_bytes"
"""UTF-8 that decodes each invalid byte to a lone surrogate: MariaDB may store half an emoji."""


class Abilities:
    """What connections learned about the server: of one host the first, of several each."""

    isolation = ""
    """REPEATABLE READ if replication is by statement, which refuses writes in READ COMMITTED."""


# One of several hosts serves if it takes writes and, as a node of Galera, has all that the others have.
TAKES_WRITES = "SHOW GLOBAL VARIABLES WHERE variable_name IN ('wsrep_on', 'read_only', 'offline_mode')"
NODE_STATE = "SHOW GLOBAL STATUS WHERE variable_name IN ('wsrep_ready', 'wsrep_local_state_comment')"
SYNCED = {"wsrep_ready": "ON", "wsrep_local_state_comment": "Synced"}
DOES_NOT_SERVE = 1047
"""What a node without the others answers itself."""
# Waits until the node has applied what others committed before: a connection that moved sees what this client wrote.
CATCH_UP = ("SET SESSION wsrep_sync_wait = 1", "SELECT 1", "SET SESSION wsrep_sync_wait = 0")


# ---- login


class _Password(bytes):
    """A password that only a trusted server gets.

    The driver either hashes a password, or adds a zero byte to it before it sends it.
    """

    is_trusted: Callable[[], bool]

    def __add__(self, end: Any) -> bytes:
        if not self.is_trusted():
            raise pymysql.OperationalError(CLEAR_PASSWORD, "the server asks for the password itself")
        return super().__add__(end)


def log_in(dsn: Dsn, seconds: float, **options: Any) -> Any:
    """A driver's connection to a DSN's address, with its TLS. Raises the driver's errors."""
    if dsn.tls_mode or not dsn.is_loopback:
        return _log_in(dsn, dsn.tls_mode or "preferred", seconds, options)
    # Nobody can intercept a loopback address. TLS only costs time there, unless the login needs it.
    try:
        return _log_in(dsn, "disabled", seconds, options)
    except (pymysql.MySQLError, RuntimeError) as error:
        if number_of(error) not in NEEDS_TLS and not isinstance(error, RuntimeError):
            raise
    return _log_in(dsn, "preferred", seconds, options)


def _log_in(dsn: Dsn, ssl_mode: str, seconds: float, options: dict[str, Any]) -> Any:
    password = _Password(dsn.password.encode("utf-8", "surrogateescape"))
    # `localhost` may mean ::1, where most servers do not listen, so any account of the host could.
    is_mere_localhost = dsn.host == "localhost" and not dsn.is_verified
    connection = pymysql.Connection(
        user=dsn.user or None,
        password=password,
        host="127.0.0.1" if is_mere_localhost else dsn.host or None,
        port=dsn.port,
        unix_socket=dsn.unix_socket or usual_socket(dsn.host),
        database=dsn.database,
        charset="utf8mb4",
        connect_timeout=seconds,
        # Equal, because the driver makes a system call to switch between different ones.
        read_timeout=seconds,
        write_timeout=seconds,
        ssl_disabled=ssl_mode == "disabled",
        ssl=_ssl_context(ssl_mode, dsn.tls_ca),
        defer_connect=True,
        **options,
    )
    asking: Callable[[], Any] = ref(connection)  # a strong one would be a cycle: the connection has the password

    def is_trusted() -> bool:
        if dsn.is_verified:
            return True
        return dsn.is_loopback and peer.is_at_other_end(asking()._sock, peer.MYSQL_ACCOUNTS)

    password.is_trusted = is_trusted
    connection.connect()
    return connection


def _ssl_context(ssl_mode: str, ca_file: str) -> ssl.SSLContext | None:
    """The context of a TLS connection. None leaves TLS to the driver: off, or unverified if the server offers it."""
    if ssl_mode in ("disabled", "preferred"):
        return None
    try:
        context = ssl.create_default_context(cafile=ca_file or None)
    except OSError as error:
        why = "it holds none" if isinstance(error, ssl.SSLError) else error.strerror
        raise pymysql.OperationalError(TLS_FAILED, f"certificates cannot be read from ssl-ca: {why}") from None
    # Self-made certificates fail the strict check that is the default of Python 3.13.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    context.check_hostname = ssl_mode == VERIFY_IDENTITY
    if ssl_mode == "required" and not ca_file:
        context.verify_mode = ssl.CERT_NONE
    return context


def connect_to(hosts: Hosts, pace: Pace, abilities: Abilities, **options: Any) -> Any:
    """A driver's connection to the host that serves, with its isolation. Raises DatabaseError."""

    def log_in_and_check(dsn: Dsn, seconds: float) -> Any:
        connection = log_in(dsn, seconds, **options)
        with connection.cursor() as cursor:
            if hosts.are_several:
                _check_serves(cursor)
            if hosts.are_several or not abilities.isolation:  # each host may replicate in its own way
                abilities.isolation = _isolation_of(cursor)
            cursor.execute(f"SET SESSION TRANSACTION ISOLATION LEVEL {abilities.isolation}")
        return connection

    return hosts.connect(log_in_and_check, pace.connect_seconds)


def _check_serves(cursor: Any) -> None:
    """Raises the driver's error if another host should be used."""
    cursor.execute(TAKES_WRITES)
    found = dict(cursor.fetchall())
    is_node, wanted = found.pop("wsrep_on", "OFF") == "ON", dict.fromkeys(found, "OFF")
    if is_node:
        wanted.update(SYNCED)
        cursor.execute(NODE_STATE)
        found.update(cursor.fetchall())
    if wrong := [f"{name} is {found.get(name)}" for name, value in wanted.items() if found.get(name) != value]:
        raise pymysql.OperationalError(DOES_NOT_SERVE, ", ".join(wrong))
    for sql in CATCH_UP if is_node else ():
        cursor.execute(sql)


def _isolation_of(cursor: Any) -> str:
    """The isolation according to the server's replication."""
    cursor.execute(BINLOG)
    is_by_statement = cursor.fetchone() == (1, "STATEMENT")
    return REPEATABLE_READ if is_by_statement else READ_COMMITTED


def set_timeout(connection: Any, seconds: float | None) -> None:
    """Set how long a connection waits for each answer; None: for ever."""
    connection._read_timeout = connection._write_timeout = seconds  # the driver has no public setter


# ---- statements


class MySQLSession(Session):
    """One thread's connection of ours."""

    driver_errors = DRIVER_ERRORS

    def __init__(self, hosts: Hosts, abilities: Abilities) -> None:
        super().__init__()
        self._hosts = hosts
        self._abilities = abilities
        self._packet_bytes = 0
        """The server's maximum statement; 0 until a statement is long enough to need it."""

    def connect(self, pace: Pace) -> None:
        # Count matched rows, not changed ones: a write that changes nothing still found its claim.
        flags = CLIENT.FOUND_ROWS | CLIENT.MULTI_STATEMENTS
        connection = connect_to(
            self._hosts, pace, self._abilities, autocommit=True, client_flag=flags, init_command=SESSION
        )
        connection.encoding = ANY_BYTES
        self._packet_bytes = 0
        self.cursor = connection.cursor()
        self.connection = connection

    def make_ready(self, pace: Pace) -> None:
        set_timeout(self.connection, pace.read_seconds)

    def is_alive(self) -> bool:
        try:
            self.connection.ping(reconnect=False)
        except DRIVER_ERRORS:
            return False
        return True

    def send(self, sql: str, values: Sequence[Any] = ()) -> Any:
        self._send(filled(self.cursor, sql, values))
        return self.cursor

    def _send(self, text: str) -> None:
        """Send a statement. Raises an error like the driver's if it is too long: the server would disconnect."""
        if len(text) * MAX_UTF8_BYTES > SHORT_BYTES:
            size = len(text.encode("utf-8", "surrogateescape"))
            if size > SHORT_BYTES:
                if not self._packet_bytes:
                    self.cursor.execute("SELECT @@SESSION.max_allowed_packet LIMIT 1")
                    self._packet_bytes = int(self.cursor.fetchall()[0][0])
                if size >= self._packet_bytes - 1:  # a statement and one byte must be shorter
                    raise pymysql.OperationalError(TOO_LONG, f"a statement has more than {self._packet_bytes} bytes")
        self.cursor.execute(text)

    def send_joined(self, writes: Sequence[Write], are_apart: bool) -> list[int]:
        cursor = self.cursor
        self._send("; ".join(["BEGIN", *(filled(cursor, sql, values) for sql, values in writes), "COMMIT"]))
        matched = []
        while cursor.nextset():
            matched.append(cursor.rowcount)
        return matched[:-1]


def filled(cursor: Any, sql: str, values: Sequence[Any]) -> str:
    """A statement with its values, quoted by the driver: its protocol has no parameters."""
    # Cheaper than the driver's own way, which would also send the name of a Status instead of its number.
    escape = cursor.connection.escape
    return sql % tuple([int(value) if isinstance(value, int) else escape(value) for value in values])


def _decode(text: Any, errors: str = "strict") -> tuple[str, int]:
    return codecs.utf_8_decode(text, "surrogateescape", True)


_CODEC = codecs.CodecInfo(codecs.utf_8_encode, _decode, name=ANY_BYTES)
codecs.register({ANY_BYTES: _CODEC}.get)
