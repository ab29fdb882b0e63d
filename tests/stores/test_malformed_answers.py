"""Answers that are none, or none of ours, from a hostile server or a proxy that spoils them: one line, no traceback."""

from __future__ import annotations

import pytest

from taskserver import DatabaseError, TaskServer
from tests.support.fake_server import FakeServer, answering


def test_the_text_of_a_server_s_error_is_cut() -> None:
    """It would be a line in cron's mail each minute."""
    error = b"\xff\x51\x04#HY000" + b"x" * 100_000
    for talk in (lambda peer: peer.send(error), answering(lambda peer, query: peer.send(error))):
        with FakeServer(talk) as fake, TaskServer(fake.dsn) as server, pytest.raises(DatabaseError) as raised:
            server.run()
        assert 500 < len(str(raised.value)) < 1000
