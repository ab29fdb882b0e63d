"""How a connection to MySQL or MariaDB is opened: address, password, TLS.

The server chooses how the password is asked for. Some ways show it: mysql_clear_password and dialog, sha256_password
and caching_sha2_password inside TLS or encrypted with a key that the server has just sent. Whoever listens in the
server's place may choose one of these, or hand the login on to the server and have the session.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import Any
from weakref import ref

import pymysql

from ...host import server_accounts
from ...settings.dsn.mysql import VERIFY_IDENTITY, MySQLDsn, usual_socket
from .errors import CANNOT_CONNECT, CLEAR_PASSWORD, NEEDS_TLS, TLS_FAILED, number_of

CONNECT_SECONDS = 10


class _Password(bytes):
    """A password that is refused to whoever may not see it.

    The driver hashes a password, or else it adds a zero byte, which ends it in every form that shows it.
    """

    may_be_shown: Callable[[], bool]

    def __add__(self, end: Any) -> bytes:
        if not self.may_be_shown():
            raise pymysql.OperationalError(CLEAR_PASSWORD, "whoever answers there asks for the password itself")
        return super().__add__(end)


def log_in(dsn: MySQLDsn, connect: Callable[..., Any], answer_seconds: float) -> Any:
    """Call the driver's `connect` with a DSN's address and TLS. Raises the driver's errors."""
    mode = dsn.ssl_mode
    if mode or not dsn.is_loopback:
        return _log_in(dsn, mode or "preferred", connect, answer_seconds)
    # On a loopback address nobody can listen in, so TLS would only cost time, unless the login insists on it.
    try:
        return _log_in(dsn, "disabled", connect, answer_seconds)
    except (pymysql.MySQLError, RuntimeError) as error:
        if number_of(error) not in NEEDS_TLS and not isinstance(error, RuntimeError):
            raise
    return _log_in(dsn, "preferred", connect, answer_seconds)


def _log_in(dsn: MySQLDsn, ssl_mode: str, connect: Callable[..., Any], answer_seconds: float) -> Any:
    seconds = min(CONNECT_SECONDS, answer_seconds)
    password = _Password(dsn.password.encode("utf-8", "surrogateescape"))
    socket_path = dsn.unix_socket or usual_socket(dsn.host)
    connection = connect(
        user=dsn.user or None,
        password=password,
        host=_address(dsn),
        port=dsn.port,
        unix_socket=socket_path,
        database=dsn.database,
        charset="utf8mb4",
        connect_timeout=seconds,
        # Equal: the driver would make system calls for each change between different ones.
        read_timeout=seconds,
        write_timeout=seconds,
        ssl_disabled=ssl_mode == "disabled",
        ssl=_ssl_context(ssl_mode, dsn.ssl_ca),
        defer_connect=True,
    )
    asking: Callable[[], Any] = ref(connection)  # which has the password
    # The driver hands its socket out to nobody.
    password.may_be_shown = lambda: dsn.is_verified or (dsn.is_loopback and _is_server_at_other_end(asking()))
    is_guess = _is_mere_localhost(dsn) and not socket_path

    def refuse_another() -> None:
        if is_guess and server_accounts.is_another_at_other_end(asking()._sock, server_accounts.MYSQL):
            raise pymysql.OperationalError(
                CANNOT_CONNECT, f"who answers at {_address(dsn)}:{dsn.port} is neither root nor this account nor mysql"
            )

    connection.before_login = refuse_another
    connection.connect()
    return connection


def _is_server_at_other_end(connection: Any) -> bool:
    return server_accounts.is_at_other_end(connection._sock, server_accounts.MYSQL)


def _address(dsn: MySQLDsn) -> str | None:
    # The name may mean ::1 first, where most servers do not listen: any account of the host could.
    return "127.0.0.1" if _is_mere_localhost(dsn) else dsn.host or None


def _is_mere_localhost(dsn: MySQLDsn) -> bool:
    """Whether the host is `localhost`, and no certificate tells who answers there."""
    return dsn.host == "localhost" and not dsn.is_verified


def _ssl_context(ssl_mode: str, ca_file: str) -> ssl.SSLContext | None:
    """The context of a TLS connection. None leaves TLS to the driver: off, or unverified where the server has it."""
    if ssl_mode in ("disabled", "preferred"):
        return None
    try:
        context = ssl.create_default_context(cafile=ca_file or None)
    except OSError as error:
        why = "it holds none" if isinstance(error, ssl.SSLError) else error.strerror
        raise pymysql.OperationalError(TLS_FAILED, f"certificates cannot be read from ssl-ca: {why}") from None
    # The certificates that servers make for themselves fail the strict check that is Python 3.13's default.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    context.check_hostname = ssl_mode == VERIFY_IDENTITY
    if ssl_mode == "required" and not ca_file:
        context.verify_mode = ssl.CERT_NONE
    return context
