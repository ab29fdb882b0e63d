"""The commands of an installed package: taskserver, taskserver-worker, and `python -m taskserver [worker]`.

They are client.py and worker.py for the deployment in the current folder; in crontabs use `--folder`.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from .messages.programs import CLIENT, WORKER


def client() -> int:
    """Run as client.py. Returns the exit code."""
    folder = _begin(CLIENT, signal.SIGINT)
    from .cli.client import main

    return main(folder, sys.argv[1:])


def worker() -> int:
    """Run as worker.py. Returns the exit code."""
    folder = _begin(WORKER, signal.SIGINT, signal.SIGTERM)
    from .cli.worker import main

    return main(folder, sys.argv[1:])


def _begin(program: str, *held_back: signal.Signals) -> Path:
    """The current folder. Blocks these signals for now: during an import they would cause a traceback."""
    if os.environ.get("GATEWAY_INTERFACE"):
        fault = "this is for cron and the shell, not for a web server"
    else:
        try:
            folder = Path.cwd()
            if hasattr(signal, "pthread_sigmask"):  # Windows has none
                signal.pthread_sigmask(signal.SIG_BLOCK, held_back)
            return folder
        except OSError as error:
            fault = f"the current folder cannot be read: {error.strerror}"
    sys.stderr.write(f"{program}: {fault}\n")
    raise SystemExit(2)


if __name__ == "__main__":
    if sys.argv[1:2] == ["worker"]:
        del sys.argv[1]
        sys.exit(worker())
    sys.exit(client())
