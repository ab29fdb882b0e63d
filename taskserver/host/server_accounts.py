"""Whether root, our account or a database server's own account has the other end of a connection within this host.

Another account can listen in the server's place while the server is away, and ask for the password.
"""

from __future__ import annotations

import os
import socket
import stat
import struct
from collections.abc import Sequence
from contextlib import suppress

MYSQL = ("mysql", "mariadb", "_mysql")
POSTGRESQL = ("postgres", "_postgres", "_postgresql", "pgsql")
"""The accounts that packages make for a server. One kind of server must not see the passwords of the other."""
TABLES = ("/proc/net/tcp", "/proc/net/tcp6")
LISTENING = "0A"
NOT_ACCEPTED = "0"
"""The inode of a connection that no program has accepted, or has open any more. It is listed as root's."""
MAPPED = "".join(f"{word:08X}" for word in struct.unpack("=3I", bytes(10) + b"\xff\xff"))
"""How an IPv4 address begins that is listed as IPv6, as a server has it that listens on both."""


def is_of_server(path: str, names: Sequence[str]) -> bool:
    """Whether a Unix socket exists, and only its folder's owner or a server's account can have put it there."""
    try:
        found, folder = os.lstat(path), os.stat(os.path.dirname(path))
    except OSError:
        return False
    return not folder.st_mode & stat.S_IWOTH or is_account_of_server(found.st_uid, names)


def is_at_other_end(connected: socket.socket, names: Sequence[str]) -> bool:
    """Whether a server's account has the other end of a connection. False if the system does not say who has it.

    Who listens at the port may have changed since, so the question is who accepted.
    """
    owners = _owners_of_unix(connected) if connected.family == socket.AF_UNIX else _owners_of_tcp(connected)
    return bool(owners) and all(is_account_of_server(owner, names) for owner in owners)


def listens(port: int, names: Sequence[str]) -> bool:
    """Whether only a server's account listens at a port of this host now. False if the system does not say."""
    owners = [int(row[7]) for row in _connections() if row[3] == LISTENING and row[1].endswith(f":{port:04X}")]
    return bool(owners) and all(is_account_of_server(owner, names) for owner in owners)


def is_account_of_server(uid: int, names: Sequence[str]) -> bool:
    """Whether a user id is that of root, of this account, or of a server's account with one of these names."""
    if uid in (0, os.getuid()):
        return True
    import pwd  # few runs get here

    try:
        return pwd.getpwuid(uid).pw_name in names
    except KeyError:
        return False


def _owners_of_unix(connected: socket.socket) -> list[int]:
    if not hasattr(socket, "SO_PEERCRED"):
        return []
    return [struct.unpack("iII", connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1]]


def _owners_of_tcp(connected: socket.socket) -> list[int]:
    ends = [_as_listed(*address[:2]) for address in (connected.getpeername(), connected.getsockname())]
    return [
        -1 if row[9] == NOT_ACCEPTED else int(row[7])
        for row in _connections()
        if [row[1].removeprefix(MAPPED), row[2].removeprefix(MAPPED)] == ends
    ]


def _connections() -> list[list[str]]:
    """The system's TCP sockets: their own address, the other end's, state, owner and inode are words 1, 2, 3, 7, 9."""
    rows: list[list[str]] = []
    for table in TABLES:
        with suppress(OSError), open(table, encoding="ascii") as lines:
            rows += [line.split() for line in lines][1:]
    return rows


def _as_listed(host: str, port: int) -> str:
    """An address as the system lists it: words of 32 bits in hexadecimal."""
    packed = socket.inet_pton(socket.AF_INET6 if ":" in host else socket.AF_INET, host)
    words = struct.unpack(f"={len(packed) // 4}I", packed)
    return f"{''.join(f'{word:08X}' for word in words)}:{port:04X}".removeprefix(MAPPED)
