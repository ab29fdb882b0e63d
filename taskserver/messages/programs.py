"""The names of our two programs: files beside the package, or commands if pip installed it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

_BESIDE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
IS_INSTALLED = not any(os.path.exists(os.path.join(_BESIDE, name)) for name in ("worker.py", "client.py"))
CLIENT, WORKER = ("taskserver", "taskserver-worker") if IS_INSTALLED else ("client.py", "worker.py")
BESIDE = "in the deployment's folder" if IS_INSTALLED else "beside worker.py"
"""The place of a site's own modules."""
CACHE_CUT_OFF = "a full disk cut off what Python compiled: delete all folders __pycache__"
"""Python puts an incomplete file there if the disk is full, and then fails at each import of it with an EOFError."""


def install_command(package: str) -> str:
    """The command that installs a package, even if the host does not allow changes to its Python."""
    from shlex import quote

    if sys.prefix != sys.base_prefix:  # a virtual environment
        return f"{sys.executable} -I -m pip install {quote(package)}"
    # Usually the folder of worker.py, and always one from which the program imports.
    return f"{sys.executable} -I -m pip install --target {quote(_BESIDE)} {quote(package)}"


def client_in(folder: Path, env_file: Path | None = None) -> str:
    """The start of a command line of client.py, for a crontab or a shell."""
    from shlex import join

    python = sys.executable or "python3"
    if not IS_INSTALLED and env_file is None:
        return join([python, str(folder / CLIENT)])
    program = ["-m", "taskserver"] if IS_INSTALLED else [os.path.join(_BESIDE, CLIENT)]
    env = [] if env_file is None else ["--env", str(env_file)]
    return join([python, *program, "--folder", str(folder), *env])
