"""Answers that are none, or none of ours, from a hostile server or a proxy that spoils them: one line, no traceback."""

from __future__ import annotations

import sys

import pytest

from taskserver import DatabaseError, TaskServer
from tests.support.fake_server import FakeServer, Peer, answering


def test_the_text_of_a_server_s_error_is_cut() -> None:
    """It would be a line in cron's mail each minute."""
    error = b"\xff\x51\x04#HY000" + b"x" * 100_000
    for talk in (lambda peer: peer.send(error), answering(lambda peer, query: peer.send(error))):
        with FakeServer(talk) as fake, TaskServer(fake.dsn) as server, pytest.raises(DatabaseError) as raised:
            server.run()
        assert 500 < len(str(raised.value)) < 1000


def test_a_login_for_which_a_package_is_missing_names_that_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pymysql._auth._nacl_bindings", None)
    monkeypatch.setitem(sys.modules, "nacl", None)

    def talk(peer: Peer) -> None:
        peer.greet("mysql_native_password")
        peer.send(b"\xfeclient_ed25519\0" + b"s" * 32)

    with FakeServer(talk) as fake, TaskServer(fake.dsn) as server, pytest.raises(DatabaseError, match="PyNaCl") as told:
        server.run()
    assert "rsa" not in str(told.value)
