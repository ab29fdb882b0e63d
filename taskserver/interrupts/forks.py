"""The end of a process that a task forked and that came out of its call: it must not go on as a second worker."""

from __future__ import annotations

import os


def end_child(worker: int, raised: BaseException | None) -> None:
    """End this process where it is not that of the worker, with the exit code with which Python itself would end."""
    if os.getpid() != worker:
        os._exit(_exit_code(raised))


def _exit_code(raised: BaseException | None) -> int:
    if raised is None:
        return 0
    code = raised.code if type(raised) is SystemExit else 1
    return 0 if code is None else code if type(code) is int else 1
