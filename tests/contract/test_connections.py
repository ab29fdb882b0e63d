"""Connections: dropped ones, accounts with few rights, sockets, and servers that cannot be reached or are none."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pymysql
import pytest

from taskserver import DatabaseError, TaskServer
from taskserver.host import peer
from taskserver.model.new_task import NewTask
from taskserver.stores import database as stores_database
from taskserver.stores import dialect
from taskserver.stores.mysql import errors as mysql_errors
from taskserver.stores.queue.transactions import Transactions
from tests.contract.accounts import QUOTED_SECRET, SECRET, account, failure
from tests.support.deployment import Deployment
from tests.support.fake_server import FakeServer, Peer
from tests.support.processes import assert_one_line, wait_until
from tests.support.queues import row_counts
from tests.support.servers import MariaDB, MySQLServer


@contextmanager
def queue_at(dsn: str) -> Iterator[TaskServer]:
    with TaskServer(dsn) as server:
        server.create_tables()
        yield server


def stored(dsn: str) -> dict[int, str | None]:
    """The args of all tasks by id, read on a connection that nothing else uses."""
    with TaskServer(dsn) as reader:
        return {task.id: task.columns["args"] for task in reader.store.views.list(limit=100_000)}


# ---- dropped connections


def kill_connections(mysql_server: MySQLServer, dsn: str) -> int:
    """Ends the database's connections from another one, as a host's wait_timeout does; returns once they are gone."""
    which = f"FROM information_schema.processlist WHERE db = '{dsn.rpartition('/')[2]}'"
    found = mysql_server.execute(f"SELECT id {which}")

    def are_gone() -> bool:
        # Again and again: MySQL 5.7 misses a KILL that comes as the connection begins to wait for its next statement.
        for (number,) in mysql_server.execute(f"SELECT id {which}"):
            with suppress(pymysql.MySQLError):
                mysql_server.execute(f"KILL {number}")
        return not mysql_server.execute(f"SELECT id {which}")

    wait_until(are_gone)
    return len(found)


def test_an_idle_connection_that_was_dropped_is_replaced(
    mysql_dsn: str, mysql_server: MySQLServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert stores_database.IDLE_SECONDS == 1.0
    monkeypatch.setattr(stores_database, "IDLE_SECONDS", 0.0)  # as if more than a second had passed
    with queue_at(mysql_dsn) as server:
        for use in (
            lambda: server.add_task("tasks.a"),
            lambda: server.add_tasks([{"task": "tasks.a", "args": [1]}] * 3),
            lambda: server.store.claims.has_new(()),
            server.run,
            server.store.views.runs,
        ):
            assert kill_connections(mysql_server, mysql_dsn) == 1
            use()
        assert [(count.status, count.rows) for count in row_counts(server.store)] == [(3, 4)]


def test_a_connection_that_breaks_in_use_is_an_error_and_the_next_use_works(
    mysql_dsn: str, mysql_server: MySQLServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores_database, "IDLE_SECONDS", 1e9)  # as if it had been used just now
    with queue_at(mysql_dsn) as server:
        kill_connections(mysql_server, mysql_dsn)
        # Whether the row was stored cannot be known, so it is not sent again.
        with pytest.raises(DatabaseError) as raised:
            server.add_task("tasks.a")
        assert "\n" not in str(raised.value)
        assert server.add_task("tasks.b")
    assert len(stored(mysql_dsn)) == 1


def test_a_connection_that_breaks_between_the_statements_of_many_adds_none(
    mysql_dsn: str, mysql_server: MySQLServer
) -> None:
    killed: list[int] = []

    def kill_before_the_last(number: int) -> str:
        if number == 1500:
            killed.append(kill_connections(mysql_server, mysql_dsn))
        return f"task {number}"

    with queue_at(mysql_dsn) as server:
        with pytest.raises(DatabaseError):
            server.store.producing.add_many([NewTask("tasks.a", None, 0, 0)] * 1500, kill_before_the_last)
        assert (killed, stored(mysql_dsn)) == ([1], {})
        assert len(server.add_tasks([{"task": "tasks.a"}] * 3)) == 3


def test_a_run_goes_on_where_its_connection_is_killed_at_its_begin(
    mysql_dsn: str, mysql_server: MySQLServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores_database, "IDLE_SECONDS", 1e9)
    with queue_at(mysql_dsn) as server:
        check_tables = server.store.tables.check

        def then_killed() -> None:
            check_tables()
            kill_connections(mysql_server, mysql_dsn)

        monkeypatch.setattr(server.store.tables, "check", then_killed)
        server.add_task("tasks.a")
        assert server.run().taken == 1


@pytest.mark.parametrize("step", [2, 3])
def test_ids_are_right_where_the_server_counts_in_steps(mysql_dsn: str, mysql_server: MySQLServer, step: int) -> None:
    """As Galera and paired masters do, by auto_increment_increment."""
    with queue_at(mysql_dsn) as server:
        ((before,),) = mysql_server.execute("SELECT @@GLOBAL.auto_increment_increment")
        mysql_server.execute(f"SET GLOBAL auto_increment_increment = {step}")
        try:
            server.close()
            ids = server.add_tasks({"task": "tasks.a", "args": [number]} for number in range(1200))
            one = server.add_task("tasks.a", ["one"])
        finally:
            mysql_server.execute(f"SET GLOBAL auto_increment_increment = {before}")
    assert stored(mysql_dsn) == {task_id: f"[{number}]" for number, task_id in enumerate(ids)} | {one: '["one"]'}
    assert ids[1] - ids[0] == step


# ---- accounts


@pytest.fixture
def producers_dsn(mysql_dsn: str, mysql_server: MySQLServer) -> Iterator[str]:
    """For a user who may insert into the queue and nothing else."""
    database = mysql_dsn.rpartition("/")[2]
    with queue_at(mysql_dsn), account(mysql_server, database, f"INSERT ON `{database}`.jobs_queue") as dsn:
        yield dsn


def test_a_producer_needs_no_right_but_insert(producers_dsn: str, mysql_dsn: str) -> None:
    with TaskServer(producers_dsn) as server:
        ids = [server.add_task("tasks.a", [number]) for number in range(2)]
        ids += server.add_tasks({"task": "tasks.a", "args": [number]} for number in range(2, 1100))
    assert stored(mysql_dsn) == {task_id: f"[{number}]" for number, task_id in enumerate(ids)}


def test_a_worker_with_a_producer_s_account_says_which_right_it_lacks(
    producers_dsn: str, deployment: Deployment
) -> None:
    deployment.write_env(TASKSERVER_DSN=producers_dsn)
    deployment.write_tasks("def send(): pass\n")
    ended = deployment.worker()
    assert_one_line(ended, 1, "1142", "grant")
    assert "s3cret" not in ended.stderr


def test_a_wrong_password_is_one_line_that_says_where_to_fix_it(mysql_dsn: str) -> None:
    address = mysql_dsn.rpartition("@")[2]
    told = failure(f"mysql://root:{QUOTED_SECRET}@{address}")
    assert "TASKSERVER_PASSWORD" in told
    assert "1045" in told or "2061" in told  # MySQL 8 asks a foreign account's login for the password itself
    failure(f"mysql://root:{SECRET}@{address}")
    failure(f"mysql://root@{address}", password=SECRET)


def test_a_database_that_is_unknown_or_that_the_account_may_not_use_is_named(
    mysql_dsn: str, mysql_server: MySQLServer
) -> None:
    with account(mysql_server, "t_no_such_database", "INSERT ON *.*") as dsn:
        told = failure(dsn)
    assert "t_no_such_database" in told
    assert "1049" in told
    with account(mysql_server, mysql_dsn.rpartition("/")[2]) as dsn:
        told = failure(dsn)
    assert "1044" in told
    assert "grant" in told


# ---- servers that are none


def test_an_unknown_host_is_one_line() -> None:
    told = failure(f"mysql://root:{QUOTED_SECRET}@no-such-host.invalid:3306/shop")
    assert "no-such-host.invalid" in told
    assert "2003" in told


def test_a_port_on_which_nothing_listens_is_one_line() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        assert f"127.0.0.1:{port}" in failure(f"mysql://root:{QUOTED_SECRET}@127.0.0.1:{port}/shop")


@contextmanager
def stranger(greeting: bytes, closes: bool) -> Iterator[str]:
    """The address of a server that is no MySQL: it sends these bytes, and then closes or stays silent."""

    def talk(peer: Peer) -> None:
        peer.socket.sendall(greeting)
        if closes:
            peer.socket.shutdown(socket.SHUT_WR)
        while peer.socket.recv(1000):
            pass

    with FakeServer(talk) as server:
        yield server.dsn.rpartition("@")[2]


GREETINGS = {
    "nothing": b"",
    "ssh": b"SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n",
    "an empty packet": b"\0\0\0\0",
    "a cut greeting": b"\x08\0\0\0\x0a5.7.29\0",
    "letters that are no UTF-8": b"\x0c\0\0\0\xff\x10\x04\xff\xfe\xfd\xfc\xfb\xfa\xf9\xf8",
}


@pytest.mark.parametrize("greeting", GREETINGS.values(), ids=GREETINGS)
def test_a_server_that_is_no_mysql_is_a_database_error_in_one_line(greeting: bytes) -> None:
    with stranger(greeting, closes=True) as address:
        assert address.partition("/")[0] in failure(f"mysql://root:{QUOTED_SECRET}@{address}")


@pytest.mark.parametrize("greeting", ["nothing", "ssh"])
def test_a_server_that_says_nothing_more_is_given_up_by_itself(greeting: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Web servers, Redis and a half-dead host take a connection and wait; cron must not pile up workers there."""
    monkeypatch.setattr(dialect, "CONNECT_SECONDS", 1)
    with stranger(GREETINGS[greeting], closes=False) as address:
        began_at = time.monotonic()
        assert failure(f"mysql://root:{QUOTED_SECRET}@{address}")
        assert time.monotonic() - began_at < 9  # after ten seconds the server closes


@pytest.mark.parametrize("closes", [True, False], ids=["hangs-up", "silent"])
@pytest.mark.parametrize("scheme", ["mysql", "postgresql"])
def test_an_add_whose_login_failed_was_not_sent(scheme: str, closes: bool) -> None:
    with stranger(b"", closes) as address:
        server = TaskServer(f"{scheme}://root@{address}")
        with server.store.database.answered_within(1), pytest.raises(DatabaseError) as raised:
            server.add_task("tasks.a")
    assert not raised.value.may_have_taken_effect
    assert "is that a" not in str(raised.value)  # it may be the server, which is overloaded
    assert "does the server run?" in str(raised.value) or "its log tells why" in str(raised.value)


# ---- sockets


def hosts_of_connections(mariadb: MariaDB, dsn: str) -> set[str]:
    """From where a server at this DSN connects."""
    with mariadb.database() as name, TaskServer(dsn.format(name=name)) as server:
        server.create_tables()
        server.add_task("tasks.a")
        found = mariadb.execute(f"SELECT host FROM information_schema.processlist WHERE db = '{name}'")
    return {host.partition(":")[0] for (host,) in found}


@pytest.mark.parametrize("address", ["", "localhost", "host.invalid:1"])
def test_a_socket_may_be_named_instead_of_a_host(mariadb: MariaDB, address: str) -> None:
    dsn = f"mysql://{mariadb.login}@{address}/{{name}}?unix_socket={mariadb.socket}"
    assert hosts_of_connections(mariadb, dsn) == {"localhost"}


def test_a_socket_that_is_not_there_is_a_database_error(tmp_path: Path) -> None:
    told = failure(f"mysql://root:{QUOTED_SECRET}@/shop?unix_socket={tmp_path}/none.sock")
    assert f"{tmp_path}/none.sock" in told


def account_of(server: MariaDB) -> str:
    return server.socket.owner()


def test_localhost_means_the_first_of_the_usual_sockets_that_exists_or_the_port(
    mariadb: MariaDB, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An address in numbers never means a socket."""
    none, other = f"{tmp_path}/none.sock", f"{tmp_path}/other.sock"
    monkeypatch.setattr(mysql_errors, "SOCKETS", (none, str(mariadb.socket), other))
    assert hosts_of_connections(mariadb, f"mysql://{mariadb.login}@localhost:1/{{name}}") == {"localhost"}
    assert hosts_of_connections(mariadb, mariadb.dsn("{name}")) == {"127.0.0.1"}
    monkeypatch.setattr(mysql_errors, "SOCKETS", (none,))
    monkeypatch.setattr(peer, "MYSQL_ACCOUNTS", (*peer.MYSQL_ACCOUNTS, account_of(mariadb)))
    assert hosts_of_connections(mariadb, f"mysql://{mariadb.login}@localhost:{mariadb.port}/{{name}}") == {"127.0.0.1"}


def test_nobody_who_listens_at_the_other_address_of_this_host_is_taken_for_the_server(
    mariadb: MariaDB, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("::1", mariadb.port), family=socket.AF_INET6):
        look_up = socket.getaddrinfo
        monkeypatch.setattr(mysql_errors, "SOCKETS", ())
        monkeypatch.setattr(peer, "MYSQL_ACCOUNTS", (*peer.MYSQL_ACCOUNTS, account_of(mariadb)))
        monkeypatch.setattr(
            "socket.getaddrinfo", lambda host, *args: look_up("::1" if host == "localhost" else host, *args)
        )
        dsn = f"mysql://{mariadb.login}@localhost:{mariadb.port}/{{name}}"
        assert hosts_of_connections(mariadb, dsn) == {"127.0.0.1"}


# ---- files of SQLite


def test_a_file_that_is_no_database_is_a_database_error(tmp_path: Path) -> None:
    (tmp_path / "letter.db").write_text("Dear Sir or Madam, " * 100)
    server = TaskServer(f"sqlite:///{tmp_path}/letter.db")
    for use in (server.create_tables, lambda: server.add_task("tasks.a")):
        with pytest.raises(DatabaseError, match=r"letter\.db"):
            use()
    assert (tmp_path / "letter.db").read_text().startswith("Dear Sir")


# ---- what a commit waits for on SQLite


@pytest.mark.parametrize(("query", "level"), [("", 2), ("?synchronous=full", 2), ("?synchronous=normal", 1)])
@pytest.mark.parametrize("place", ["{folder}/x.db", ":memory:"])
def test_each_connection_of_ours_has_the_synchronous_of_the_address(
    tmp_path: Path, place: str, query: str, level: int
) -> None:
    with queue_at(f"sqlite:///{place.format(folder=tmp_path)}{query}") as server:
        database = server.store.database
        assert database.fetch_value("PRAGMA synchronous") == level
        assert database.fetch_value("PRAGMA journal_mode") == "wal"
        transactions = Transactions(server.store)
        transactions.open()
        assert transactions.connection.execute("PRAGMA synchronous").fetchone() == (level,)
        transactions.close()
    assert (tmp_path / "x.db").exists() is (place != ":memory:")
