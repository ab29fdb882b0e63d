"""Files that an upload put into a wrong folder or under a wrong name: a message about a missing file names them.

For messages alone: no file that is found here is used.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from .text import nearest

WEB_FOLDERS = ("public_html", "www", "htdocs", "httpdocs")
OUR_FOLDER = "taskserver"
OUR_FILES = frozenset({"worker.py", "client.py"})


def _folders_around(folder: Path) -> Iterator[Path]:
    """The folders in which files land that were meant for this folder."""
    for upper in (folder.parent, folder):
        yield upper
        yield from (upper / name for name in WEB_FOLDERS)
    yield folder / OUR_FOLDER


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # this user may not enter the folder
        return False


def module_elsewhere(file: str, folder: Path) -> str:
    """The end of the message that a folder lacks a file: the file that may be meant; empty without one."""
    name = _alike(file, folder)
    if name:
        return f"; {name} lies there: rename it to {file}"
    other = next((other for other in _folders_around(folder) if other != folder and _is_file(other / file)), None)
    return f"; one lies in {other}: move it" if other else ""


def _alike(file: str, folder: Path) -> str | None:
    try:
        there = sorted(set(os.listdir(folder)) - OUR_FILES)
    except OSError:
        return None
    return next((name for name in there if name.lower() in (f"{file}.txt", f"{file}.py")), None) or nearest(
        file, (name for name in there if name.lower().endswith(".py")), likeness=0.8
    )
