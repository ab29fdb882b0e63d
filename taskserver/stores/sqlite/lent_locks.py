"""Which threads of this process hold the lock of a file by a task's own transaction.

Whatever else they write to that file would wait for themselves.
"""

from __future__ import annotations

import os
import threading

lent_in: dict[int, str] = {}
"""Threads, by their identity, and the real path of the file that each has locked."""


def is_lent_here(path: str | os.PathLike[str]) -> bool:
    """Whether this thread holds the lock of a file itself."""
    return bool(lent_in) and lent_in.get(threading.get_ident()) == os.path.realpath(path)
