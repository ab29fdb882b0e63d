"""What several databases write alike in a DSN: login, address, options behind a `?`; and the error of a wrong DSN."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from urllib.parse import unquote

from ...errors import SettingError

LOGIN_KEYS = ("user", "username", "password", "dbname", "database", "port")
"""Options by which other programs take what stands before the '?' here."""
FORMS = (
    "mysql://user:password@host:3306/database, postgresql://user:password@host:5432/database, "
    "sqlite:///relative.db, sqlite:////absolute/path.db or sqlite:///:memory:"
)


def wrong(why: str) -> SettingError:
    """The error of a DSN; `why` repeats nothing of it."""
    return SettingError(f"TASKSERVER_DSN is wrong: {why}; allowed: {FORMS}")


def split_login(rest: str) -> tuple[str, str, str]:
    """User and password, still encoded, and the rest behind the @ of what follows `://`."""
    # Split at the last @ before anything else: passwords hold / ? # : and @ unencoded often enough.
    login, _, location = rest.rpartition("@")
    user, _, password = login.partition(":")
    return user, password, location


def parse_address(address: str, default_port: int, has_login: bool) -> tuple[str, int]:
    """Host and port of `host`, `host:port` or `[::1]:port`; `has_login`: whether an @ stood before it."""
    if address.startswith("["):
        host, bracket, port = address[1:].partition("]")
        if not bracket or (port and not port.startswith(":")):
            raise wrong("its IPv6 address is not of the form [::1]")
        port = port[1:]
    else:
        host, _, port = address.partition(":")
    host = unquote(host)
    if host.lower() == "localhost":
        host = "localhost"
    if not port:
        return host, default_port
    if not (port.isascii() and port.isdigit() and len(port) <= 5 and 0 < int(port) < 65536):
        at = "" if has_login else " (or is the @ missing that stands before the host?)"
        raise wrong(f"its port is not a number from 1 to 65535{at}")
    return host, int(port)


def is_loopback_host(host: str) -> bool:
    """Whether this name or address is this host's own, for connections within it."""
    # 127.example.org is somebody else's.
    return host in ("localhost", "::1") or (host.startswith("127.") and host.replace(".", "").isdigit())


def split_options(
    query: str,
    names: Iterable[str],
    others: Mapping[str, str],
    blank: str = "",
    hint: str = "",
    not_taken: Iterable[str] = (),
) -> dict[str, str]:
    """The options with the values that a query gives them, else empty; `blank` is the one that may be given so.

    `others` has other spellings of their names; `hint` is added where a query holds something else. Options that are
    `not_taken` here, and those of a login, are named where one stands there.
    """
    options = dict.fromkeys(names, "")
    given: set[str] = set()
    for part in filter(None, query.split("&")):
        key, _, value = part.partition("=")
        key = others.get(key, key)
        if key in LOGIN_KEYS:
            raise wrong(f"its {key} stands after its '?', and has its place before it")
        if key in not_taken:
            raise wrong(f"after its '?' stands {key}, and not only {', '.join(options)}: leave it out")
        if key not in options:
            raise wrong(f"after its '?' stands something other than {', '.join(options)}{hint}")
        if key in given:
            raise wrong(f"it gives {key} twice")
        # An empty value comes of a variable that is not set, and would mean weaker TLS than its writer meant.
        if not value and key != blank:
            raise wrong(f"it gives {key} no value")
        given.add(key)
        options[key] = unquote(value)
    return options
