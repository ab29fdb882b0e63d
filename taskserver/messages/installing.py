"""The command that installs a package which something needs beyond the two that are required."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

INSTALLS = " -I -m pip install "
"""Stands in the errors that name a package which this host lacks."""


def install_command(package: str) -> str:
    """The command that installs a package, also where the host forbids to change its Python."""
    if sys.prefix != sys.base_prefix:  # a virtual environment
        return f"{sys.executable}{INSTALLS}{shlex.quote(package)}"
    # As a rule the folder of worker.py, and always a folder from which the program imports.
    folder = Path(__file__).resolve().parents[2]
    return f"{sys.executable}{INSTALLS}--target {shlex.quote(str(folder))} {shlex.quote(package)}"
