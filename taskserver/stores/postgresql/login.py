"""How a connection to PostgreSQL is opened: address, password, TLS.

The server chooses how the password is asked for: as a proof of it (scram-sha-256, md5), or the password itself
(password, ldap, pam). The latter goes to a verified server alone, or to one of this host whose account is the server's.
libpq refuses it elsewhere from version 16 on. An older libpq sends no proof either, but where it can be read by nobody
else: within this host to the server's account, and over TLS bound to that connection.
"""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Callable
from typing import Any, TypeVar

import psycopg
from psycopg import pq
from psycopg.conninfo import make_conninfo

from ...host import server_accounts
from ...settings.dsn import PostgreSQLDsn

HAS_REQUIRE_AUTH = 160000
CLEAR_PASSWORD = "server requested a cleartext password"
"""In libpq's text, which has no number: its refusal by require_auth."""
IS_NEIGHBOUR = "who answers there is neither root nor this account nor postgres, and may ask for the password itself"

C = TypeVar("C")


def log_in(
    dsn: PostgreSQLDsn,
    of_libpq: dict[str, Any],
    seconds: float,
    connect: Callable[..., C],
    adopt: Callable[[pq.abc.PGconn], C],
) -> C:
    """A connection by a DSN's address, password and TLS: of the driver's `connect`, or one of libpq that is adopted.

    `of_libpq` are further keywords; `seconds` limit what is adopted. Raises the driver's errors.
    """
    given = of_libpq | _keywords(dsn)
    if dsn.is_verified or "PGREQUIREAUTH" in os.environ:
        return connect(**given)
    if pq.version() < HAS_REQUIRE_AUTH:
        if dsn.is_loopback:
            return adopt(_connected_to_server(given, seconds))
        return connect(**given, channel_binding="require")
    try:
        return connect(**given, require_auth="!password")
    except psycopg.OperationalError as error:
        if not dsn.is_loopback or CLEAR_PASSWORD not in str(error):
            raise
    return adopt(_connected_to_server(given, seconds))


def _keywords(dsn: PostgreSQLDsn) -> dict[str, Any]:
    """The keywords of libpq for a DSN; what is left out, libpq looks for in its environment."""
    given = {
        "user": dsn.user,
        "password": dsn.password,
        "host": dsn.host,
        "port": dsn.port,
        "dbname": dsn.database,
        "sslmode": dsn.sslmode or _sslmode_by_address(dsn),
        "sslrootcert": dsn.sslrootcert,
    }
    # The name may mean ::1 first, where the server may not listen: any account of the host could. For other hosts it is
    # empty, lest PGHOSTADDR lead elsewhere.
    hostaddr = "127.0.0.1" if dsn.host == "localhost" else ""
    return {key: value for key, value in given.items() if value} | {"hostaddr": hostaddr}


def _sslmode_by_address(dsn: PostgreSQLDsn) -> str:
    is_told = "PGSSLMODE" in os.environ or "PGSERVICE" in os.environ
    # On a loopback address nobody can listen in: TLS costs time, unless the server insists on it.
    return "allow" if dsn.is_loopback and not is_told else ""


def _connected_to_server(keywords: dict[str, Any], seconds: float) -> pq.abc.PGconn:
    """A connection to the server of this host; anybody else gets the account's name at most."""
    pgconn = pq.PGconn.connect_start(make_conninfo("", **keywords).encode())
    try:
        _finish_login(pgconn, time.monotonic() + seconds)
    except BaseException:
        pgconn.finish()
        raise
    pgconn.nonblocking = 1
    return pgconn


def _finish_login(pgconn: pq.abc.PGconn, end: float) -> None:
    met: set[object] = set()
    while pgconn.status != pq.ConnStatus.BAD:
        state = pgconn.connect_poll()
        if state == pq.PollingStatus.OK:
            return
        if state == pq.PollingStatus.FAILED:
            break
        is_reading = state == pq.PollingStatus.READING
        poll = select.poll()  # which knows descriptors above 1,023, unlike select
        poll.register(pgconn.socket, select.POLLIN if is_reading else select.POLLOUT)
        if not poll.poll(max(0, end - time.monotonic()) * 1000):
            raise psycopg.errors.ConnectionTimeout("connection timeout expired")
        # Once it has answered: before, the system names no account for a connection that nobody has taken up.
        if is_reading and not _may_be_heard(pgconn.socket, met):
            raise psycopg.OperationalError(IS_NEIGHBOUR)
    raise psycopg.OperationalError(f"connection failed: {pgconn.get_error_message()}")


def _may_be_heard(descriptor: int, met: set[object]) -> bool:
    """Whether libpq may read what was sent, and answer it; `met` keeps the connections whose other end is known."""
    with socket.socket(fileno=os.dup(descriptor)) as connected:
        own = connected.getsockname()
        if own in met:
            return True
        # An error gets no answer, and its sender may be gone by now.
        if connected.recv(1, socket.MSG_PEEK) in (b"E", b""):
            return True
        is_server = server_accounts.is_at_other_end(connected, server_accounts.POSTGRESQL)
        if is_server and own:  # a socket has no name at this end
            met.add(own)
        return is_server
