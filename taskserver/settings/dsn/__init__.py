"""TASKSERVER_DSN, taken apart: which database, where, and as whom.

Read by the settings, used by the stores. No error repeats any part of a DSN: in a mistyped one each part may be a
piece of the password. Every kind of DSN answers to `place`, `is_loopback`, `is_verified`, `has_password`
and `database_file`.
"""

from __future__ import annotations

from ...errors import SettingError
from .mysql import MySQLDsn, parse_mysql
from .parts import wrong
from .sqlite import SQLiteDsn, parse_sqlite

__all__ = ["Dsn", "MySQLDsn", "SQLiteDsn", "parse_dsn"]

QUOTES = tuple("\"'`“”„‘’‚«»")
"""Quotes that editors write; an `.env` knows only the first two."""

Dsn = MySQLDsn | SQLiteDsn


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
        case _:
            raise wrong(f"its scheme is none of mysql, sqlite{_hint_at_scheme(scheme)}")


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
