"""A new folder in memory, where the host allows it: for a database that goes with its process."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

IN_MEMORY = "/dev/shm"


def make_folder_in_memory(prefix: str) -> Path:
    """Make a folder with a new name, for this user alone. Raises OSError."""
    return Path(tempfile.mkdtemp(prefix=prefix, dir=IN_MEMORY if os.access(IN_MEMORY, os.W_OK) else None))
