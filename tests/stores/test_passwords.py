"""The password on its way to the server: in clear it goes to nobody but the server itself."""

from __future__ import annotations

import os
import signal
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import pytest

from taskserver.host import server_accounts
from taskserver.host.server_accounts import MYSQL, is_at_other_end
from taskserver.settings.dsn import mysql as dsn_module
from taskserver.settings.dsn.mysql import usual_socket
from tests.stores.accounts import SECRET, failure
from tests.support.certificates import Certificates
from tests.support.deployment import Deployment
from tests.support.fake_server import SALT, FakeServer, Peer
from tests.support.processes import assert_one_line

CLEAR = SECRET.encode() + b"\0"
KEY = b"-----BEGIN PUBLIC KEY-----\nan attacker's own\n"

Talk = list[bytes]
"""The answers of a server to a login, one after each packet of the client."""
TALKS: dict[str, tuple[str, Talk]] = {
    "clear": ("mysql_native_password", [b"\xfemysql_clear_password\0"]),
    "dialog": ("mysql_native_password", [b"\xfedialog\0\x04Password: "]),
    "sha256 at once": ("sha256_password", [b"\x01" + KEY]),
    "sha256": ("mysql_native_password", [b"\xfesha256_password\0" + SALT + b"\0", b"\x01" + KEY]),
    "caching_sha2": ("caching_sha2_password", [b"\x01\x04", b"\x01" + KEY]),
    "caching_sha2 by a switch": (
        "mysql_native_password",
        [b"\xfecaching_sha2_password\0" + SALT + b"\0", b"\x01\x04", b"\x01" + KEY],
    ),
    "old": ("mysql_native_password", [b"\xfemysql_old_password\0" + SALT]),
}


class AskingServer(FakeServer):
    """Asks for the password in some way, and keeps all that it receives."""

    def __init__(self, listening: socket.socket, talk: str, context: ssl.SSLContext | None = None) -> None:
        self._plugin, self._answers = TALKS[talk]
        self._context = context
        self.received: list[bytes] = []
        super().__init__(self._ask, listening)

    def has_the_password(self) -> bool:
        return any(SECRET.encode() in packet for packet in self.received)

    def _ask(self, peer: Peer) -> None:
        packet = peer.greet(self._plugin, self._context)
        for answer in [*self._answers, b"\xff\x15\x04#28000no"]:
            self.received.append(packet)
            peer.send(answer)
            packet = peer.receive()


@pytest.fixture
def of_a_neighbour(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the sockets that a test makes were another account's."""
    monkeypatch.setattr(server_accounts, "is_account_of_server", lambda uid, names: False)


def address(listening: socket.socket, host: str = "127.0.0.1") -> str:
    return f"mysql://u:{quote(SECRET, safe='')}@{host}:{listening.getsockname()[1]}/shop"


@pytest.mark.parametrize("has_tls", [False, True])
@pytest.mark.parametrize("talk", TALKS)
def test_a_stranger_who_listens_in_the_servers_place_never_gets_the_password(
    of_a_neighbour: None,
    certificates: Certificates,
    monkeypatch: pytest.MonkeyPatch,
    talk: str,
    has_tls: bool,
) -> None:
    monkeypatch.setattr("pymysql._auth._have_cryptography", True)  # as with PyMySQL[rsa]
    listening = socket.create_server(("127.0.0.1", 0))
    with AskingServer(listening, talk, certificates.server_context() if has_tls else None) as server:
        for mode in ("", "?ssl-mode=disabled", "?ssl-mode=preferred"):
            told = failure(address(listening) + mode)
            if talk != "old":
                assert "ssl-ca" in told
                assert "name localhost" in told
    assert server.received
    assert not server.has_the_password()


def test_a_server_that_cannot_be_verified_on_another_host_never_gets_the_password(
    certificates: Certificates,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dsn_module.MySQLDsn, "is_loopback", False)
    listening = socket.create_server(("127.0.0.1", 0))
    with AskingServer(listening, "caching_sha2", certificates.server_context()) as server:
        for mode in ("", "?ssl-mode=required"):
            assert "add ?ssl-ca=/path" in failure(address(listening) + mode)
        assert server.received
        assert not server.has_the_password()
        failure(f"{address(listening)}?ssl-mode=required&ssl-ca={certificates.stranger}")
        assert not server.has_the_password()
        failure(f"{address(listening)}?ssl-ca={certificates.authority}")
        assert server.has_the_password()


@pytest.mark.parametrize("talk", ["clear", "dialog"])
def test_a_server_of_our_own_account_on_this_host_gets_the_password(talk: str) -> None:
    listening = socket.create_server(("127.0.0.1", 0))
    with AskingServer(listening, talk) as server:
        failure(address(listening))
    assert CLEAR in server.received


def test_localhost_is_never_what_another_account_has_at_the_port(
    of_a_neighbour: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It could hand the login on to the server, whose socket is away for a moment, and have the session."""
    monkeypatch.setattr(dsn_module, "SOCKETS", ())
    listening = socket.create_server(("127.0.0.1", 0))
    with AskingServer(listening, "clear") as server:
        for host, mode in (
            ("localhost", ""),
            ("LocalHost", "?ssl-mode=preferred"),
            ("localhost", "?ssl-mode=required"),
        ):
            assert "neither root nor this account nor mysql" in failure(address(listening, host) + mode)
        assert not server.received
        failure(address(listening))
        assert server.received
        monkeypatch.undo()
        monkeypatch.setattr(dsn_module, "SOCKETS", ())
        server.received.clear()
        failure(address(listening, "localhost"))
        assert server.received


def listening_at(path: Path) -> socket.socket:
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(path))
    listening.listen()
    return listening


def test_a_socket_is_asked_who_has_its_other_end(
    of_a_neighbour: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "mysql.sock"
    with AskingServer(listening_at(path), "caching_sha2") as server:
        told = failure(f"mysql://u:{quote(SECRET, safe='')}@/shop?unix_socket={path}")
        assert server.received
        assert not server.has_the_password()
        assert "unix_socket" in told
        monkeypatch.undo()
        failure(f"mysql://u:{quote(SECRET, safe='')}@/shop?unix_socket={path}")
        assert server.has_the_password()


@pytest.mark.parametrize(("rights", "is_usual"), [(0o755, True), (0o1777, False)])
def test_a_socket_or_a_link_of_others_in_a_folder_of_everybodys_is_no_usual_one(
    of_a_neighbour: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, rights: int, is_usual: bool
) -> None:
    tmp_path.chmod(rights)
    own = tmp_path / "own"
    own.mkdir()
    for path in (own / "mysql.sock", tmp_path / "mysql.sock"):
        listening_at(path).close()
    (tmp_path / "link.sock").symlink_to(own / "mysql.sock")
    for name in ("mysql.sock", "link.sock"):
        monkeypatch.setattr(dsn_module, "SOCKETS", (str(tmp_path / name),))
        assert usual_socket("localhost") == (str(tmp_path / name) if is_usual else None)


def test_who_accepted_a_connection_is_asked_for_and_not_who_listens_now() -> None:
    """A neighbour may accept, close its listener, and ask once the server is back.

    It may also have a connection to the server between the same ports, and close its own side of ours.
    """
    if os.getuid() != 0:
        pytest.skip("only root can act as two accounts")
    listening = socket.create_server(("127.0.0.1", 0))
    port = listening.getsockname()[1]
    with accepted_by_nobody(listening), socket.create_connection(("127.0.0.1", port)) as connected:
        assert connected.recv(1) == b"!"
        listening.close()
        with socket.create_server(("127.0.0.1", port), reuse_port=True):
            assert not is_at_other_end(connected, MYSQL)
    for host in ("127.0.0.1", "::1"):
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = socket.create_server((host, 0), family=family)
        port = listening.getsockname()[1]
        with (
            socket.create_server(("127.0.0.2", port)) as servers,
            accepted_by_nobody(listening, beside=("127.0.0.2", port)),
            socket.create_connection((host, port)) as connected,
        ):
            assert connected.recv(1) == b"!"
            with servers.accept()[0]:
                assert not is_at_other_end(connected, MYSQL)
    with socket.create_server(("127.0.0.1", 0)) as ours, socket.create_connection(ours.getsockname()) as connected:
        assert not is_at_other_end(connected, MYSQL)  # nobody has taken it up yet
        with ours.accept()[0]:
            assert is_at_other_end(connected, MYSQL)


def test_root_is_anybody_where_the_kernel_takes_up_connections_for_programs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Any account may listen by SMC; a connection by TCP is root's then. The kernel here need not have it."""
    protocols = tmp_path / "protocols"
    protocols.write_text("protocol  size sockets  memory press maxhdr\nSMC       1184      2      -1   NI       0\n")
    with (
        socket.create_server(("127.0.0.1", 0)) as ours,
        socket.create_connection(ours.getsockname()) as connected,
        ours.accept()[0],
    ):
        assert is_at_other_end(connected, MYSQL)
        monkeypatch.setattr(server_accounts, "PROTOCOLS", str(protocols))
        assert is_at_other_end(connected, MYSQL) is (os.getuid() != 0)


@contextmanager
def accepted_by_nobody(listening: socket.socket, beside: tuple[str, int] | None = None) -> Iterator[None]:
    """Inside the `with`, another account accepts the first connection, and sends one byte."""
    child = os.fork()
    if child == 0:
        os.setuid(65534)
        visitor = listening.accept()[0]
        listening.close()
        if beside:
            other = socket.socket()
            other.bind(("127.0.0.3", visitor.getpeername()[1]))
            other.connect(beside)
        visitor.sendall(b"!")
        if beside:
            visitor.shutdown(socket.SHUT_WR)
        visitor.recv(1)
        os._exit(0)
    try:
        yield
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_an_old_pymysql_is_refused_in_one_line_and_doctor_names_it(deployment: Deployment) -> None:
    (deployment.folder / "pymysql").mkdir()
    (deployment.folder / "pymysql" / "__init__.py").write_text("VERSION = (1, 1, 1, 'final')\n")
    deployment.write_env(TASKSERVER_DSN="mysql://u@127.0.0.1/shop")
    ended = deployment.worker()
    assert_one_line(ended, 1, "PyMySQL 1.2", "1.1.1", "pip install")
    ended = deployment.client("doctor")
    assert "PyMySQL 1.2 or newer is missing (this one is 1.1.1)" in ended.stdout
    assert ended.returncode == 2
