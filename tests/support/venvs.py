"""Virtual environments with pip and nothing else, in no time."""

from __future__ import annotations

import venv
from importlib.util import find_spec
from pathlib import Path


def make_venv(folder: Path) -> Path:
    """A virtual environment with the pip of this one: to unpack another takes ten times as long. Its Python."""
    venv.create(folder, with_pip=False)
    spec = find_spec("pip")
    assert spec
    assert spec.origin
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "pip").symlink_to(Path(spec.origin).parent)
    return folder / "bin" / "python"
