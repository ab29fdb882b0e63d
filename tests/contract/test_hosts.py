"""Several hosts in one DSN: connections go to the first that serves, and move together while it is away.

Two proxies before one server are two hosts of a cluster; tests/faults has a real one.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

import pytest

from taskserver import TaskServer
from taskserver.errors import ConnectionLost, Unavailable
from taskserver.health.doctor import examine
from taskserver.stores import retrying
from taskserver.stores.mysql.session import READ_COMMITTED, REPEATABLE_READ
from tests.contract.accounts import failure
from tests.support.fake_server import FakeServer, Peer
from tests.support.modules import importable
from tests.support.postgresql import PostgreSQL
from tests.support.processes import wait_until
from tests.support.proxy import Proxy, contains
from tests.support.servers import MariaDB, PrivateServer, free_port


class Hosts(NamedTuple):
    """Two ways to one server."""

    own: str
    first: Proxy
    second: Proxy

    def dsn(self, *ports: int) -> str:
        """The DSN with hosts at these ports, by default both."""
        parts = urlsplit(self.own)
        login, at, _ = parts.netloc.rpartition("@")
        places = (f"127.0.0.1:{port}" for port in ports or (self.first.port, self.second.port))
        return parts._replace(netloc=f"{login}{at}{','.join(places)}").geturl()

    @property
    def name(self) -> str:
        """The name of the database."""
        return self.own.rpartition("/")[2]

    @property
    def port(self) -> int:
        """The server's own."""
        return urlsplit(self.own).port or 0


@pytest.fixture(params=["mysql", "postgresql"])
def hosts(request: pytest.FixtureRequest) -> Iterator[Hosts]:
    own = str(request.getfixturevalue(f"{request.param}_queue_dsn"))
    port = urlsplit(own).port or 0
    with Proxy("127.0.0.1", port) as first, Proxy("127.0.0.1", port) as second:
        yield Hosts(own, first, second)


def lose(host: Proxy) -> None:
    host.refuse()
    host.reset()


def test_all_connections_stay_at_the_first_host_and_move_together_while_it_is_away(hosts: Hosts) -> None:
    with TaskServer(hosts.dsn()) as server, ThreadPoolExecutor(1) as other_thread:
        other_thread.submit(server.add_task, "tasks.a").result()
        server.add_task("tasks.b")
        assert (len(hosts.first.open_links), len(hosts.second.links)) == (2, 0)
        hosts.first.refuse()
        hosts.first.cut_before(contains(b"tasks.c"))  # the other thread's connection goes on
        with pytest.raises(ConnectionLost):
            server.add_task("tasks.c")
        server.add_task("tasks.d")
        assert (len(hosts.first.open_links), len(hosts.second.open_links)) == (1, 1)
        hosts.first.pass_on()
        other_thread.submit(server.add_task, "tasks.e").result()
        wait_until(lambda: not hosts.first.open_links)  # the proxy hears of a close a little later
        assert len(hosts.second.open_links) == 2
        other_thread.submit(server.close).result()
    with TaskServer(hosts.dsn()) as server:  # a new process asks in order
        server.add_task("tasks.f")
        assert len(hosts.first.open_links) == 1


TASKS = """
from taskserver import connection, task

def plain(number):
    if number == 2:
        lose()

@task(transactional=True)
def transactional(number):
    connection().cursor().execute("SELECT 1")
    if number == 2:
        lose()
"""


@pytest.mark.parametrize("kind", ["plain", "transactional"])
def test_a_run_goes_on_at_the_next_host(hosts: Hosts, kind: str, tmp_path: Path) -> None:
    with importable(tmp_path) as modules:
        modules.write("hosted.py", TASKS)
        vars(importlib.import_module("hosted"))["lose"] = lambda: lose(hosts.first)
        with TaskServer(hosts.dsn(), modules="hosted", folder=tmp_path, backoff="fixed:0") as server:
            server.add_tasks([{"task": f"hosted.{kind}", "args": [number]} for number in range(5)])
            done = server.run().done + server.run().done  # the transactional task whose connection broke is retried
            assert (done, server.list()) == (5, [])
    wait_until(lambda: not hosts.first.open_links)


def test_a_host_that_accepts_and_stays_silent_is_left(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retrying, "HOST_SECONDS", 1.0)

    def keep_silent(peer: Peer) -> None:
        while peer.socket.recv(1000):
            pass

    with FakeServer(keep_silent) as silent:
        port = urlsplit(silent.dsn).port or 0
        began_at = time.monotonic()
        with TaskServer(hosts.dsn(port, hosts.second.port)) as server:
            server.add_task("tasks.a")
    assert 0.9 < time.monotonic() - began_at < 8  # otherwise it waits ten seconds
    assert len(hosts.second.links) == 1


def standby_of(hosts: Hosts) -> PrivateServer:
    """Another server with the same login and an empty database of the same name, which takes no writes."""
    password = unquote(urlsplit(hosts.own).password or "")
    if hosts.own.startswith("mysql"):
        mariadb = MariaDB()
        mariadb.execute(
            f"CREATE DATABASE `{hosts.name}`", "SET GLOBAL read_only = 1", f"SET PASSWORD = PASSWORD('{password}')"
        )
        return mariadb
    postgresql = PostgreSQL(False, "default_transaction_read_only=on")
    postgresql.execute(
        "SET default_transaction_read_only = off",
        f'CREATE DATABASE "{hosts.name}"',
        f"ALTER USER postgres PASSWORD '{password}'",
    )
    return postgresql


def test_a_server_that_takes_no_writes_is_passed_over(hosts: Hosts) -> None:
    with standby_of(hosts) as standby:
        with TaskServer(hosts.dsn(standby.port, hosts.port)) as server:
            server.add_task("tasks.a")
            assert [row.task for row in server.list()] == ["tasks.a"]
        said = failure(hosts.dsn(standby.port, free_port()))
    assert "read_only is ON" in said or "session is read-only" in said


@pytest.mark.parametrize("hosts", ["mysql"], indirect=True)
def test_each_host_is_asked_how_it_replicates(hosts: Hosts) -> None:
    with TaskServer(hosts.dsn()) as server:
        server.add_task("tasks.a")
        abilities = server.store.database.dialect.abilities  # type: ignore[attr-defined]
        abilities.isolation = REPEATABLE_READ  # of a host that replicates by statement
        lose(hosts.first)
        with pytest.raises(ConnectionLost):
            server.add_task("tasks.b")
        server.add_task("tasks.c")
        assert abilities.isolation == READ_COMMITTED


def test_the_doctor_says_which_hosts_serve(hosts: Hosts, tmp_path: Path) -> None:
    def said(*ports: int) -> list[str]:
        (tmp_path / ".env").write_text(f"TASKSERVER_DSN={hosts.dsn(*ports)}\n")
        return [f"{one.level} {one.words}" for one in examine(tmp_path) if one.name == "hosts"]

    assert said(hosts.port) == []
    assert said() == ["ok 2 of 2 hosts serve"]
    (found,) = said(hosts.port, nobody := free_port())
    assert found.startswith("warning 1 of 2 hosts serve; ")
    assert f"127.0.0.1:{nobody}/" in found
    with standby_of(hosts) as standby:
        (found,) = said(hosts.port, standby.port)
    assert found.startswith("ok 1 of 2 hosts serve; ")
    assert "read_only is ON" in found or "session is read-only" in found


def test_a_wrong_password_or_name_is_an_error_at_once_and_no_other_host_is_asked(hosts: Hosts) -> None:
    both = hosts.dsn()
    assert "nothing_here" in failure(both.replace(hosts.name, "nothing_here"))
    with pytest.raises(Exception, match=r"denied|authentication failed"):
        TaskServer(both, password="wrong").add_task("tasks.a")
    assert len(hosts.first.links) > 0
    assert len(hosts.second.links) == 0


def test_where_no_host_serves_the_error_names_each_and_nothing_was_added(hosts: Hosts) -> None:
    ports = [free_port(), free_port()]
    with TaskServer(hosts.dsn(*ports)) as server, pytest.raises(Unavailable) as raised:
        server.add_task("tasks.a")
    assert all(f"127.0.0.1:{port}/{hosts.name}" in str(raised.value) for port in ports)
    assert not raised.value.in_doubt
    assert "may have been added" not in str(raised.value)
