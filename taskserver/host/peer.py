"""Whether root, our account or a database server's account is at the other end of a connection within this host.

While the server is down, another account could listen in its place and ask for the password.
"""

from __future__ import annotations

import os
import socket
import stat
import struct
from collections.abc import Sequence
from contextlib import suppress

MYSQL_ACCOUNTS = ("mysql", "mariadb", "_mysql")
POSTGRESQL_ACCOUNTS = ("postgres", "_postgres", "_postgresql", "pgsql")
"""The accounts that packages create. One kind of server must not see the passwords of the other."""
SOCKET_TABLES = ("/proc/net/tcp", "/proc/net/tcp6")
OWN, OTHER, STATE, UID, INODE = 1, 2, 3, 7, 9
"""Columns of these tables."""
LISTENING_STATE = "0A"
NOT_ACCEPTED = "0"
"""The inode of a connection that is not accepted yet, or closed. It is listed as root's."""
MAPPED = "".join(f"{word:08X}" for word in struct.unpack("=3I", bytes(10) + b"\xff\xff"))
"""The prefix of an IPv4 address that is listed as IPv6, if the server listens on both."""


def is_of_server(path: str, names: Sequence[str]) -> bool:
    """Whether a Unix socket exists that only its folder's owner or a server's account can have created."""
    try:
        found, folder = os.lstat(path), os.stat(os.path.dirname(path))
    except OSError:
        return False
    return not folder.st_mode & stat.S_IWOTH or is_account_of_server(found.st_uid, names)


def is_at_other_end(connected: socket.socket, names: Sequence[str]) -> bool:
    """Whether a server's account accepted this connection. False if unknown."""
    if connected.family == getattr(socket, "AF_UNIX", None):  # Windows has none
        if not hasattr(socket, "SO_PEERCRED"):
            return False
        _, uid, _ = struct.unpack("iII", connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        return is_account_of_server(uid, names)
    ends = [_as_listed(*address[:2]) for address in (connected.getpeername(), connected.getsockname())]
    rows = [row for row in _sockets() if [row[end].removeprefix(MAPPED) for end in (OWN, OTHER)] == ends]
    has_accepted = all(row[INODE] != NOT_ACCEPTED for row in rows)
    return bool(rows) and has_accepted and all(is_account_of_server(int(row[UID]), names) for row in rows)


def listens(port: int, names: Sequence[str]) -> bool:
    """Whether only a server's account listens at a port of this host now. False if unknown."""
    rows = [row for row in _sockets() if row[STATE] == LISTENING_STATE and row[OWN].endswith(f":{port:04X}")]
    return bool(rows) and all(is_account_of_server(int(row[UID]), names) for row in rows)


def is_account_of_server(uid: int, names: Sequence[str]) -> bool:
    """Whether a user id is root's, this account's, or that of a server's account with one of these names."""
    if uid in (0, os.getuid()):
        return True
    import pwd  # few runs get here

    with suppress(KeyError):
        return pwd.getpwuid(uid).pw_name in names
    return False


def _sockets() -> list[list[str]]:
    """The rows of the system's tables of TCP sockets; none if they cannot be read."""
    rows: list[list[str]] = []
    for table in SOCKET_TABLES:
        with suppress(OSError), open(table, encoding="ascii") as lines:
            rows += [line.split() for line in lines][1:]
    return rows


def _as_listed(host: str, port: int) -> str:
    """An address as these tables list it: words of 32 bits in hexadecimal."""
    packed = socket.inet_pton(socket.AF_INET6 if ":" in host else socket.AF_INET, host)
    words = struct.unpack(f"={len(packed) // 4}I", packed)
    return f"{''.join(f'{word:08X}' for word in words)}:{port:04X}".removeprefix(MAPPED)
