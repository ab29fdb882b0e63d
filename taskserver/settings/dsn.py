"""Parses TASKSERVER_DSN: which database, where, and as which user.

No error repeats any part of a DSN: in a mistyped one, each part may be a piece of the password.
"""

# Annotations are not deferred here: named tuples compile deferred ones, which slows down each empty run.

from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

from ..errors import SettingError
from ..messages.text import read_number
from ..model.checks import is_whole

FORMS = (
    "mysql://user:password@host:3306/database (of a cluster: host,other:3307), "
    "postgresql://user:password@host:5432/database, "
    "sqlite:///relative.db, sqlite:////absolute/path.db or sqlite:///:memory:"
)
MEMORY = ":memory:"
VERIFY_IDENTITY = "verify_identity"
VERIFYING = (VERIFY_IDENTITY, "verify-ca", "verify-full")
"""The TLS modes that verify the server."""
WITH_TLS = ("required", "require", *VERIFYING)
"""The TLS modes that never send anything without TLS."""
SYSTEM = "system"
"""As PostgreSQL's sslrootcert: the authorities that the system trusts."""


class Dsn(NamedTuple):
    """A database of a MySQL, MariaDB or PostgreSQL server, or an SQLite file, which uses only the first fields."""

    kind: str
    """`mysql`, `postgresql` or `sqlite`."""
    database: str
    """Its name; for SQLite the path, relative to the program's folder, or `:memory:`."""
    synchronous: str = "full"
    """For SQLite. `full`: a commit waits for the disk; `normal`: a power cut may lose the last commits."""
    user: str = ""
    password: str = ""
    """If empty, libpq uses its environment and ~/.pgpass; so for the user."""
    host: str = ""
    """A name or an address; for PostgreSQL also a socket's folder. Empty if only `unix_socket` was named."""
    port: int = 0
    unix_socket: str = ""
    tls_mode: str = ""
    """By the server's own names; empty: the default for this address."""
    tls_ca: str = ""
    """The file of the server's certificate authority, or SYSTEM."""
    more_hosts: tuple[tuple[str, int], ...] = ()
    """Hosts and ports of the same database, to use in this order while `host` is away."""

    def __repr__(self) -> str:
        return f"Dsn({self.kind} {self.place})"

    @property
    def place(self) -> str:
        """The address for messages, without user and password."""
        if self.kind == "sqlite":
            return self.database
        hosts = ",".join(f"{host}:{port}" for host, port in ((self.host, self.port), *self.more_hosts))
        return f"{self.unix_socket or hosts}/{self.database}"

    @property
    def by_host(self) -> list["Dsn"]:
        """The same database at each host alone, in order."""
        hosts = ((self.host, self.port), *self.more_hosts)
        return [self._replace(host=host, port=port, more_hosts=()) for host, port in hosts]

    @property
    def is_loopback(self) -> bool:
        """Whether each connection stays on this host."""
        if self.kind == "sqlite" or self.unix_socket:
            return True
        return all(_is_loopback(host) for host in (self.host, *(host for host, _ in self.more_hosts)))

    @property
    def is_verified(self) -> bool:
        """Whether the server's certificate is verified, or it is a file."""
        return self.kind == "sqlite" or self.tls_mode in VERIFYING or bool(self.tls_ca)

    def database_file(self, folder: Path) -> Path | None:
        """The file; None for a server and for `:memory:`."""
        return Path(folder, self.database) if self.kind == "sqlite" and self.database != MEMORY else None


def _is_loopback(host: str) -> bool:
    is_address = host == "::1" or (host.startswith("127.") and host.replace(".", "").isdigit())  # not 127.example.org
    return host == "localhost" or is_address


class _Kind(NamedTuple):
    """The DSNs of one kind of database."""

    name: str
    port: int
    options: dict[str, tuple[str, ...]]
    """The options after `?` and their values; (): any text. They begin with socket, TLS mode, certificate authority.

    The strictest TLS mode comes last.
    """


_SQLITE = _Kind("sqlite", 0, {"synchronous": ("full", "normal")})
_MYSQL = _Kind(
    "mysql",
    3306,
    {"unix_socket": (), "ssl-mode": ("disabled", "preferred", "required", VERIFY_IDENTITY), "ssl-ca": ()},
)
_POSTGRESQL = _Kind(
    "postgresql",
    5432,
    {
        "host": (),
        "sslmode": ("disable", "allow", "prefer", "require", "verify-ca", "verify-full"),
        "sslrootcert": (),
        "target_session_attrs": ("read-write",),  # which the store always wants of several hosts
    },
)
_BY_SCHEME = {"sqlite": _SQLITE, "mysql": _MYSQL, "mariadb": _MYSQL, "postgresql": _POSTGRESQL, "postgres": _POSTGRESQL}


def parse_dsn(text: str, password: str = "") -> Dsn:
    """Parse a DSN; `password`, not percent-encoded, wins over the password in the DSN.

    Raises SettingError, which says what is allowed and repeats nothing of the text.
    """
    if not isinstance(text, str):
        raise _wrong("it is no text")
    if not isinstance(password, str):
        raise SettingError("password is no text; allowed: a text, not percent-encoded")
    scheme, separator, rest = text.strip().partition("://")
    if not separator:
        raise _wrong("it has no '://'")
    kind = _BY_SCHEME.get(scheme.lower())
    if kind is None:
        raise _wrong("its scheme is not mysql, postgresql or sqlite")
    return _parse_file(rest) if kind is _SQLITE else _parse_server(kind, rest, password)


def _parse_file(rest: str) -> Dsn:
    if not rest.startswith("/"):
        raise _wrong("sqlite: is followed by three slashes and a relative path, or by four and an absolute one")
    written, _, query = rest[1:].partition("?")
    path = unquote(written)
    if not path or path.endswith("/") or "\0" in path:
        raise _wrong("it names no database file")
    if "mode=memory" in query:  # as in Django's tests
        raise _wrong("it is a database in memory, which no other connection has: in Django, set TEST NAME to a file")
    (synchronous,) = _options(_SQLITE, query, "; in the name of a file, a '?' is written %3F")
    return Dsn("sqlite", path, synchronous.lower() or "full")


def _parse_server(kind: _Kind, rest: str, password: str) -> Dsn:
    # Split at the last @ first: many passwords have an unencoded / ? # : or @.
    login, _, location = rest.rpartition("@")
    user, _, written_password = login.partition(":")
    location, _, query = location.partition("?")
    address, _, database = location.partition("/")
    (host, port), *more = (_parse_address(one, kind.port, has_login=bool(login)) for one in address.split(","))
    socket, mode, ca, *_ = _options(kind, query)
    if more and (socket or any(one != one.strip(" /@") or not one for one, _ in ((host, port), *more))):
        raise _wrong("of several hosts, each has a name, with commas and no spaces between, and none has a socket")
    if kind is _POSTGRESQL:
        host, socket = _host_and_socket(host, socket, port)
    _, modes, *_ = kind.options.values()
    mode = mode.lower() or (modes[-1] if ca else "")
    _check_tls(kind, mode, ca, socket)
    dsn = Dsn(
        kind=kind.name,
        database=_decoded(database),
        user=_decoded(user),
        password=password or _decoded(written_password),
        host=host,
        port=port,
        unix_socket=socket,
        tls_mode=mode,
        tls_ca=ca,
        more_hosts=tuple(more),
    )
    if not dsn.database or "/" in dsn.database:
        raise _wrong("it names no database")
    if not host and not socket:
        raise _wrong("it names no host, which is localhost as a rule")
    _check_characters(dsn)
    return dsn


def _parse_address(address: str, default_port: int, has_login: bool) -> tuple[str, int]:
    """Host and port of `host`, `host:port` or `[::1]:port`; `has_login`: whether an @ stood before it."""
    if address.startswith("["):
        host, bracket, port = address[1:].partition("]")
        if not bracket or (port and not port.startswith(":")):
            raise _wrong("its IPv6 address is not of the form [::1]")
        port = port[1:]
    else:
        host, _, port = address.partition(":")
    host = unquote(host)
    if host.lower() == "localhost":
        host = "localhost"
    if not port:
        return host, default_port
    if not is_whole(number := read_number(port), 1, 65535):
        at = "" if has_login else " (or is the @ missing that stands before the host?)"
        raise _wrong(f"its port is not a number from 1 to 65535{at}")
    return host, number


def _host_and_socket(before: str, behind: str, port: int) -> tuple[str, str]:
    """The host of a PostgreSQL server, from before or after the `?`, and its socket if the host is a folder."""
    if behind and before not in ("", "localhost", behind):
        raise _wrong("it names one host before its '?' and another one behind it")
    host = behind or before
    # In libpq an @ means a socket without a file, and so without an owner.
    if not host or host.startswith("@"):
        raise _wrong("it names no host: localhost as a rule, or the folder of a socket as ?host=/run/postgresql")
    if "," in host:
        raise _wrong("several hosts stand before its '?', as in host,other:5433/database")
    socket = f"{host.rstrip('/')}/.s.PGSQL.{port}" if host.startswith("/") else ""
    return "localhost" if host.lower() == "localhost" else host, socket


def _options(kind: _Kind, query: str, hint: str = "") -> list[str]:
    """The values of a kind's options, in order; empty if not given."""
    given = dict.fromkeys(kind.options, "")
    for part in filter(None, query.split("&")):
        name, _, value = part.partition("=")
        if name not in given:
            raise _wrong(f"after its '?' stands something other than {', '.join(given)}{hint}")
        if given[name]:
            raise _wrong(f"it gives {name} twice")
        # An empty value is usually an unset variable, and would mean weaker TLS than intended.
        if not value:
            raise _wrong(f"it gives {name} no value")
        given[name], allowed = unquote(value), kind.options[name]
        if allowed and given[name].lower() not in allowed:
            raise _wrong(f"its {name} is not one of {', '.join(allowed)}")
    return [*given.values()]


def _check_tls(kind: _Kind, mode: str, ca: str, socket: str) -> None:
    if ca and mode not in WITH_TLS:
        _, (mode_name, modes), (ca_name, _), *_ = kind.options.items()
        raise _wrong(f"its {ca_name} is only for the {mode_name}s {', '.join(one for one in modes if one in WITH_TLS)}")
    if kind is not _POSTGRESQL:
        return
    if ca == SYSTEM and mode != VERIFYING[-1]:
        raise _wrong(f"its sslrootcert {SYSTEM} is only for the sslmode {VERIFYING[-1]}")
    # libpq would search a relative path in the current folder, which differs under cron.
    if ca and ca != SYSTEM and not ca.startswith("/"):
        raise _wrong(f"its sslrootcert is neither an absolute path nor {SYSTEM}")
    if socket and mode in WITH_TLS:
        raise _wrong("its sslmode asks for TLS, which a socket does not have")


def _check_characters(dsn: Dsn) -> None:
    """Drivers would raise other errors; only MySQL's passwords may have any bytes."""
    text = "".join(map(str, dsn if dsn.kind == "postgresql" else dsn._replace(password="")))
    if "\0" in text or any("\ud800" <= character <= "\udfff" for character in text):
        raise _wrong("it, or its password, holds a zero byte (%00) or bytes that are not UTF-8")


def _decoded(text: str) -> str:
    return unquote(text, errors="surrogateescape")


def _wrong(why: str) -> SettingError:
    """The error for a DSN; `why` repeats nothing of it."""
    return SettingError(f"TASKSERVER_DSN is wrong: {why}; allowed: {FORMS}")
