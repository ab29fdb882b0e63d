"""Whether a database server on this host is run by root, by this account, or by the server's own.

Another account may listen in the server's place while the server is away, and ask for the password. So the question is
who is at the other end of a connection; who listens now may be another.
"""

from __future__ import annotations

import os
import socket
import stat
import struct
from collections.abc import Iterator

NAMES = ("mysql", "mariadb", "_mysql")
"""The accounts that packages make for a server."""
ESTABLISHED = "01"
NOT_ACCEPTED = "0"
"""The inode of a connection that no program has taken up yet: the system names no account for it."""
TABLES = ("/proc/net/tcp", "/proc/net/tcp6")


def is_of_server(path: str) -> bool:
    """Whether a Unix socket is there, and nobody but its folder's owner or a server's account may have put it there."""
    try:
        found, folder = os.lstat(path), os.stat(os.path.dirname(path))
    except OSError:
        return False
    return not folder.st_mode & stat.S_IWOTH or is_account_of_server(found.st_uid)


def is_at_other_end(connected: socket.socket) -> bool:
    """Whether a server's account alone has the other end of a connection within this host.

    False where the system does not tell.
    """
    owners = list(_owners_of_unix(connected) if connected.family == socket.AF_UNIX else _owners_of_tcp(connected))
    return bool(owners) and all(map(is_account_of_server, owners))


def is_account_of_server(uid: int) -> bool:
    """Whether this is the number of root, of this account, or of one that is a server's by its name."""
    if uid in (0, os.getuid()):
        return True
    import pwd  # the few who ask pay for it

    try:
        return pwd.getpwuid(uid).pw_name in NAMES
    except KeyError:
        return False


def _owners_of_unix(connected: socket.socket) -> Iterator[int]:
    if hasattr(socket, "SO_PEERCRED"):
        yield struct.unpack("iII", connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1]


def _owners_of_tcp(connected: socket.socket) -> Iterator[int]:
    """The owners of all ends that may be the other one, by the two ports; -1 of one that nobody has taken up."""
    ends = [connected.getpeername()[1], connected.getsockname()[1]]
    for table in TABLES:
        try:
            with open(table, encoding="ascii") as lines:
                next(lines)
                for line in lines:
                    _, own, others, state, _, _, _, owner, _, inode, *_ = line.split()
                    if state == ESTABLISHED and [_port(own), _port(others)] == ends:
                        yield -1 if inode == NOT_ACCEPTED else int(owner)
        except (OSError, StopIteration):
            continue


def _port(address: str) -> int:
    return int(address.rpartition(":")[2], 16)
