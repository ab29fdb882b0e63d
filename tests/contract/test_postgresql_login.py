"""Which PostgreSQL servers get the password itself: one that asks for it in clear, in several places."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import quote

import psycopg
import pytest

from taskserver.host import peer
from taskserver.settings.dsn import parse_dsn
from taskserver.stores.postgresql import session
from taskserver.stores.postgresql.errors import error_of
from tests.support.processes import together

SECRET = b"s3cret"
TLS_OR_GSS = (80877103, 80877104)
ASK_FOR_PASSWORD = b"R" + struct.pack(">II", 8, 3)
ASK_FOR_MD5 = b"R" + struct.pack(">II", 12, 5) + b"salt"
REFUSED = b"SFATAL\0C28P01\0Mpassword authentication failed\0\0"


def ask(listening: socket.socket, question: bytes, received: list[bytes]) -> None:
    """Ask each visitor for the password, until the socket is shut down."""
    with suppress(OSError, struct.error):
        while True:
            with listening.accept()[0] as visitor, suppress(OSError, struct.error):
                while (head := struct.unpack(">II", visitor.recv(8)))[1] in TLS_OR_GSS:
                    visitor.sendall(b"N")
                visitor.recv(head[0])
                visitor.sendall(question)
                received.append(visitor.recv(4096))
                visitor.sendall(b"E" + struct.pack(">I", 4 + len(REFUSED)) + REFUSED)


@contextmanager
def asking(host: str, question: bytes = ASK_FOR_PASSWORD) -> Iterator[tuple[str, list[bytes]]]:
    """At a port, or in a socket's folder: what a login failed with, and what the server received."""
    is_socket, received = host.startswith("/"), list[bytes]()
    with socket.socket(socket.AF_UNIX) if is_socket else socket.create_server(("127.0.0.1", 0)) as listening:
        if is_socket:
            listening.bind(f"{host}/.s.PGSQL.5432")
            listening.listen()
        port = 5432 if is_socket else listening.getsockname()[1]
        dsn = parse_dsn(f"postgresql://u@{quote(host, safe='')}:{port}/shop", SECRET.decode())
        with together(lambda: ask(listening, question, received)):
            with pytest.raises(psycopg.OperationalError) as caught:
                session.connect_to(dsn, 10, autocommit=True)
            listening.shutdown(socket.SHUT_RDWR)
        message = str(error_of(caught.value, dsn, "jobs_queue", is_login=True))
        assert SECRET.decode() not in message
        yield message, received


OLD_LIBPQ = pytest.mark.parametrize("has_require_auth", [True, False], ids=["", "libpq is older"])


@OLD_LIBPQ
@pytest.mark.parametrize("question", [ASK_FOR_PASSWORD, ASK_FOR_MD5], ids=["password", "md5"])
def test_an_unverified_server_is_not_shown_the_password(
    monkeypatch: pytest.MonkeyPatch, has_require_auth: bool, question: bytes
) -> None:
    """Nor, by an old libpq, a proof of it from which it could be guessed."""
    monkeypatch.setattr(session, "HAS_REQUIRE_AUTH", 0 if has_require_auth else 10**9)
    monkeypatch.setattr(peer, "is_account_of_server", lambda uid, names: False)
    with asking("127.0.0.1", question) as (message, received):
        is_shown = has_require_auth and question == ASK_FOR_MD5
        assert "sslrootcert" in message or is_shown
        assert any(received) == is_shown


@pytest.mark.parametrize("is_servers", [True, False])
def test_a_socket_gets_the_password_if_only_the_server_can_have_made_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_servers: bool
) -> None:
    monkeypatch.setattr(peer, "is_account_of_server", lambda uid, names: is_servers)
    tmp_path.chmod(0o777)
    with asking(str(tmp_path)) as (message, received):
        assert ("password authentication failed" if is_servers else "sslrootcert") in message
        assert any(SECRET in sent for sent in received) == is_servers


@OLD_LIBPQ
def test_localhost_is_the_address_at_which_servers_listen(
    monkeypatch: pytest.MonkeyPatch, has_require_auth: bool
) -> None:
    """Any account of the host could listen at the other one. Where the server's own account listens, one logs in."""
    monkeypatch.setattr(session, "HAS_REQUIRE_AUTH", 0 if has_require_auth else 10**9)
    look_up = socket.getaddrinfo
    monkeypatch.setattr(
        "socket.getaddrinfo", lambda host, *args, **more: look_up("::1" if host == "localhost" else host, *args, **more)
    )
    with asking("localhost", ASK_FOR_MD5) as (message, received):
        assert "password authentication failed" in message
        assert any(b"md5" in text for text in received)


AT = 'connection to server at "127.0.0.1", port 5432 failed: '
WRONG_PASSWORD = f'{AT}FATAL:  password authentication failed for user "u"'


def test_a_wrong_password_is_said_without_the_other_try_by_tls_or_without() -> None:
    tries = f"connection failed: {WRONG_PASSWORD}\n{AT}server does not support SSL, but SSL was required"
    dsn = parse_dsn("postgresql://u@127.0.0.1/shop", SECRET.decode())
    message = str(error_of(psycopg.OperationalError(tries), dsn, "jobs_queue", is_login=True))
    assert 'password authentication failed for user "u" (OperationalError): the password is wrong, or the' in message
    assert "SSL" not in message
