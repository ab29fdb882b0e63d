"""Servers that send a byte now and then: each piece comes in time, and the whole never does."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from taskserver import DatabaseError, TaskServer
from taskserver.stores.mysql import connection, login, session
from tests.support.certificates import Certificates
from tests.support.fake_server import INTEGER, FakeServer, Peer, answering, column, result, row_of

SECONDS = 0.8
"""In place of the ten that a worker waits."""
PIECE_SECONDS = 0.1
MAX_SECONDS = 8.0
"""By then a worker has given up; twice its seconds at least, as it may be in the midst of a piece's."""


@pytest.fixture(autouse=True)
def in_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(login, "CONNECT_SECONDS", SECONDS)
    monkeypatch.setattr(session, "READ_SECONDS_IN_A_RUN", SECONDS)
    monkeypatch.setattr(session, "READ_SECONDS", SECONDS)


def drip(peer: Peer, query: bytes = b"") -> None:
    """Send a packet of a megabyte, byte after byte."""
    for byte in peer.framed(bytes(1 << 20)):
        peer.socket.sendall(bytes([byte]))
        time.sleep(PIECE_SECONDS)


def drip_login(peer: Peer, context: ssl.SSLContext | None = None) -> None:
    peer.greet("mysql_native_password", context)
    drip(peer)


class DrippingContext(ssl.SSLContext):
    def wrap_socket(self, sock: socket.socket, *arguments: object, **options: object) -> ssl.SSLSocket:
        sock.sendall(b"\x16\x03\x03\x40\x00\x02")
        drip(Peer(sock))
        raise OSError


def drip_rows(peer: Peer, query: bytes) -> None:
    peer.send(*result([column(INTEGER)], [])[:-1])
    while True:
        time.sleep(PIECE_SECONDS)
        peer.send(row_of([b"5"]))


@contextmanager
def given_up_in_time() -> Iterator[None]:
    began = time.monotonic()
    with pytest.raises(DatabaseError, match="timed out"):
        yield
    assert time.monotonic() - began < MAX_SECONDS


@pytest.mark.parametrize(
    ("talk", "options"),
    [
        (drip, ""),
        (drip, "?ssl-mode=verify_identity"),
        (partial(drip_login, context=DrippingContext(ssl.PROTOCOL_TLS_SERVER)), "?ssl-mode=required"),
        (drip_login, ""),
        (answering(drip), ""),
        (answering(drip_rows), ""),
    ],
    ids=["greeting", "greeting before TLS", "handshake of TLS", "login", "answer", "rows"],
)
def test_a_server_that_drips_is_given_up_as_one_that_is_silent(talk: Callable[[Peer], None], options: str) -> None:
    with FakeServer(talk) as fake, TaskServer(fake.dsn + options) as server, given_up_in_time():
        server.run()


def test_a_server_that_drips_inside_tls_is_given_up(certificates: Certificates) -> None:
    context = certificates.server_context()
    for talk in (partial(drip_login, context=context), answering(drip_rows, context)):
        with FakeServer(talk) as fake, given_up_in_time():
            TaskServer(f"{fake.dsn}?ssl-ca={certificates.authority}").run()


def test_a_login_for_a_task_of_its_own_transaction_ends() -> None:
    with FakeServer(drip) as fake, TaskServer(fake.dsn) as server, given_up_in_time():
        server.store.database.open_task_connection()


LONG = b"x" * 60_000


def send_slowly(peer: Peer, query: bytes) -> None:
    """At 20 kB a second."""
    sent = peer.framed(*result([column()], [[LONG]]))
    for first in range(0, len(sent), 2_000):
        time.sleep(PIECE_SECONDS)
        peer.socket.sendall(sent[first : first + 2_000])


def test_a_long_answer_over_a_slow_line_comes_through(monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeServer(answering(send_slowly)) as fake, TaskServer(fake.dsn) as server:
        began = time.monotonic()
        with server.store.database.patiently():
            assert server.store.database.fetch("SELECT text") == ((LONG.decode(),),)
        assert time.monotonic() - began > 3 * SECONDS
        monkeypatch.setattr(connection, "MAX_SECONDS_FOR_BYTES", SECONDS)
        with server.store.database.tried_once(float("inf")), given_up_in_time():
            server.store.database.fetch("SELECT text")


def test_an_unhurried_statement_may_take_any_time() -> None:
    def drip_and_end(peer: Peer, query: bytes) -> None:
        for byte in peer.framed(*result([column(INTEGER)], [[b"5"]])):
            time.sleep(3 * SECONDS / 50)
            peer.socket.sendall(bytes([byte]))

    with FakeServer(answering(drip_and_end)) as fake, TaskServer(fake.dsn) as server:
        began = time.monotonic()
        with server.store.database.unhurried():
            assert server.store.database.fetch_value("SELECT version") == 5
        assert time.monotonic() - began > 2 * SECONDS
