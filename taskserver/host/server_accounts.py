"""Whether a database server that listens on this host is run by root, by this account, or by the server's own.

Another account may listen in the server's place while the server is away, and ask for the password.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

NAMES = ("mysql", "mariadb", "_mysql")
"""The accounts that packages make for a server."""
LISTENING = "0A"
TABLES = ("/proc/net/tcp", "/proc/net/tcp6")


def accounts() -> frozenset[int]:
    """Root, this account, and those that are a server's by their names."""
    import pwd  # the few who ask pay for it

    found = {0, os.getuid()}
    for name in NAMES:
        try:
            found.add(pwd.getpwnam(name).pw_uid)
        except KeyError:
            pass
    return frozenset(found)


def is_of_server(path: str) -> bool:
    """Whether a Unix socket is the server's: one of the accounts', or in a folder where its owner alone makes files."""
    try:
        owner = os.stat(path).st_uid
        folder = os.stat(os.path.dirname(os.path.realpath(path)))
    except OSError:
        return False
    return (owner == folder.st_uid and not folder.st_mode & 0o022) or owner in accounts()


def listens_for_server(port: int) -> bool:
    """Whether only the accounts listen on a TCP port of this host. False where the system does not tell."""
    owners = set(_listeners(port))
    return bool(owners) and owners <= accounts()


def _listeners(port: int) -> Iterator[int]:
    for table in TABLES:
        try:
            with open(table, encoding="ascii") as lines:
                next(lines)
                for line in lines:
                    _, address, _, state, _, _, _, owner, *_ = line.split()
                    if state == LISTENING and int(address.rpartition(":")[2], 16) == port:
                        yield int(owner)
        except (OSError, ValueError, StopIteration):
            continue
