"""The commands of an installed package: taskserver, taskserver-worker, and `python -m taskserver`.

They look for a deployment in the current folder; crontabs name its folder with `--folder`.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from ..messages.programs import CLIENT, WORKER


def client() -> int:
    """Be client.py for the deployment in the current folder; the exit code."""

    def run(folder: Path) -> int:
        from .client import main

        return main(folder, sys.argv[1:])

    return _run(CLIENT, {signal.SIGINT}, run)


def worker() -> int:
    """Be worker.py for the deployment in the current folder; the exit code."""

    def run(folder: Path) -> int:
        from .worker import main

        return main(folder, sys.argv[1:])

    return _run(WORKER, {signal.SIGINT, signal.SIGTERM}, run)


def _run(program: str, held_back: set[signal.Signals], run: Callable[[Path], int]) -> int:
    if os.environ.get("GATEWAY_INTERFACE"):
        return _refuse(program, "this is for cron and the shell, not for a web server")
    try:
        folder = Path.cwd()
    except OSError as error:
        return _refuse(program, f"the current folder cannot be had: {error.strerror}")
    # Until they can be obeyed: in the midst of an import they would end in a traceback.
    if hasattr(signal, "pthread_sigmask"):  # Windows has none
        signal.pthread_sigmask(signal.SIG_BLOCK, held_back)
    return run(folder)


def _refuse(program: str, words: str) -> int:
    print(f"{program}: {words}", file=sys.stderr)
    return 2
