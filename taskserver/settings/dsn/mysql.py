"""The DSN of a MySQL or MariaDB server, and where the sockets of such servers lie."""

# Annotations are not deferred here: named tuples compile deferred ones, which each empty run would pay for.

import os
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

from .parts import is_loopback_host, parse_address, split_login, split_options, wrong

VERIFY_IDENTITY = "verify_identity"
SSL_MODES = ("disabled", "preferred", "required", VERIFY_IDENTITY)
DEFAULT_PORT = 3306
OPTIONS = ("unix_socket", "ssl-mode", "ssl-ca")
OTHER_SPELLINGS = {"ssl_mode": "ssl-mode", "ssl_ca": "ssl-ca", "unix-socket": "unix_socket"}
SOCKETS = (
    "/run/mysqld/mysqld.sock",
    "/var/run/mysqld/mysqld.sock",
    "/var/lib/mysql/mysql.sock",
    "/tmp/mysql.sock",
)
"""Where MySQL servers put their sockets, the most usual place first."""


class MySQLDsn(NamedTuple):
    """A MySQL or MariaDB database. `host` is empty where `unix_socket` alone was named."""

    user: str
    password: str
    host: str
    port: int
    database: str
    unix_socket: str
    ssl_mode: str
    """One of SSL_MODES, or empty: the default for this address."""
    ssl_ca: str

    def __repr__(self) -> str:
        return f"MySQLDsn({self.place})"

    @property
    def place(self) -> str:
        """The address for messages, without user and password."""
        return f"{self.unix_socket or f'{self.host}:{self.port}'}/{self.database}"

    @property
    def is_loopback(self) -> bool:
        """Whether the connection stays on this host."""
        return bool(self.unix_socket) or is_loopback_host(self.host)

    @property
    def has_password(self) -> bool:
        """Whether it holds a secret."""
        return bool(self.password)

    @property
    def is_verified(self) -> bool:
        """Whether the server's certificate is verified."""
        return self.ssl_mode == VERIFY_IDENTITY or bool(self.ssl_ca)

    def database_file(self, folder: Path) -> None:
        """The server keeps its own files; a program touches none of them."""


def parse_mysql(rest: str, password: str) -> MySQLDsn:
    """The DSN whose `rest` follows `mysql://`; `password` wins over the one in it. Raises SettingError."""
    user, written_password, location = split_login(rest)
    location, _, query = location.partition("?")
    address, _, database = location.partition("/")
    host, port = parse_address(address, DEFAULT_PORT, has_login=bool(user or written_password))
    options = _parse_options(query)
    database = unquote(database)
    if not database or "/" in database:
        raise wrong("it names no database")
    if not host and not options["unix_socket"]:
        raise wrong("it names no host, which is localhost as a rule")
    return MySQLDsn(
        user=unquote(user),
        password=password or unquote(written_password, errors="surrogateescape"),
        host=host,
        port=port,
        database=database,
        unix_socket=options["unix_socket"],
        ssl_mode=options["ssl-mode"],
        ssl_ca=options["ssl-ca"],
    )


def _parse_options(query: str) -> dict[str, str]:
    options = split_options(query, OPTIONS, OTHER_SPELLINGS, blank="unix_socket")
    if options["ssl-ca"]:
        options["ssl-mode"] = options["ssl-mode"] or VERIFY_IDENTITY
    options["ssl-mode"] = options["ssl-mode"].lower()
    if options["ssl-mode"] and options["ssl-mode"] not in SSL_MODES:
        raise wrong(f"its ssl-mode is none of {', '.join(SSL_MODES)}")
    if options["ssl-ca"] and options["ssl-mode"] not in ("required", VERIFY_IDENTITY):
        raise wrong(f"its ssl-ca is for the ssl-modes required and {VERIFY_IDENTITY} alone")
    return options


def folder_of_sockets() -> str | None:
    """The first folder for a server's socket that this host has; None without one: no server was installed here."""
    folders = (os.path.dirname(path) for path in SOCKETS)
    return next((folder for folder in folders if folder != "/tmp" and os.path.isdir(folder)), None)


def usual_socket(host: str) -> str | None:
    """The socket that `localhost` means, as it does for PHP on the same host; None without one, and for other hosts.

    A socket that another account made is none: in /tmp anyone could, while the server is away.
    """
    if host != "localhost":
        return None
    from ...host import peer

    return next((path for path in SOCKETS if peer.is_of_server(path, peer.MYSQL)), None)
