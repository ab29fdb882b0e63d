"""The password on its way to the server: in clear it goes to nobody but the server itself."""

from __future__ import annotations

import os
import socket
import ssl
import struct
import threading
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

import pytest

from taskserver.host import server_accounts
from taskserver.settings import dsn as dsn_module
from taskserver.settings.dsn import usual_socket
from tests.stores.accounts import SECRET, failure
from tests.support.certificates import Certificates
from tests.support.deployment import Deployment
from tests.support.processes import assert_one_line

SALT = b"12345678abcdefghijkl"
CLEAR = SECRET.encode() + b"\0"
TLS_FLAG = 0x800
CAPABILITIES = 0x00BFF7DF  # all that a client may ask for but TLS and compression
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


class FakeServer:
    """Speaks a login as MySQL does, asks for the password in some way, and keeps all that it receives."""

    def __init__(self, listening: socket.socket, talk: str, context: ssl.SSLContext | None = None) -> None:
        self._plugin, self._answers = TALKS[talk]
        self._context = context
        self._listening = listening
        self.received: list[bytes] = []
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> FakeServer:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join(10)

    def has_the_password(self) -> bool:
        return any(SECRET.encode() in packet for packet in self.received)

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                visitor = self._listening.accept()[0]
                visitor.settimeout(10)
                with suppress(OSError, struct.error):
                    self._talk(visitor)
                visitor.close()

    def _talk(self, visitor: socket.socket) -> None:
        flags = CAPABILITIES | (TLS_FLAG if self._context else 0)
        greeting = b"\x0a8.0.36\0" + struct.pack("<I", 7) + SALT[:8] + b"\0" + struct.pack("<H", flags & 0xFFFF)
        greeting += b"\x2d\x02\0" + struct.pack("<H", flags >> 16) + b"\x15" + bytes(10) + SALT[8:] + b"\0"
        _send(visitor, 0, greeting + self._plugin.encode() + b"\0")
        number, packet = _receive(visitor)
        if self._context and len(packet) == 32:
            visitor = self._context.wrap_socket(visitor, server_side=True)
            number, packet = _receive(visitor)
        for answer in [*self._answers, b"\xff\x15\x04#28000no"]:
            self.received.append(packet)
            _send(visitor, number + 1, answer)
            number, packet = _receive(visitor)


def _send(peer: socket.socket, number: int, packet: bytes) -> None:
    peer.sendall(struct.pack("<I", len(packet))[:3] + bytes([number]) + packet)


def _receive(peer: socket.socket) -> tuple[int, bytes]:
    head = _exactly(peer, 4)
    return head[3], _exactly(peer, int.from_bytes(head[:3], "little"))


def _exactly(peer: socket.socket, size: int) -> bytes:
    received = b""
    while len(received) < size:
        more = peer.recv(size - len(received))
        if not more:
            raise OSError("the client hung up")
        received += more
    return received


@pytest.fixture
def of_a_neighbour(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the sockets that a test makes were another account's."""
    monkeypatch.setattr(server_accounts, "accounts", lambda: frozenset({12_345_678}))


def server_tls(certificates: Certificates) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.certificate, certificates.key)
    return context


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
    with FakeServer(listening, talk, server_tls(certificates) if has_tls else None) as server:
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
    with FakeServer(listening, "caching_sha2", server_tls(certificates)) as server:
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
    with FakeServer(listening, talk) as server:
        failure(address(listening))
    assert CLEAR in server.received


def listening_at(path: Path) -> socket.socket:
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(path))
    listening.listen()
    return listening


@pytest.mark.parametrize(("rights", "is_trusted"), [(0o755, True), (0o1777, False)])
def test_a_socket_in_a_folder_of_everybodys_is_not_the_servers(
    of_a_neighbour: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, rights: int, is_trusted: bool
) -> None:
    """Whoever owns a folder in which nobody else may make files is the server's account."""
    tmp_path.chmod(rights)
    path = tmp_path / "mysql.sock"
    with FakeServer(listening_at(path), "caching_sha2") as server:
        told = failure(f"mysql://u:{quote(SECRET, safe='')}@/shop?unix_socket={path}")
        monkeypatch.setattr(dsn_module, "SOCKETS", (str(path),))
        assert usual_socket("localhost") == (str(path) if is_trusted else None)
    assert server.has_the_password() is is_trusted
    assert ("unix_socket" in told) is not is_trusted
    if os.getuid() == 0:
        monkeypatch.undo()
        assert server_accounts.is_of_server(str(path))  # root's


def test_an_old_pymysql_is_refused_in_one_line_and_doctor_names_it(deployment: Deployment) -> None:
    (deployment.folder / "pymysql").mkdir()
    (deployment.folder / "pymysql" / "__init__.py").write_text("VERSION = (1, 1, 1, 'final')\n")
    deployment.write_env(TASKSERVER_DSN="mysql://u@127.0.0.1/shop")
    ended = deployment.worker()
    assert_one_line(ended, 1, "PyMySQL 1.2", "1.1.1", "pip install")
    ended = deployment.client("doctor")
    assert "PyMySQL 1.2 or newer is missing (this one is 1.1.1)" in ended.stdout
    assert ended.returncode == 2
