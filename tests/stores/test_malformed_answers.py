"""Answers that are none, or none of ours, from a hostile server or a proxy that spoils them: one line, no traceback."""

from __future__ import annotations

import sys

import pytest

from taskserver import DatabaseError, TaskServer
from taskserver.stores.tables import SCHEMA_VERSION
from tests.support.deployment import Deployment
from tests.support.fake_server import DATE, DECIMAL, INTEGER, FakeServer, Peer, answering, column, result
from tests.support.processes import assert_one_line

VERSION = result([column(INTEGER)], [[str(SCHEMA_VERSION).encode()]])
SPOILED = {
    "a column without a name": result([column(INTEGER, None)], []),
    "a column that is cut off": result([column()[:-3]], []),
    "a number that is none": result([column(DECIMAL)], [[b"x"]]),
    "a day beyond all years": result([column(DATE)], [[b"99999999999999999999-01-01"]]),
    "a text for a number": result([column()], [[b"5"]]),
}
COMMANDS = ["worker.py", "client.py status", "client.py status --json", "client.py show 1", "client.py list"]
COMMANDS += ["client.py prune --older-than 1d", "client.py stats", "client.py errors", "client.py retry 1"]


def always(*packets: bytes) -> FakeServer:
    return FakeServer(answering(lambda peer, query: peer.send(*packets)))


@pytest.mark.parametrize("packets", SPOILED.values(), ids=SPOILED)
def test_an_answer_that_cannot_be_read_is_a_database_error(packets: list[bytes]) -> None:
    with always(*packets) as fake, TaskServer(fake.dsn) as server, pytest.raises(DatabaseError, match="MySQL server"):
        server.run()


@pytest.mark.parametrize("command", COMMANDS)
def test_an_answer_of_other_values_than_ours_is_one_line(deployment: Deployment, command: str) -> None:
    def answer(peer: Peer, query: bytes) -> None:
        peer.send(*VERSION if b"MAX(version)" in query else result([column()], [[b"5 \xf0"]]))

    with FakeServer(answering(answer)) as fake:
        deployment.write_env(TASKSERVER_DSN=fake.dsn)
        deployment.write_tasks("def send(): pass\n")
        program, *arguments = command.split()
        ended = deployment.worker() if program == "worker.py" else deployment.client(*arguments)
    assert_one_line(ended, 1, "127.0.0.1" if "retry" in command else "cannot be read")


@pytest.mark.parametrize("option", [[], ["--mail"], ["--withdraw=fatal"]])
def test_check_tells_of_answers_that_cannot_be_read_on_standard_output(
    deployment: Deployment, option: list[str]
) -> None:
    with always(*VERSION) as fake:
        deployment.write_env(TASKSERVER_DSN=fake.dsn)
        ended = deployment.client("check", *option)
    assert (ended.returncode, ended.stderr, ended.stdout.count("\n")) == (2, "", 1)
    assert ended.stdout.startswith("TASKSERVER CRITICAL: ")


def test_doctor_tells_of_answers_that_cannot_be_read(deployment: Deployment) -> None:
    with always(*VERSION) as fake:
        deployment.write_env(TASKSERVER_DSN=fake.dsn)
        ended = deployment.client("doctor")
    assert ended.returncode == 2
    assert "cannot be read" in ended.stdout
    assert ended.stderr == ""


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
