"""The proxy that breaks networks for other tests: each of its faults strikes, and strikes nothing else."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import pymysql
import pytest

from tests.support.processes import WAIT_SECONDS, wait_until
from tests.support.proxy import HOST, Proxy, contains
from tests.support.servers import MySQLServer

SILENCE_SECONDS = 0.3
"""For what must not come."""


class Echo:
    """A server that answers each chunk with itself, and remembers what it heard."""

    def __init__(self) -> None:
        self.heard = b""
        self.closed = 0
        """Connections that their clients closed, as far as it was told."""
        self._listener = socket.create_server((HOST, 0))
        self.port: int = self._listener.getsockname()[1]
        self._threads = [threading.Thread(target=self._listen, daemon=True)]
        self._threads[0].start()

    def _listen(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._answer, args=(client,), daemon=True).start()

    def _answer(self, client: socket.socket) -> None:
        with client, suppress(OSError):
            while chunk := client.recv(65536):
                self.heard += chunk
                client.sendall(chunk)
        self.closed += 1

    def close(self) -> None:
        self._listener.close()


@pytest.fixture
def echo() -> Iterator[Echo]:
    server = Echo()
    yield server
    server.close()


@pytest.fixture
def proxy(echo: Echo) -> Iterator[Proxy]:
    with Proxy(HOST, echo.port) as made:
        yield made


def connect(proxy: Proxy) -> socket.socket:
    return socket.create_connection((HOST, proxy.port), timeout=WAIT_SECONDS)


def ask(client: socket.socket, request: bytes) -> bytes:
    client.sendall(request)
    return client.recv(65536)


def is_silent(client: socket.socket) -> bool:
    """Whether nothing comes, not even the end."""
    client.settimeout(SILENCE_SECONDS)
    try:
        client.recv(1)
    except TimeoutError:
        return True
    finally:
        client.settimeout(WAIT_SECONDS)
    return False


# ---- passing on


def test_much_passes_both_ways_as_it_was_and_closes_are_told(proxy: Proxy, echo: Echo) -> None:
    much = bytes(range(256)) * 20_000
    with connect(proxy) as client:
        threading.Thread(target=client.sendall, args=(much,)).start()
        back = b""
        while len(back) < len(much):
            back += client.recv(1 << 20)
        assert len(proxy.open_links) == 1
    assert back == echo.heard == much
    wait_until(lambda: echo.closed == 1)
    wait_until(lambda: not proxy.open_links)


# ---- drop


def test_a_drop_swallows_what_a_standing_connection_sends_and_tells_nobody(proxy: Proxy, echo: Echo) -> None:
    with connect(proxy) as client:
        ask(client, b"before")
        proxy.drop()
        client.sendall(b"lost")
        wait_until(lambda: proxy.lost_bytes == len(b"lost"))
        assert is_silent(client)
    assert echo.heard == b"before"


def test_a_drop_swallows_answers_too() -> None:
    with (
        socket.create_server((HOST, 0)) as listener,
        Proxy(HOST, listener.getsockname()[1]) as late,
        connect(late) as client,
    ):
        client.sendall(b"question")
        server, _ = listener.accept()
        with server:
            assert server.recv(100) == b"question"
            late.drop()
            server.sendall(b"answer")
            wait_until(lambda: late.lost_bytes == len(b"answer"))
            assert is_silent(client)


def test_a_connection_made_during_a_drop_hears_nothing_and_the_server_nothing_of_it(proxy: Proxy, echo: Echo) -> None:
    proxy.drop()
    with connect(proxy) as client:
        client.sendall(b"is anybody there")
        wait_until(lambda: proxy.lost_bytes > 0)
        assert is_silent(client)
        proxy.pass_on()
        assert is_silent(client)
    assert echo.heard == b""


def test_after_a_drop_new_connections_work_and_one_that_lost_bytes_stays_dead(proxy: Proxy, echo: Echo) -> None:
    with connect(proxy) as dead, connect(proxy) as idle:
        ask(dead, b"1")
        ask(idle, b"2")
        proxy.drop()
        dead.sendall(b"3")
        wait_until(lambda: proxy.lost_bytes == 1)
        proxy.pass_on()
        dead.sendall(b"4")
        with connect(proxy) as fresh:
            assert ask(fresh, b"5") == b"5"
        assert ask(idle, b"6") == b"6"
        assert is_silent(dead)
    assert echo.heard == b"1256"


def test_a_close_during_a_drop_is_told_afterwards(proxy: Proxy, echo: Echo) -> None:
    """A server goes on holding the locks of a client that it cannot hear."""
    client = connect(proxy)
    ask(client, b"1")
    proxy.drop()
    client.close()
    time.sleep(SILENCE_SECONDS)
    assert echo.closed == 0
    proxy.pass_on()
    wait_until(lambda: echo.closed == 1)


# ---- stall


def test_a_stall_holds_bytes_and_who_connects_and_lets_them_go_on(proxy: Proxy, echo: Echo) -> None:
    with connect(proxy) as client:
        ask(client, b"1")
        proxy.stall()
        client.sendall(b"2")
        wait_until(lambda: proxy.held_chunks == 1)
        with connect(proxy) as later:
            later.sendall(b"3")
            assert is_silent(client)
            assert is_silent(later)
            assert echo.heard == b"1"
            proxy.pass_on()
            assert client.recv(1) == b"2"
            assert later.recv(1) == b"3"
    assert proxy.lost_bytes == 0


# ---- reset, refuse


def test_a_reset_strikes_both_ends_of_every_connection_and_no_later_one(proxy: Proxy, echo: Echo) -> None:
    with connect(proxy) as one, connect(proxy) as two:
        ask(one, b"1")
        ask(two, b"2")
        assert proxy.reset() == 2
        for client in (one, two):
            with pytest.raises(ConnectionResetError):
                client.recv(1)
    wait_until(lambda: echo.closed == 2)
    with connect(proxy) as later:
        assert ask(later, b"3") == b"3"
    assert [link.closed_at is not None for link in proxy.links[:2]] == [True, True]


def test_a_refusing_proxy_refuses_who_connects_and_keeps_what_stands(proxy: Proxy, echo: Echo) -> None:
    with connect(proxy) as standing:
        ask(standing, b"1")
        proxy.refuse()
        with pytest.raises(ConnectionRefusedError):
            connect(proxy)
        assert ask(standing, b"2") == b"2"
        port = proxy.port
        proxy.pass_on()
        assert proxy.port == port
        with connect(proxy) as later:
            assert ask(later, b"3") == b"3"


# ---- cuts

COMMIT = b"\x03COMMIT"
"""The statement on its own, in the protocol's words: SET AUTOCOMMIT has it in it too."""


@pytest.fixture
def table(mysql_server: MySQLServer) -> Iterator[str]:
    with mysql_server.database() as name:
        mysql_server.execute("CREATE TABLE t (number INT) ENGINE = InnoDB", database=name)
        yield name


@pytest.fixture
def mysql_proxy(mysql_server: MySQLServer) -> Iterator[Proxy]:
    with Proxy(mysql_server.host, mysql_server.port) as made:
        yield made


def insert_through(proxy: Proxy, server: MySQLServer, database: str, **options: int) -> None:
    """One row in a transaction, with the COMMIT on its own."""
    with server.connect(host=HOST, port=proxy.port, database=database, autocommit=False, **options) as connection:
        connection.cursor().execute("INSERT INTO t VALUES (1)")
        connection.commit()


def numbers(server: MySQLServer, database: str) -> list[int]:
    return [row[0] for row in server.execute("SELECT number FROM t", database=database)]


@pytest.mark.parametrize("silent", [False, True])
@pytest.mark.parametrize(("is_after", "left"), [(False, []), (True, [1])])
def test_a_cut_at_a_commit_leaves_the_client_in_doubt_whether_the_row_is_there(
    mysql_proxy: Proxy, mysql_server: MySQLServer, table: str, is_after: bool, left: list[int], silent: bool
) -> None:
    """The client hears that the connection broke, or, where the cut is silent, waits for an answer in vain."""
    cut = (mysql_proxy.cut_after if is_after else mysql_proxy.cut_before)(contains(COMMIT), silent=silent)
    with pytest.raises(pymysql.OperationalError, match="timed out" if silent else "2013"):
        insert_through(mysql_proxy, mysql_server, table, **{"read_timeout": 1} if silent else {})
    assert cut.wait(WAIT_SECONDS)
    assert [COMMIT in request for request in cut.requests] == [True]
    assert numbers(mysql_server, table) == left


def test_several_statements_in_one_request_are_all_done_before_a_cut_after_it(
    mysql_proxy: Proxy, mysql_server: MySQLServer, table: str
) -> None:
    cut = mysql_proxy.cut_after(contains(b"COMMIT"))
    flag = pymysql.constants.CLIENT.MULTI_STATEMENTS
    statements = "BEGIN; INSERT INTO t VALUES (1); DO SLEEP(0.2); INSERT INTO t VALUES (2); COMMIT"
    with (
        mysql_server.connect(host=HOST, port=mysql_proxy.port, database=table, client_flag=flag) as connection,
        pytest.raises(pymysql.OperationalError),
    ):
        connection.cursor().execute(statements)
    assert cut.wait(WAIT_SECONDS)
    assert numbers(mysql_server, table) == [1, 2]


def test_a_cut_strikes_as_often_as_it_was_asked_to_and_not_once_all_passes_again(
    mysql_proxy: Proxy, mysql_server: MySQLServer, table: str
) -> None:
    cut = mysql_proxy.cut_after(contains(COMMIT), times=2)
    for _ in range(2):
        with pytest.raises(pymysql.OperationalError):
            insert_through(mysql_proxy, mysql_server, table)
    insert_through(mysql_proxy, mysql_server, table)
    assert len(cut.requests) == 2
    assert numbers(mysql_server, table) == [1, 1, 1]
    forgotten = mysql_proxy.cut_after(contains(COMMIT))
    mysql_proxy.pass_on()
    insert_through(mysql_proxy, mysql_server, table)
    assert not forgotten.has_struck
