"""Logins on MySQL: the password in clear goes only to the server, and TLS is used and verified as the DSN says."""

from __future__ import annotations

import socket
import ssl
import sys
from pathlib import Path

import pytest

from taskserver import DatabaseError, TaskServer
from taskserver.host import peer
from taskserver.host.peer import MYSQL_ACCOUNTS, is_at_other_end
from taskserver.settings.dsn import Dsn
from taskserver.stores.mysql import errors as mysql_errors
from tests.contract.accounts import QUOTED_SECRET, SECRET, account, failure
from tests.contract.conftest import ON_ODD_MARIADB
from tests.support.fake_server import SALT, FakeServer, Peer
from tests.support.servers import Certificates, MariaDB

KEY = b"-----BEGIN PUBLIC KEY-----\nan attacker's own\n"

Talk = list[bytes]
"""The answers of a server to a login, one after each packet of the client."""
TALKS: dict[str, tuple[str, Talk]] = {
    "clear": ("mysql_native_password", [b"\xfemysql_clear_password\0"]),
    "dialog": ("mysql_native_password", [b"\xfedialog\0\x04Password: "]),
    "sha256": ("mysql_native_password", [b"\xfesha256_password\0" + SALT + b"\0", b"\x01" + KEY]),
    "caching_sha2": ("caching_sha2_password", [b"\x01\x04", b"\x01" + KEY]),
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
    monkeypatch.setattr(peer, "is_account_of_server", lambda uid, names: False)


def address(listening: socket.socket, host: str = "127.0.0.1") -> str:
    return f"mysql://u:{QUOTED_SECRET}@{host}:{listening.getsockname()[1]}/shop"


@pytest.mark.parametrize("has_tls", [False, True])
@pytest.mark.parametrize("talk", TALKS)
def test_a_stranger_who_listens_in_the_servers_place_never_gets_the_password(
    of_a_neighbour: None, certificates: Certificates, monkeypatch: pytest.MonkeyPatch, talk: str, has_tls: bool
) -> None:
    monkeypatch.setattr("pymysql._auth._have_cryptography", True)  # as with PyMySQL[rsa]
    listening = socket.create_server(("127.0.0.1", 0))
    with AskingServer(listening, talk, certificates.server_context() if has_tls else None) as server:
        error = failure(address(listening))
        assert "ssl-ca" in error
        assert "name localhost" in error
    assert server.received
    assert not server.has_the_password()


def test_a_server_that_cannot_be_verified_on_another_host_never_gets_the_password(
    certificates: Certificates,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Dsn, "is_loopback", False)
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


def test_a_server_of_our_own_account_on_this_host_gets_the_password() -> None:
    listening = socket.create_server(("127.0.0.1", 0))
    with AskingServer(listening, "clear") as server:
        failure(address(listening))
    assert SECRET.encode() + b"\0" in server.received


def test_a_socket_of_another_account_does_not_get_the_password_and_is_no_usual_one(
    of_a_neighbour: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "mysql.sock"
    dsn = f"mysql://u:{QUOTED_SECRET}@/shop?unix_socket={path}"
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(path))
    listening.listen()
    with AskingServer(listening, "caching_sha2") as server:
        assert "unix_socket" in failure(dsn)
        assert server.received
        assert not server.has_the_password()
        for rights, is_usual in ((0o1777, False), (0o755, True)):  # as /tmp and /run are
            tmp_path.chmod(rights)
            monkeypatch.setattr(mysql_errors, "SOCKETS", (str(path),))
            assert mysql_errors.usual_socket("localhost") == (str(path) if is_usual else None)
        monkeypatch.undo()
        failure(dsn)
        assert server.has_the_password()


def test_nobody_is_the_server_while_the_system_does_not_say_who_has_the_other_end(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ours = socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    address = ("127.0.0.1", ours.getsockname()[1])
    with ours, socket.create_connection(address) as connected:
        assert not is_at_other_end(connected, MYSQL_ACCOUNTS)  # nobody has accepted it yet
        accepted = ours.accept()[0]
        assert is_at_other_end(connected, MYSQL_ACCOUNTS)
        monkeypatch.setattr(peer, "SOCKET_TABLES", (str(tmp_path / "tcp"),))
        assert not is_at_other_end(connected, MYSQL_ACCOUNTS)
        accepted.close()


def test_an_old_pymysql_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("taskserver.stores.mysql", "taskserver.stores.mysql.dialect"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr("pymysql.VERSION", (1, 1, 1, "final"))
    with pytest.raises(DatabaseError, match=r"PyMySQL 1\.2 or newer is missing \(this one is 1\.1\.1\): "):
        TaskServer("mysql://u@127.0.0.1/shop").add_task("tasks.a")


# ---- TLS


def cipher(dsn: str) -> str:
    """The cipher of a server's own connection; empty without TLS."""
    with TaskServer(dsn) as server:
        server.create_tables()
        server.add_task("tasks.a")
        return str(server.store.database.fetch("SHOW SESSION STATUS LIKE 'Ssl_cipher'")[0][1])


MODES = {
    "": "",
    "?ssl-mode=preferred": "TLS",
    "?ssl-mode=REQUIRED": "TLS",
    "?ssl-ca={certificates.authority}": "TLS",
    "?ssl-mode=verify_identity": None,
    "?ssl-mode=required&ssl-ca={certificates.stranger}": None,
    "?ssl-ca={certificates.stranger}": None,
}
"""None: the login fails, as the certificate cannot be verified."""


@ON_ODD_MARIADB
def test_tls_is_used_and_verified_as_the_mode_says(odd_mariadb: MariaDB, certificates: Certificates) -> None:
    with odd_mariadb.database() as name:
        for options, expected in MODES.items():
            dsn = odd_mariadb.dsn(name) + options.format(certificates=certificates)
            if expected is None:
                failure(dsn)
            else:
                assert cipher(dsn)[:3] == expected, options


def test_a_file_of_authorities_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "empty.pem").touch()
    for file, words in (("nothing.pem", "No such file"), ("empty.pem", "it holds none")):
        said = failure(f"mysql://u@127.0.0.1:1/shop?ssl-ca={tmp_path}/{file}")
        assert "ssl-ca" in said
        assert words in said


@ON_ODD_MARIADB
def test_the_identity_of_another_host_is_refused_and_not_asked_for_by_required(
    odd_mariadb: MariaDB, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    look_up = socket.getaddrinfo
    monkeypatch.setattr("socket.getaddrinfo", lambda host, *args: look_up("127.0.0.1", *args))
    address = f"mysql://{odd_mariadb.login}@db.example.test:{odd_mariadb.port}/mysql"
    assert "db.example.test" in failure(f"{address}?ssl-mode=verify_identity&ssl-ca={certificates.authority}")
    with pytest.raises(DatabaseError, match=r"client\.py init"):
        TaskServer(f"{address}?ssl-mode=required&ssl-ca={certificates.authority}").add_task("tasks.a")


def test_required_tls_is_never_given_up_where_the_server_offers_none(mariadb: MariaDB) -> None:
    with mariadb.database() as name:
        assert "SSL" in failure(mariadb.dsn(name) + "?ssl-mode=required")
        assert cipher(mariadb.dsn(name) + "?ssl-mode=preferred") == ""


@ON_ODD_MARIADB
def test_an_account_that_requires_tls_connects_on_loopback_by_itself(odd_mariadb: MariaDB) -> None:
    with odd_mariadb.database() as name, account(odd_mariadb, name, f"ALL ON `{name}`.*", "REQUIRE SSL") as dsn:
        assert cipher(dsn)
        assert "1045" in failure(f"{dsn}?ssl-mode=disabled")
        assert "1045" in failure(dsn.replace("x@", "@"))
