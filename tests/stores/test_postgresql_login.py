"""To whom the password of a PostgreSQL account is shown: a server that asks for it in clear, in several places."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import psycopg
import pytest

from taskserver.host import server_accounts
from taskserver.settings.dsn.postgresql import PostgreSQLDsn
from taskserver.stores.postgresql import session
from taskserver.stores.postgresql.errors import error_of
from taskserver.stores.postgresql.session import connect_to

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
    """At a port, or in a socket's folder."""
    is_socket = host.startswith("/")
    with (
        socket.socket(socket.AF_UNIX) if is_socket else socket.create_server(("127.0.0.1", 0)) as listening,
    ):
        if is_socket:
            listening.bind(f"{host}/.s.PGSQL.5432")
            listening.listen()
        dsn = PostgreSQLDsn("u", SECRET, host, 5432 if is_socket else listening.getsockname()[1], "shop")
        server = Asking(listening, question)
        yield server, dsn
        listening.shutdown(socket.SHUT_RDWR)


def refusal(dsn: PostgreSQLDsn) -> str:
    with pytest.raises(psycopg.OperationalError) as caught:
        connect_to(dsn, 10, autocommit=True)
    message = str(error_of(caught.value, dsn, "jobs_queue", is_login=True))
    assert SECRET not in message
    return message


@pytest.fixture(params=["libpq knows require_auth", "libpq is older"])
def libpq(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "libpq is older":
        monkeypatch.setattr(session, "HAS_REQUIRE_AUTH", 10**9)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0.0.0.0"])
def test_an_unverified_server_is_not_shown_the_password(libpq: None, host: str) -> None:
    with asking(host) as (server, dsn):
        assert "sslrootcert" in refusal(dsn)
    assert server.told == b""


def test_an_old_libpq_sends_no_proof_of_the_password_that_could_be_guessed_from(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session, "HAS_REQUIRE_AUTH", 10**9)
    with asking(question=ASK_FOR_MD5) as (server, dsn):
        assert "sslrootcert" in refusal(dsn)
    assert server.told == b""


@pytest.mark.parametrize("is_servers", [True, False])
def test_a_socket_gets_the_password_if_only_the_server_can_have_made_it(
    libpq: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_servers: bool
) -> None:
    monkeypatch.setattr(server_accounts, "is_account_of_server", lambda uid, names: is_servers)
    tmp_path.chmod(0o777)
    with asking(str(tmp_path)) as (server, dsn):
        assert ("password authentication failed" if is_servers else "sslrootcert") in refusal(dsn)
    assert (SECRET.encode() in server.told) == is_servers


def test_the_environment_of_libpq_leads_to_no_other_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGHOSTADDR", "127.0.0.9")
    monkeypatch.setenv("PGPORT", "1")
    with asking(question=ASK_FOR_MD5) as (server, dsn):
        assert "password authentication failed" in refusal(dsn)
    assert b"md5" in server.told
