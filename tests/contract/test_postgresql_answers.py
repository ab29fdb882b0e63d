"""Answers of what stands in PostgreSQL's place: none, slow ones, and ones that cannot be read. Never a traceback."""

from __future__ import annotations

import os
import signal
import socket
import time
import warnings

import psycopg
import pytest

from taskserver import DatabaseError, TaskServer
from taskserver.errors import ConnectionLost
from taskserver.stores import dialect

SECONDS = 0.8
"""In place of the ten that a worker waits."""
MAX_SECONDS = 8.0
"""By then a worker has given up; the driver's least wait for a login is 2 s."""


@pytest.fixture(autouse=True)
def in_short(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CONNECT_SECONDS", "READ_SECONDS_IN_A_RUN", "READ_SECONDS"):
        monkeypatch.setattr(dialect, name, SECONDS)


def test_a_silent_server_is_given_up() -> None:
    began = time.monotonic()
    away = pytest.raises(DatabaseError, match=r"timed out|timeout expired")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        dsn = f"postgresql://u:secret@127.0.0.1:{silent.getsockname()[1]}/shop"
        with TaskServer(dsn) as server, away:
            server.run()
    assert time.monotonic() - began < MAX_SECONDS


def test_a_connection_that_is_given_up_leaves_no_word_of_the_driver_s(
    postgresql_queue_dsn: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its warnings would go to standard error, and so into cron's mail."""
    with TaskServer(postgresql_queue_dsn) as server, warnings.catch_warnings():
        warnings.simplefilter("error")
        database = server.store.database
        for writes in (["SELECT 1"], ["UPDATE {table} SET id = 0 WHERE id = 0"] * 2):
            pid = database.fetch_value("SELECT pg_backend_pid()")
            os.kill(pid, signal.SIGSTOP)
            try:
                with pytest.raises(ConnectionLost, match=r"timed out \(OperationalError\)"):
                    database.write_together([(sql, ()) for sql in writes], 0)
            finally:
                os.kill(pid, signal.SIGCONT)
    assert capfd.readouterr().err == ""
    assert psycopg.logger.hasHandlers()
