"""How a connection to MySQL or MariaDB is opened: address, password, TLS."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import Any

import pymysql

from ...settings.dsn import MySQLDsn, usual_socket
from .errors import NEEDS_TLS, number_of

CONNECT_SECONDS = 10


def log_in(dsn: MySQLDsn, connect: Callable[..., Any], answer_seconds: float) -> Any:
    """Call the driver's `connect` with a DSN's address and TLS. Raises the driver's errors."""
    mode = dsn.ssl_mode
    if mode or not dsn.is_loopback:
        return _log_in(dsn, mode or "preferred", connect, answer_seconds)
    # On a loopback address nobody can listen, so TLS would only cost time, unless the login insists on it.
    try:
        return _log_in(dsn, "disabled", connect, answer_seconds)
    except (pymysql.MySQLError, RuntimeError) as error:
        if number_of(error) not in NEEDS_TLS and not isinstance(error, RuntimeError):
            raise
    return _log_in(dsn, "preferred", connect, answer_seconds)


def _log_in(dsn: MySQLDsn, ssl_mode: str, connect: Callable[..., Any], answer_seconds: float) -> Any:
    seconds = min(CONNECT_SECONDS, answer_seconds)
    return connect(
        user=dsn.user or None,
        password=dsn.password.encode("utf-8", "surrogateescape"),
        host=dsn.host or None,
        port=dsn.port,
        unix_socket=dsn.unix_socket or usual_socket(dsn.host),
        database=dsn.database,
        charset="utf8mb4",
        connect_timeout=seconds,
        # Equal: the driver would make system calls for each change between different ones.
        read_timeout=seconds,
        write_timeout=seconds,
        ssl_disabled=ssl_mode == "disabled",
        ssl=_ssl_context(ssl_mode, dsn.ssl_ca),
    )


def _ssl_context(ssl_mode: str, ca_file: str) -> ssl.SSLContext | None:
    """The context of a TLS connection. None leaves TLS to the driver: off, or unverified where the server has it."""
    if ssl_mode in ("disabled", "preferred"):
        return None
    context = ssl.create_default_context(cafile=ca_file or None)
    # The certificates that servers make for themselves fail the strict check that is Python 3.13's default.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    context.check_hostname = ssl_mode == "verify_identity"
    if ssl_mode == "required" and not ca_file:
        context.verify_mode = ssl.CERT_NONE
    return context
