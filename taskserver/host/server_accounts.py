"""Whether a database server on this host is run by root, by this account, or by one of the server's own.

Another account may listen in the server's place while the server is away, and ask for the password. So the question is
who is at the other end of a connection; who listens now may be another.
"""

from __future__ import annotations

import os
import socket
import stat
import struct
from collections.abc import Iterator, Sequence
from typing import Any

MYSQL = ("mysql", "mariadb", "_mysql")
POSTGRESQL = ("postgres", "_postgres", "_postgresql", "pgsql")
"""The accounts that packages make for a server; one of a kind is not trusted with what the other is to be told."""
ESTABLISHED = "01"
NOT_ACCEPTED = "0"
"""The inode of a connection that no program has taken up yet: the system names no account for it."""
MAPPED = "".join(f"{word:08X}" for word in struct.unpack("=3I", bytes(10) + b"\xff\xff"))
TABLES = ("/proc/net/tcp", "/proc/net/tcp6")
PROTOCOLS = "/proc/net/protocols"
ACCEPTED_BY_KERNEL = "SMC"
"""A protocol: any account that listens by it gets connections by TCP, too. The kernel accepts these: root owns them."""


def is_of_server(path: str, names: Sequence[str]) -> bool:
    """Whether a Unix socket is there, and nobody but its folder's owner or a server's account may have put it there."""
    try:
        found, folder = os.lstat(path), os.stat(os.path.dirname(path))
    except OSError:
        return False
    return not folder.st_mode & stat.S_IWOTH or is_account_of_server(found.st_uid, names)


def is_at_other_end(connected: socket.socket, names: Sequence[str]) -> bool:
    """Whether a server's account alone has the other end of a connection within this host.

    False where the system does not tell.
    """
    owners = _owners(connected)
    return bool(owners) and all(is_account_of_server(owner, names) for owner in owners)


def is_another_at_other_end(connected: socket.socket, names: Sequence[str]) -> bool:
    """Whether another account has the other end; False where the system does not tell."""
    return not all(is_account_of_server(owner, names) for owner in _owners(connected))


def is_account_of_server(uid: int, names: Sequence[str]) -> bool:
    """Whether this is the number of root, of this account, or of one of the server's own, which have these names."""
    if uid in (0, os.getuid()):
        return True
    import pwd  # the few who ask pay for it

    try:
        return pwd.getpwuid(uid).pw_name in names
    except KeyError:
        return False


def _owners(connected: socket.socket) -> list[int]:
    return list(_owners_of_unix(connected) if connected.family == socket.AF_UNIX else _owners_of_tcp(connected))


def _owners_of_unix(connected: socket.socket) -> Iterator[int]:
    if hasattr(socket, "SO_PEERCRED"):
        yield struct.unpack("iII", connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1]


def _owners_of_tcp(connected: socket.socket) -> Iterator[int]:
    """The owner of the other end; -1 where nobody has taken it up, or has it any more, or root is anybody."""
    nobodys = {-1, 0} if _may_root_be_anybody() else {-1}
    ends = [_as_listed(connected.getpeername()), _as_listed(connected.getsockname())]
    for table in TABLES:
        try:
            with open(table, encoding="ascii") as lines:
                next(lines)
                for line in lines:
                    _, own, others, state, _, _, _, owner, _, inode, *_ = line.split()
                    if [_plain(own), _plain(others)] == ends:
                        is_taken = state == ESTABLISHED and inode != NOT_ACCEPTED
                        yield int(owner) if is_taken and int(owner) not in nobodys else -1
        except (OSError, StopIteration):
            continue


def _may_root_be_anybody() -> bool:
    try:
        with open(PROTOCOLS, encoding="ascii") as lines:
            return any(line.startswith(ACCEPTED_BY_KERNEL) for line in lines)
    except OSError:
        return False


def _as_listed(address: tuple[Any, ...]) -> str:
    """An address and its port as the system lists them: words of 32 bits in hexadecimal."""
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    packed = socket.inet_pton(family, address[0].partition("%")[0])
    words = struct.unpack(f"={len(packed) // 4}I", packed)
    return _plain(f"{''.join(f'{word:08X}' for word in words)}:{address[1]:04X}")


def _plain(listed: str) -> str:
    """An address of IPv4 that is listed as one of IPv6, as a server has it that listens on both, in its own form."""
    return listed.removeprefix(MAPPED)
