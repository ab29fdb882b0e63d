"""Connections: dropped ones, accounts with few rights, sockets, and servers that cannot be reached or are strangers."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pymysql
import pytest

from taskserver import DatabaseError, TaskServer
from taskserver.stores import database as stores_database
from taskserver.stores import dialect
from taskserver.stores.mysql import errors as mysql_errors
from tests.contract.accounts import QUOTED_SECRET, account, failure
from tests.support.fake_server import FakeServer, Peer
from tests.support.rows import Rows
from tests.support.servers import MariaDB, MySQLServer


@pytest.fixture
def server(mysql_queue_dsn: str) -> Iterator[TaskServer]:
    with TaskServer(mysql_queue_dsn) as server:
        yield server


def stored(dsn: str) -> dict[int, str | None]:
    """The args of all tasks by id."""
    rows = Rows(dsn)
    found = {row["id"]: row["args"] for row in rows.all()}
    rows.close()
    return found


# ---- dropped connections


def kill_connections(mysql_server: MySQLServer, dsn: str) -> int:
    """Ends the database's connections from another one, as a host's wait_timeout does; returns once they are gone."""
    look = f"SELECT id FROM information_schema.processlist WHERE db = '{dsn.rpartition('/')[2]}'"
    found = mysql_server.execute(look)
    while left := mysql_server.execute(look):  # MySQL 5.7 may miss a KILL
        for (number,) in left:
            with suppress(pymysql.MySQLError):
                mysql_server.execute(f"KILL {number}")
    return len(found)


def test_an_idle_connection_that_was_dropped_is_replaced(
    server: TaskServer, mysql_queue_dsn: str, mysql_server: MySQLServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert stores_database.IDLE_SECONDS == 1.0
    monkeypatch.setattr(stores_database, "IDLE_SECONDS", 0.0)  # as if more than a second had passed
    server.store.claims.has_new(())
    for use in (
        lambda: server.add_task("tasks.a"),
        lambda: server.add_tasks([{"task": "tasks.a", "args": [1]}] * 3),
        server.run,
    ):
        assert kill_connections(mysql_server, mysql_queue_dsn) >= 1
        use()
    assert [str(task.status) for task in server.list()] == ["error"] * 4


def test_ids_are_right_where_the_server_counts_in_steps(
    server: TaskServer, mysql_queue_dsn: str, mysql_server: MySQLServer
) -> None:
    """As Galera and paired masters do, by auto_increment_increment."""
    with mysql_server.set_globally(auto_increment_increment=3):
        ids = server.add_tasks({"task": "tasks.a", "args": [number]} for number in range(1200))
        one = server.add_task("tasks.a", ["one"])
    assert stored(mysql_queue_dsn) == {task_id: f"[{number}]" for number, task_id in enumerate(ids)} | {one: '["one"]'}
    assert ids[1] - ids[0] == 3


# ---- accounts


def test_a_producer_needs_no_right_but_insert_and_a_worker_says_which_it_lacks(
    mysql_queue_dsn: str, mysql_server: MySQLServer
) -> None:
    database = mysql_queue_dsn.rpartition("/")[2]
    with account(mysql_server, database, f"INSERT ON `{database}`.jobs_queue") as dsn, TaskServer(dsn) as server:
        ids = [server.add_task("tasks.a", [number]) for number in range(2)]
        ids += server.add_tasks({"task": "tasks.a", "args": [number]} for number in range(2, 1100))
        assert stored(mysql_queue_dsn) == {task_id: f"[{number}]" for number, task_id in enumerate(ids)}
        with pytest.raises(DatabaseError, match=r"^[^\n]*1142[^\n]*grant[^\n]*$") as raised:
            server.run()
        assert "s3cret" not in str(raised.value)


def test_a_wrong_password_is_one_line_that_says_where_to_fix_it(mysql_queue_dsn: str) -> None:
    address = mysql_queue_dsn.rpartition("@")[2]
    said = failure(f"mysql://root:{QUOTED_SECRET}@{address}")
    assert "TASKSERVER_PASSWORD" in said
    assert "1045" in said or "2061" in said  # MySQL 8 asks a foreign account's login for the password itself


def test_a_database_that_is_unknown_or_that_the_account_may_not_use_is_named(
    mysql_queue_dsn: str, mysql_server: MySQLServer
) -> None:
    with account(mysql_server, "t_no_such_database", "INSERT ON *.*") as dsn:
        said = failure(dsn)
    assert "t_no_such_database" in said
    assert "1049" in said
    with account(mysql_server, mysql_queue_dsn.rpartition("/")[2]) as dsn:
        said = failure(dsn)
    assert "1044" in said
    assert "grant" in said


# ---- strangers


@contextmanager
def stranger(greeting: bytes, closes: bool) -> Iterator[str]:
    """The address of a server of another kind: it sends these bytes, and then closes or stays silent."""

    def talk(peer: Peer) -> None:
        peer.socket.sendall(greeting)
        if closes:
            peer.socket.shutdown(socket.SHUT_WR)
        while peer.socket.recv(1000):
            pass

    with FakeServer(talk) as server:
        yield server.dsn.rpartition("@")[2]


GREETINGS = (
    *(b"", b"SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n", b"\x08\0\0\0\x0a5.7.29\0"),
    b"\x0c\0\0\0\xff\x10\x04\xff\xfe\xfd\xfc\xfb\xfa\xf9\xf8",  # no UTF-8
)


def test_a_server_that_cannot_be_reached_or_is_of_another_kind_is_an_error_in_one_line(tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        nobody = f"127.0.0.1:{unused.getsockname()[1]}"
        for address, words in {
            "no-such-host.invalid:3306/shop": "no-such-host.invalid",
            f"{nobody}/shop": nobody,
            f"/shop?unix_socket={tmp_path}/none.sock": f"{tmp_path}/none.sock",
        }.items():
            assert words in failure(f"mysql://root:{QUOTED_SECRET}@{address}")
    for greeting in GREETINGS:
        with stranger(greeting, closes=True) as address:
            assert address.partition("/")[0] in failure(f"mysql://root:{QUOTED_SECRET}@{address}")


@pytest.mark.parametrize("scheme", ["mysql", "postgresql"])
def test_a_server_that_stays_silent_is_given_up(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Web servers, Redis and a half-dead host accept a connection and wait; cron must not pile up workers there."""
    monkeypatch.setattr(dialect, "CONNECT_SECONDS", 0.3)
    with stranger(b"", closes=False) as address, TaskServer(f"{scheme}://u@{address}") as server:
        began_at = time.monotonic()
        with pytest.raises(DatabaseError, match=r"timed out|timeout expired"):
            server.run()
        assert time.monotonic() - began_at < 9  # after ten seconds the server closes


@pytest.mark.parametrize("scheme", ["mysql", "postgresql"])
def test_an_add_whose_login_failed_was_not_sent(scheme: str) -> None:
    with stranger(b"", closes=True) as address:
        server = TaskServer(f"{scheme}://root@{address}")
        with server.store.database.with_timeout(0.5), pytest.raises(DatabaseError) as raised:
            server.add_task("tasks.a")
    assert not raised.value.in_doubt
    assert "is that a" not in str(raised.value)  # it may be the server, which is overloaded
    assert "does the server run?" in str(raised.value) or "its log tells why" in str(raised.value)


# ---- sockets, and what localhost means


def host_of_connection(mariadb: MariaDB, dsn: str) -> str:
    """From where a server at this DSN connects."""
    with mariadb.database() as name, TaskServer(dsn.format(name=name)) as server:
        server.create_tables()
        ((host,),) = mariadb.execute(f"SELECT host FROM information_schema.processlist WHERE db = '{name}'")
    return str(host).partition(":")[0]


def test_localhost_means_the_first_of_the_usual_sockets_that_exists_or_the_port(
    mariadb: MariaDB, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An address in numbers never means a socket."""
    localhost = f"mysql://{mariadb.login}@localhost:{{port}}/{{{{name}}}}"
    none, other = f"{tmp_path}/none.sock", f"{tmp_path}/other.sock"
    monkeypatch.setattr(mysql_errors, "SOCKETS", (none, str(mariadb.socket), other))
    assert host_of_connection(mariadb, localhost.format(port=1)) == "localhost"
    assert host_of_connection(mariadb, mariadb.dsn("{name}")) == "127.0.0.1"
    monkeypatch.setattr(mysql_errors, "SOCKETS", (none,))
    assert host_of_connection(mariadb, localhost.format(port=mariadb.port)) == "127.0.0.1"
