"""TASKSERVER_DSN, taken apart: which database, where, and as whom.

Read by the settings, used by the stores. No error repeats any part of a DSN: in a mistyped one each part may be a
piece of the password. Every kind of DSN answers to `place`, `is_loopback`, `is_verified`, `has_password`
and `database_file`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...errors import SettingError
from .mysql import MySQLDsn, parse_mysql
from .parts import wrong
from .sqlite import SQLiteDsn, parse_sqlite

if TYPE_CHECKING:
    from .postgresql import PostgreSQLDsn

__all__ = ["Dsn", "MySQLDsn", "PostgreSQLDsn", "SQLiteDsn", "parse_dsn"]

QUOTES = tuple("\"'`“”„‘’‚«»")
"""Quotes that editors write; an `.env` knows only the first two."""

if TYPE_CHECKING:
    Dsn = MySQLDsn | SQLiteDsn | PostgreSQLDsn
else:
    Dsn = MySQLDsn | SQLiteDsn  # nobody else pays for the third


def parse_dsn(text: str, password: str = "") -> Dsn:
    """Take a DSN apart; `password`, not percent-encoded, wins over the password in the DSN.

    Raises SettingError, which says what is allowed and repeats nothing of the text.
    """
    if not isinstance(text, str):
        raise wrong("it is no text")
    if not isinstance(password, str):
        raise SettingError("password is no text; allowed: a text, not percent-encoded")
    scheme, separator, rest = text.strip().partition("://")
    if not separator:
        raise wrong(f"it has no '://'{_hint_at_form(scheme)}")
    match scheme.lower():
        case "sqlite":
            return parse_sqlite(rest)
        case "mysql" | "mariadb":
            return parse_mysql(rest, password)
        case "postgresql" | "postgres":
            from .postgresql import parse_postgresql

            return parse_postgresql(rest, password)
        case _:
            raise wrong(f"its scheme is none of mysql, postgresql, sqlite{_hint_at_scheme(scheme)}")


def __getattr__(name: str) -> object:
    """PostgreSQLDsn, imported when it is first named."""
    if name != "PostgreSQLDsn":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .postgresql import PostgreSQLDsn

    return PostgreSQLDsn


MYSQL = ("mysql", "mariadb")
POSTGRESQL = ("postgresql", "postgres", "pgsql", "psql")
"""The third is PHP's name of it, the fourth that of its client."""
PDO_KEYS = ("host=", "dbname=", "port=", "unix_socket=", "user=", "password=", "sslmode=")
LIBPQ_KEYS = ("host", "hostaddr", "port", "dbname", "user", "password", "passfile", "service", "sslmode")


def _hint_at_form(text: str) -> str:
    """The form that a text without `://` seems to be in; repeats nothing of the text."""
    name, colon, rest = text.lower().partition(":")
    if colon and name in (*MYSQL, *POSTGRESQL):
        is_pdo = rest.lstrip().startswith(PDO_KEYS)
        meant = "mysql:" if name in MYSQL else "postgresql:"
        return ", but the form that PHP's PDO takes" if is_pdo else f": two slashes follow '{meant}'"
    if _is_of_libpq(text):
        return ", but key=value as psql takes it: write postgresql://"
    return ": it begins with mysql://, postgresql:// or sqlite:///"


def _hint_at_scheme(scheme: str) -> str:
    if scheme.strip()[:1] in QUOTES:
        return ": a quote stands before it, of a kind that is none here or inside another; take both away"
    if _is_of_libpq(scheme):  # and has a password with ://
        return ", but it is key=value as psql takes it: write postgresql://"
    if "=" in scheme:
        return ": the key stands in its value once more"
    scheme = scheme.lower()
    if scheme.startswith("jdbc:"):
        return ": leave out jdbc:, and write user:password@ before the host"
    if any(name in scheme for name in POSTGRESQL):  # as of SQLAlchemy, postgresql+psycopg
        return ": write postgresql"
    return ": write mysql" if any(name in scheme for name in MYSQL) else ""


def _is_of_libpq(text: str) -> bool:
    """Whether it is of the kind `host=localhost dbname=shop`."""
    key, separator, _ = text.lower().partition("=")
    return bool(separator) and key.strip() in LIBPQ_KEYS
