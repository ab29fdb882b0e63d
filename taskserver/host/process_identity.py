"""The name of this host, and the identity of its processes: process ids are reused."""

from __future__ import annotations

import os
import socket

_BOOT = "/proc/sys/kernel/random/boot_id"
_NAMESPACE = "/proc/self/ns/pid"
MAX_HOST_NAME = 255
"""The length of the column."""
MAX_PID = 2**22
"""The kernel's maximum: a greater one is invalid."""
_STATE, _STARTED_AT = 0, 19
"""Positions in a process's stat, after the name."""
_ENDED = (b"Z", b"X")
"""The states of a process that has ended, but was not reaped."""


def host_name() -> str:
    """The name of this host for the tables: plain ASCII."""
    return socket.gethostname().encode("ascii", "replace").decode()[:MAX_HOST_NAME]


def own_identity() -> str:
    """The identity of this process; empty if it is unknown, or /proc belongs to another namespace."""
    try:
        is_ours = os.readlink("/proc/self") == str(os.getpid())
    except OSError:
        return ""
    return _identity("self") if is_ours else ""


def has_ended(pid: int, identity: str) -> bool | None:
    """Whether this process has ended; None if that is unknown.

    It is known for processes of the same boot and the same process namespace (container).
    """
    own = own_identity()
    if not (own and identity) or own.rpartition(" ")[0] != identity.rpartition(" ")[0] or not 0 < pid <= MAX_PID:
        return None
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:  # of another account
        return False
    now = _identity(str(pid))
    return bool(now) and now != identity


def _identity(process: str) -> str:
    """Boot id, process namespace, and start of the process."""
    try:
        with open(_BOOT, encoding="ascii") as file:
            boot = file.read().strip()
        with open(f"/proc/{process}/stat", "rb") as stat:
            # A name may have blanks and brackets.
            fields = stat.read().rpartition(b")")[2].split()
        started_at = "ended" if fields[_STATE] in _ENDED else fields[_STARTED_AT].decode()
        return f"{boot} {os.stat(_NAMESPACE).st_ino} {started_at}"
    except (OSError, ValueError, IndexError):
        return ""
