"""The DSN of a PostgreSQL server, as libpq writes it; imported where one is set."""

# Annotations are not deferred here: named tuples compile deferred ones, which each empty run would pay for.

from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

from ...errors import SettingError
from .parts import is_loopback_host, parse_address, split_login, split_options, wrong

VERIFY_FULL = "verify-full"
SSL_MODES = ("disable", "allow", "prefer", "require", "verify-ca", VERIFY_FULL)
VERIFYING = ("verify-ca", VERIFY_FULL)
WITH_TLS = ("require", *VERIFYING)
"""The modes in which nothing goes without TLS."""
SYSTEM = "system"
"""In place of a file: the authorities that the system trusts."""
DEFAULT_PORT = 5432
OPTIONS = ("host", "sslmode", "sslrootcert")
NOT_TAKEN = (
    *("hostaddr", "connect_timeout", "application_name", "options", "channel_binding", "target_session_attrs"),
    *("sslcert", "sslkey", "sslnegotiation", "gssencmode", "passfile", "service", "client_encoding", "schema"),
    *("ssl", "pgbouncer", "currentSchema", "ssl-mode", "ssl-ca"),
)
"""Other options of libpq, of others' programs, and of MySQL's DSN."""


class PostgreSQLDsn(NamedTuple):
    """A PostgreSQL database. libpq looks for what is empty here, but for the host, in its own environment."""

    user: str
    """Empty: PGUSER, or the account of this process."""
    password: str
    """Empty: PGPASSWORD, or ~/.pgpass, or none, as where the server asks the system who is there (`peer`)."""
    host: str
    """A name, an address, or the folder of a socket, which begins with a slash."""
    port: int
    database: str
    sslmode: str = ""
    """One of SSL_MODES, or empty: the default for this address."""
    sslrootcert: str = ""
    """The absolute path of the server's authority, SYSTEM, or empty."""

    def __repr__(self) -> str:
        return f"PostgreSQLDsn({self.place})"

    @property
    def place(self) -> str:
        """The address for messages, without user and password."""
        return f"{self.host}:{self.port}/{self.database}"

    @property
    def unix_socket(self) -> str:
        """The path of the socket; empty where the host is none."""
        return f"{self.host.rstrip('/')}/.s.PGSQL.{self.port}" if self.host.startswith("/") else ""

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
        return self.sslmode in VERIFYING or bool(self.sslrootcert)

    def database_file(self, folder: Path) -> None:
        """The server keeps its own files; a program touches none of them."""


def parse_postgresql(rest: str, password: str) -> PostgreSQLDsn:
    """The DSN whose `rest` follows `postgresql://`; `password` wins over the one in it. Raises SettingError."""
    user, written_password, location = split_login(rest)
    location, _, query = location.partition("?")
    address, _, database = location.partition("/")
    if "," in address:
        raise _more_than_one_host()
    host, port = parse_address(address, DEFAULT_PORT, has_login=bool(user or written_password))
    options = split_options(query, OPTIONS, {}, not_taken=NOT_TAKEN)
    sslmode, sslrootcert = _parse_tls(options["sslmode"], options["sslrootcert"])
    dsn = PostgreSQLDsn(
        user=_unquoted(user),
        password=password or _unquoted(written_password),
        host=_host(host, options["host"]),
        port=port,
        database=_unquoted(database),
        sslmode=sslmode,
        sslrootcert=sslrootcert,
    )
    _check(dsn)
    return dsn


def _unquoted(text: str) -> str:
    # Whether bytes that are no UTF-8 stood there is found out from all parts at once.
    return unquote(text, errors="surrogateescape")


def _host(before: str, behind: str) -> str:
    """The host of an address, or of the option, which wins over `localhost` alone."""
    if before not in ("", "localhost", behind) and behind:
        raise wrong("it names one host before its '?' and another one behind it")
    host = behind or before
    if "," in host:
        raise _more_than_one_host()
    # An @ is how libpq marks a socket that lies in no folder, and so is nobody's.
    if not host or host.startswith("@"):
        raise wrong("it names no host: localhost as a rule, or the folder of a socket as ?host=/run/postgresql")
    return "localhost" if host.lower() == "localhost" else host


def _more_than_one_host() -> SettingError:
    return wrong("it names more than one host, and one alone can have the queue")


def _parse_tls(sslmode: str, sslrootcert: str) -> tuple[str, str]:
    if sslrootcert:
        sslmode = sslmode or VERIFY_FULL
    sslmode = sslmode.lower()
    if sslmode and sslmode not in SSL_MODES:
        raise wrong(f"its sslmode is none of {', '.join(SSL_MODES)}")
    if sslrootcert and sslmode not in WITH_TLS:
        raise wrong(f"its sslrootcert is for the sslmodes {', '.join(WITH_TLS)} alone")
    if sslrootcert == SYSTEM and sslmode != VERIFY_FULL:
        raise wrong(f"its sslrootcert {SYSTEM} is for the sslmode {VERIFY_FULL} alone")
    # libpq would look for a relative one in the current folder, which for cron is another.
    if sslrootcert and sslrootcert != SYSTEM and not sslrootcert.startswith("/"):
        raise wrong(f"its sslrootcert is neither an absolute path nor {SYSTEM}")
    return sslmode, sslrootcert


def _check(dsn: PostgreSQLDsn) -> None:
    if not dsn.database or "/" in dsn.database:
        raise wrong("it names no database")
    if dsn.unix_socket and dsn.sslmode in WITH_TLS:
        raise wrong("its sslmode asks for TLS, which a socket does not have")
    for text in filter(lambda part: isinstance(part, str), dsn):
        if "\0" in str(text):
            raise wrong("it holds a zero byte (%00)")
        if not _is_utf_8(str(text)):
            raise wrong("it, or its password, holds bytes that are no UTF-8")


def _is_utf_8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
