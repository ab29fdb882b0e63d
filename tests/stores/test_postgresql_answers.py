"""Answers of what stands in PostgreSQL's place: none, slow ones, and ones that cannot be read. Never a traceback."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from taskserver import DatabaseError, TaskServer
from taskserver.stores.postgresql import session
from taskserver.stores.tables import SCHEMA_VERSION
from tests.support.deployment import ROOT, Deployment
from tests.support.fake_postgresql import (
    INSTANT,
    NUMBER,
    NUMERIC,
    READY,
    TEXT,
    FakePostgreSQL,
    Peer,
    answering,
    column,
    message,
    result,
)
from tests.support.postgresql import PostgreSQL
from tests.support.processes import assert_one_line

SECONDS = 0.8
"""In place of the ten that a worker waits."""
MAX_SECONDS = 8.0
"""By then a worker has given up; the driver's least wait for a login is 2 s."""


@pytest.fixture
def in_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "CONNECT_SECONDS", SECONDS)
    monkeypatch.setattr(session, "READ_SECONDS_IN_A_RUN", SECONDS)
    monkeypatch.setattr(session, "READ_SECONDS", SECONDS)


def be_silent(peer: Peer, statement: bytes = b"") -> None:
    peer.socket.recv(1)


def be_silent_at_login(peer: Peer) -> None:
    peer.meet()
    be_silent(peer)


@pytest.mark.usefixtures("in_short")
@pytest.mark.parametrize("talk", [be_silent_at_login, answering(be_silent)], ids=["login", "statement"])
def test_a_silent_server_is_given_up(talk: Callable[[Peer], None]) -> None:
    began = time.monotonic()
    away = pytest.raises(DatabaseError, match=r"timed out|timeout expired")
    with FakePostgreSQL(talk) as fake, TaskServer(fake.dsn) as server, away:
        server.run()
    assert time.monotonic() - began < MAX_SECONDS


LONG = b"x" * 6_000


def send_slowly(peer: Peer, statement: bytes) -> None:
    """In pieces, with less than SECONDS between them."""
    sent = result([column()], [[LONG]]) + READY
    for first in range(0, len(sent), 2_000):
        time.sleep(SECONDS / 2)
        peer.send(sent[first : first + 2_000])


@pytest.mark.usefixtures("in_short")
def test_a_long_answer_over_a_slow_line_comes_through() -> None:
    with FakePostgreSQL(answering(send_slowly)) as fake, TaskServer(fake.dsn) as server:
        database = server.store.database
        with database.patiently():
            assert database.fetch("SELECT text") == [(LONG.decode(),)]


# ---- answers that are none of ours

VERSION = result([column(NUMBER)], [[str(SCHEMA_VERSION).encode()]])
SPOILED = {
    "no message": b"\xff" * 40,
    "a column that is cut off": message(b"T", b"\0\1v\0"),
    "a row without columns": message(b"D", b"\0\5"),
    "a number that is none": result([column(NUMBER)], [[b"x"]]),
    "a sum that is none": result([column(NUMERIC)], [[b"x"]]),
    "an instant beyond all years": result([column(INSTANT)], [[b"999999999-01-01 00:00:00+00"]]),
    "a text for a number": result([column(TEXT)], [[b"5"]]),
    "a text that is no UTF-8": result([column(TEXT)], [[b"\xff"]]),
    "no row": result([column(NUMBER)], []),
    "no result": message(b"C", b"COMMIT\0"),
}


@pytest.mark.parametrize("answer", SPOILED.values(), ids=SPOILED)
def test_an_answer_that_cannot_be_read_is_a_database_error(answer: bytes) -> None:
    talk = answering(lambda peer, statement: peer.send(answer + READY))
    with FakePostgreSQL(talk) as fake, TaskServer(fake.dsn) as server, pytest.raises(DatabaseError) as raised:
        server.run()
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("command", ["worker.py", "client.py list"])
def test_an_answer_of_other_values_than_ours_is_one_line(deployment: Deployment, command: str) -> None:
    def answer(peer: Peer, statement: bytes) -> None:
        is_version = b"MAX(version)" in statement
        peer.send((VERSION if is_version else result([column()], [[b"5 \xf0"]])) + READY)

    with FakePostgreSQL(answering(answer)) as fake:
        deployment.write_env(TASKSERVER_DSN=fake.dsn)
        deployment.write_tasks("def send(): pass\n")
        program, *arguments = command.split()
        ended = deployment.worker() if program == "worker.py" else deployment.client(*arguments)
    assert_one_line(ended, 1)


def test_the_text_of_a_server_s_error_is_cut() -> None:
    """It would be a line in cron's mail each minute."""
    error = message(b"E", b"SERROR\0CXX000\0M" + b"x" * 20_000 + b"\0\0")

    def refuse(peer: Peer) -> None:
        peer.meet()
        peer.send(error)

    for talk in (refuse, answering(lambda peer, statement: peer.send(error + READY))):
        with FakePostgreSQL(talk) as fake, TaskServer(fake.dsn) as server, pytest.raises(DatabaseError) as raised:
            server.run()
        assert 400 < len(str(raised.value)) < 1000


# ---- what the driver says by itself

FROZEN = """
import os, signal, sys, warnings
warnings.simplefilter("error")
from taskserver import TaskServer
from taskserver.errors import ConnectionLost
from taskserver.stores.postgresql import session

session.READ_SECONDS = 0.5
server = TaskServer(sys.argv[1])
database = server.store.database
database.change("SELECT 1")
pid = database.session().connection.info.backend_pid
os.kill(pid, signal.SIGSTOP)
for writes in (["SELECT 1"], ["UPDATE pg_class SET relname = relname WHERE oid = 0"] * 2):
    try:
        database.write_together([(write, ()) for write in writes], 0)
    except ConnectionLost as error:
        print(error)
    os.kill(pid, signal.SIGCONT)
    database.change("SELECT 1")
    pid = database.session().connection.info.backend_pid
    os.kill(pid, signal.SIGSTOP)
os.kill(pid, signal.SIGCONT)
server.close()
"""


def test_a_connection_that_is_given_up_leaves_no_word_of_the_driver_s(postgresql: PostgreSQL) -> None:
    """Its warnings would go to standard error, and so into cron's mail."""
    with postgresql.database() as name:
        ended = subprocess.run(
            [sys.executable, "-X", "dev", "-c", FROZEN, postgresql.dsn(name)],
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert ended.stderr == ""
    assert ended.returncode == 0
    assert [line.endswith("timed out (OperationalError)") for line in ended.stdout.splitlines()] == [True, True]
    assert logging.getLogger("psycopg").handlers, "a worker's own handler is on the root logger"
