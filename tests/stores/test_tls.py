"""TLS: used as the mode of a DSN says, verified where it says so, and never given up where it is required."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from taskserver import DatabaseError, TaskServer
from tests.conftest import without
from tests.stores.accounts import account, failure
from tests.support.certificates import Certificates
from tests.support.servers import MariaDB, find_program


@pytest.fixture(scope="module")
def tls_server(certificates: Certificates) -> Iterator[MariaDB]:
    options = (f"--ssl-cert={certificates.certificate}", f"--ssl-key={certificates.key}")
    if find_program("mariadbd") is None:
        without("MariaDB is not installed")
    with MariaDB(False, *options) as server:
        yield server


def cipher(dsn: str) -> str:
    """The cipher of a server's own connection; empty without TLS."""
    with TaskServer(dsn) as server:
        server.create_tables()
        server.add_task("tasks.a")
        return str(server.store.database.fetch("SHOW SESSION STATUS LIKE 'Ssl_cipher'")[0][1])


@pytest.mark.parametrize(
    ("options", "encrypted"),
    [
        ("", False),
        ("?ssl-mode=disabled", False),
        ("?ssl-mode=preferred", True),
        ("?ssl-mode=REQUIRED", True),
        ("?ssl-mode=required&ssl-ca={certificates.authority}", True),
        ("?ssl-mode=verify_identity&ssl-ca={certificates.authority}", True),
        ("?ssl-ca={certificates.authority}", True),
    ],
)
def test_tls_is_used_as_the_mode_says(
    tls_server: MariaDB, certificates: Certificates, options: str, encrypted: bool
) -> None:
    with tls_server.database() as name:
        assert bool(cipher(tls_server.dsn(name) + options.format(certificates=certificates))) == encrypted


@pytest.mark.parametrize(
    "options",
    [
        "?ssl-mode=verify_identity",
        "?ssl-mode=verify_identity&ssl-ca={certificates.stranger}",
        "?ssl-mode=required&ssl-ca={certificates.stranger}",
        "?ssl-mode=verify_identity&ssl-ca=/no/such/file.pem",
        "?ssl-mode=verify_identity&ssl-ca={certificates.key}",
        "?ssl-ca={certificates.stranger}",
    ],
)
def test_a_certificate_that_cannot_be_verified_is_a_database_error(
    tls_server: MariaDB, certificates: Certificates, options: str
) -> None:
    failure(tls_server.dsn("mysql") + options.format(certificates=certificates))


@pytest.mark.parametrize(("file", "words"), [("nothing.pem", "No such file"), ("empty.pem", "it holds none")])
def test_a_file_of_authorities_that_cannot_be_read_is_told_as_such(tmp_path: Path, file: str, words: str) -> None:
    (tmp_path / "empty.pem").touch()
    told = failure(f"mysql://u@127.0.0.1:1/shop?ssl-ca={tmp_path}/{file}")
    assert "ssl-ca" in told
    assert words in told


def test_the_identity_of_another_host_is_refused_and_required_alone_does_not_ask(
    tls_server: MariaDB, certificates: Certificates
) -> None:
    # 127.0.0.2 reaches the server, too, where it listens on all addresses; the certificate does not name it.
    with Relay(tls_server.port) as port:
        address = f"mysql://{tls_server.login}@127.0.0.2:{port}/mysql"
        failure(f"{address}?ssl-mode=verify_identity&ssl-ca={certificates.authority}")
        with pytest.raises(DatabaseError, match=r"client\.py init"):
            TaskServer(f"{address}?ssl-mode=required&ssl-ca={certificates.authority}").add_task("tasks.a")


class Relay:
    """Passes bytes on from 127.0.0.2 to a port of 127.0.0.1."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._listening = socket.create_server(("127.0.0.2", 0))

    def __enter__(self) -> int:
        threading.Thread(target=self._serve, daemon=True).start()
        return int(self._listening.getsockname()[1])

    def __exit__(self, *exception: object) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                visitor = self._listening.accept()[0]
                server = socket.create_connection(("127.0.0.1", self._port))
                for one, other in ((visitor, server), (server, visitor)):
                    threading.Thread(target=self._pass_on, args=(one, other), daemon=True).start()

    def _pass_on(self, one: socket.socket, other: socket.socket) -> None:
        with suppress(OSError):
            while received := one.recv(65536):
                other.sendall(received)
        with suppress(OSError):
            other.shutdown(socket.SHUT_RDWR)


def test_required_tls_is_never_given_up_where_the_server_offers_none(mariadb: MariaDB) -> None:
    with mariadb.database() as name:
        for mode in ("required", "verify_identity"):
            assert "SSL" in failure(mariadb.dsn(name) + f"?ssl-mode={mode}")
        assert cipher(mariadb.dsn(name) + "?ssl-mode=preferred") == ""


def test_an_account_that_requires_tls_connects_on_loopback_by_itself(tls_server: MariaDB) -> None:
    with tls_server.database() as name, account(tls_server, name, f"ALL ON `{name}`.*", "REQUIRE SSL") as dsn:
        assert cipher(dsn)
        assert "1045" in failure(f"{dsn}?ssl-mode=disabled")
        assert "1045" in failure(dsn.replace("x@", "@"))
