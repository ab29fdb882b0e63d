"""The name of this host, and what tells its processes from later ones of the same id: so one is known to be gone."""

from __future__ import annotations

import os
import socket

_BOOT = "/proc/sys/kernel/random/boot_id"
_NAMESPACE = "/proc/self/ns/pid"
MAX_HOST_NAME = 255
"""As long as the tables take it."""
MAX_PID = 2**22
"""No kernel gives a greater one: it was forged."""
_STATE, _STARTED_AT = 0, 19
"""The places of a process's state and start in its stat, counted behind the name."""
_ENDED = (b"Z", b"X")
"""The states of a process that has ended, and of which its parent has not heard."""


def host_name() -> str:
    """The name of this host, as the tables keep it: plain ASCII."""
    return socket.gethostname().encode("ascii", "replace").decode()[:MAX_HOST_NAME]


def own_identity() -> str:
    """The identity of this process; empty where the system tells none, or /proc is that of another namespace."""
    try:
        is_ours = os.readlink("/proc/self") == str(os.getpid())
    except OSError:
        return ""
    return _identity("self") if is_ours else ""


def has_ended(pid: int, identity: str) -> bool | None:
    """Whether the process of this id and identity has ended; None where that cannot be known.

    It is known of a process of the same start of the machine and of the same process namespace, as containers have.
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
    """The start of the machine, the process namespace, and the start of the process within that."""
    try:
        with open(_BOOT, encoding="ascii") as file:
            boot = file.read().strip()
        with open(f"/proc/{process}/stat", "rb") as stat:
            # A name may hold blanks and brackets.
            fields = stat.read().rpartition(b")")[2].split()
        started_at = "ended" if fields[_STATE] in _ENDED else fields[_STARTED_AT].decode()
        return f"{boot} {os.stat(_NAMESPACE).st_ino} {started_at}"
    except (OSError, ValueError, IndexError):
        return ""
