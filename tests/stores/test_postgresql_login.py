"""To whom the password of a PostgreSQL account is shown: a server that asks for it in clear, in several places."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress

import psycopg
import pytest

from taskserver.host import server_accounts
from taskserver.settings.dsn.postgresql import PostgreSQLDsn
from taskserver.stores.postgresql import login
from taskserver.stores.postgresql.connection import connect_to
from taskserver.stores.postgresql.errors import login_error

SECRET = "s3cret"
TLS_OR_GSS = (80877103, 80877104)
ASK_FOR_PASSWORD = b"R" + struct.pack(">II", 8, 3)
ASK_FOR_MD5 = b"R" + struct.pack(">II", 12, 5) + b"salt"
REFUSED = b"SFATAL\0C28P01\0Mpassword authentication failed\0\0"


class Asking:
    """A server that asks each visitor for a password, and keeps what it is told."""

    def __init__(self, listening: socket.socket, question: bytes) -> None:
        self.told = b""
        self.question = question
        self._listening = listening
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                visitor = self._listening.accept()[0]
            except OSError:
                return
            with closing(visitor), suppress(OSError, struct.error):
                self._ask(visitor)

    def _ask(self, visitor: socket.socket) -> None:
        while True:
            length, kind = struct.unpack(">II", visitor.recv(8))
            if kind not in TLS_OR_GSS:
                break
            visitor.sendall(b"N")
        visitor.recv(length)
        visitor.sendall(self.question)
        self.told += visitor.recv(4096)
        visitor.sendall(b"E" + struct.pack(">I", 4 + len(REFUSED)) + REFUSED)


@contextmanager
def asking(host: str = "127.0.0.1", question: bytes = ASK_FOR_PASSWORD) -> Iterator[tuple[Asking, PostgreSQLDsn]]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        dsn = PostgreSQLDsn("u", SECRET, host, listening.getsockname()[1], "shop")
        server = Asking(listening, question)
        yield server, dsn
        listening.shutdown(socket.SHUT_RDWR)


def refusal(dsn: PostgreSQLDsn) -> str:
    with pytest.raises(psycopg.OperationalError) as caught:
        connect_to(dsn, 10, autocommit=True)
    message = str(login_error(caught.value, dsn))
    assert SECRET not in message
    return message


@pytest.fixture(params=["libpq knows require_auth", "libpq is older"])
def libpq(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "libpq is older":
        monkeypatch.setattr(login, "HAS_REQUIRE_AUTH", 10**9)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_the_server_s_account_on_this_host_is_shown_the_password(libpq: None, host: str) -> None:
    with asking(host) as (server, dsn):
        assert "password authentication failed" in refusal(dsn)
    assert SECRET.encode() in server.told


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_another_account_on_this_host_is_not_shown_the_password(
    libpq: None, host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_accounts, "is_account_of_server", lambda uid, names: False)
    with asking(host) as (server, dsn):
        assert "sslrootcert" in refusal(dsn)
    assert server.told == b""


def test_an_unverified_server_elsewhere_is_not_shown_the_password(libpq: None) -> None:
    with asking("0.0.0.0") as (server, dsn):  # Linux leads this host's own to itself
        assert not dsn.is_loopback
        assert "sslrootcert" in refusal(dsn)
    assert server.told == b""


def test_an_old_libpq_sends_no_proof_of_the_password_that_another_account_could_guess_it_from(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(login, "HAS_REQUIRE_AUTH", 10**9)
    monkeypatch.setattr(server_accounts, "is_account_of_server", lambda uid, names: False)
    with asking(question=ASK_FOR_MD5) as (server, dsn):
        assert "sslrootcert" in refusal(dsn)
    assert server.told == b""


def test_the_environment_of_libpq_leads_to_no_other_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGHOSTADDR", "127.0.0.9")
    monkeypatch.setenv("PGPORT", "1")
    with asking() as (server, dsn):
        assert "password authentication failed" in refusal(dsn)
    assert SECRET.encode() in server.told


def test_a_connection_to_the_server_s_account_by_an_old_libpq_is_like_any_other(
    postgresql_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from taskserver.settings.dsn import parse_dsn

    dsn = parse_dsn(postgresql_dsn)
    assert isinstance(dsn, PostgreSQLDsn)
    monkeypatch.setattr(server_accounts, "is_account_of_server", lambda uid, names: True)
    usual = connect_to(dsn, 10, autocommit=True, prepare_threshold=None, cursor_factory=psycopg.RawCursor)
    monkeypatch.setattr(login, "HAS_REQUIRE_AUTH", 10**9)
    old = connect_to(dsn, 10, autocommit=True, prepare_threshold=None, cursor_factory=psycopg.RawCursor)
    for connection in (usual, old):
        with closing(connection):
            assert connection.autocommit
            assert connection.prepare_threshold is None
            assert connection.cursor().execute("SELECT $1::text", ("ok",)).fetchone() == ("ok",)
    assert usual.pgconn.nonblocking == old.pgconn.nonblocking
