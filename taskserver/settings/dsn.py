"""TASKSERVER_DSN, taken apart: which database, where, and as whom.

Read by the settings, used by the stores. No error repeats any part of a DSN: in a mistyped one each part may be a
piece of the password. Every kind of DSN answers to `place`, `is_loopback`, `is_verified`, `has_password`
and `database_file`.
"""

# Annotations are not deferred here: named tuples compile deferred ones, which each empty run would pay for.

import os
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

from ..errors import SettingError

FORMS = (
    "mysql://user:password@host:3306/database, sqlite:///relative.db, sqlite:////absolute/path.db or sqlite:///:memory:"
)
VERIFY_IDENTITY = "verify_identity"
SSL_MODES = ("disabled", "preferred", "required", VERIFY_IDENTITY)
DEFAULT_PORT = 3306
MEMORY = ":memory:"
SYNCHRONOUS = ("full", "normal")
"""What SQLite waits for at a commit: its disk, or nothing, so that a power cut may cost the last commits."""
QUOTES = tuple("\"'`“”„‘’‚«»")
"""Quotes that editors write; an `.env` knows only the first two."""
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
        if self.unix_socket or self.host in ("localhost", "::1"):
            return True
        # 127.example.org is somebody else's.
        return self.host.startswith("127.") and self.host.replace(".", "").isdigit()

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


class SQLiteDsn(NamedTuple):
    """An SQLite file, or `:memory:`. A relative path starts in the program's folder."""

    path: str
    synchronous: str = SYNCHRONOUS[0]
    """One of SYNCHRONOUS."""

    @property
    def place(self) -> str:
        """The path for messages, as it was written."""
        return self.path

    @property
    def is_loopback(self) -> bool:
        """Whether the connection stays on this host, as a file's does."""
        return True

    @property
    def is_verified(self) -> bool:
        """Whether it is sure who answers, as with a file."""
        return True

    @property
    def has_password(self) -> bool:
        """Whether it holds a secret; a file has none."""
        return False

    def database_file(self, folder: Path) -> Path | None:
        """The file, which programs of this host open themselves; None for `:memory:`. Relative to `folder`."""
        return None if self.path == MEMORY else Path(folder, self.path)


Dsn = MySQLDsn | SQLiteDsn


def parse_dsn(text: str, password: str = "") -> Dsn:
    """Take a DSN apart; `password`, not percent-encoded, wins over the password in the DSN.

    Raises SettingError, which says what is allowed and repeats nothing of the text.
    """
    if not isinstance(text, str):
        raise _wrong("it is no text")
    if not isinstance(password, str):
        raise SettingError("password is no text; allowed: a text, not percent-encoded")
    scheme, separator, rest = text.strip().partition("://")
    if not separator:
        raise _wrong(f"it has no '://'{_hint_at_form(scheme)}")
    match scheme.lower():
        case "sqlite":
            return _parse_sqlite(rest)
        case "mysql" | "mariadb":
            return _parse_mysql(rest, password)
        case _:
            raise _wrong(f"its scheme is none of mysql, sqlite{_hint_at_scheme(scheme)}")


def _hint_at_form(text: str) -> str:
    """The form that a text without `://` seems to be in; repeats nothing of the text."""
    name, colon, rest = text.lower().partition(":")
    if colon and name in ("mysql", "mariadb"):
        is_pdo = rest.startswith(("host=", "dbname=", "port=", "unix_socket="))
        return ", but the form that PHP's PDO takes" if is_pdo else ": two slashes follow 'mysql:'"
    return ": it begins with mysql:// or sqlite:///"


def _hint_at_scheme(scheme: str) -> str:
    if scheme.strip()[:1] in QUOTES:
        return ": a quote stands before it, of a kind that is none here or inside another; take both away"
    if "=" in scheme:
        return ": the key stands in its value once more"
    return ": write mysql" if "mysql" in scheme.lower() else ""


def _parse_sqlite(rest: str) -> SQLiteDsn:
    if not rest.startswith("/"):
        raise _wrong("sqlite: is followed by three slashes and a relative path, or by four and an absolute one")
    written, _, query = rest[1:].partition("?")
    path = unquote(written)
    if not path or path.endswith("/") or "\0" in path:
        raise _wrong("it names no database file")
    if "mode=memory" in query:  # as Django names the database of its tests
        raise _wrong("it is a database in memory, which no other connection has: in Django, set TEST NAME to a file")
    options = _split_options(query, {"synchronous": ""}, "; in the name of a file, a '?' is written %3F")
    synchronous = options["synchronous"].lower() or SYNCHRONOUS[0]
    if synchronous not in SYNCHRONOUS:
        raise _wrong(f"its synchronous is none of {', '.join(SYNCHRONOUS)}")
    return SQLiteDsn(path, synchronous)


def _parse_mysql(rest: str, password: str) -> MySQLDsn:
    # Split at the last @ before anything else: passwords hold / ? # : and @ unencoded often enough.
    credentials, _, location = rest.rpartition("@")
    user, _, written_password = credentials.partition(":")
    location, _, query = location.partition("?")
    address, _, database = location.partition("/")
    host, port = _parse_address(address, has_user=bool(credentials))
    if host.lower() == "localhost":
        host = "localhost"
    options = _parse_options(query)
    database = unquote(database)
    if not database or "/" in database:
        raise _wrong("it names no database")
    if not host and not options["unix_socket"]:
        raise _wrong("it names no host, which is localhost as a rule")
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


def _parse_address(address: str, has_user: bool) -> tuple[str, int]:
    if address.startswith("["):
        host, bracket, port = address[1:].partition("]")
        if not bracket or (port and not port.startswith(":")):
            raise _wrong("its IPv6 address is not of the form [::1]")
        port = port[1:]
    else:
        host, _, port = address.partition(":")
    if not port:
        return unquote(host), DEFAULT_PORT
    if not (port.isascii() and port.isdigit() and len(port) <= 5 and 0 < int(port) < 65536):
        at = "" if has_user else " (or is the @ missing that stands before the host?)"
        raise _wrong(f"its port is not a number from 1 to 65535{at}")
    return unquote(host), int(port)


def _parse_options(query: str) -> dict[str, str]:
    options = _split_options(query, dict.fromkeys(("unix_socket", "ssl-mode", "ssl-ca"), ""))
    if options["ssl-ca"]:
        options["ssl-mode"] = options["ssl-mode"] or VERIFY_IDENTITY
    options["ssl-mode"] = options["ssl-mode"].lower()
    if options["ssl-mode"] and options["ssl-mode"] not in SSL_MODES:
        raise _wrong(f"its ssl-mode is none of {', '.join(SSL_MODES)}")
    if options["ssl-ca"] and options["ssl-mode"] not in ("required", VERIFY_IDENTITY):
        raise _wrong(f"its ssl-ca is for the ssl-modes required and {VERIFY_IDENTITY} alone")
    return options


def _split_options(query: str, options: dict[str, str], hint: str = "") -> dict[str, str]:
    """The options with the values that a query gives them."""
    given: set[str] = set()
    for part in filter(None, query.split("&")):
        key, _, value = part.partition("=")
        key = {"ssl_mode": "ssl-mode", "ssl_ca": "ssl-ca", "unix-socket": "unix_socket"}.get(key, key)
        if key not in options:
            raise _wrong(f"after its '?' stands something other than {', '.join(options)}{hint}")
        if key in given:
            raise _wrong(f"it gives {key} twice")
        # An empty value comes of a variable that is not set, and would mean weaker TLS than its writer meant.
        if not value and key != "unix_socket":
            raise _wrong(f"it gives {key} no value")
        given.add(key)
        options[key] = unquote(value)
    return options


def _wrong(why: str) -> SettingError:
    return SettingError(f"TASKSERVER_DSN is wrong: {why}; allowed: {FORMS}")


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
    from ..host.server_accounts import is_of_server

    return next(filter(is_of_server, SOCKETS), None)
