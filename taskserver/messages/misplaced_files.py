"""Files that an upload put into a wrong folder or under a wrong name: a message about a missing file names them.

For messages alone: no file that is found here is used.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from .programs import IS_INSTALLED
from .text import nearest

WEB_FOLDERS = ("public_html", "www", "htdocs", "httpdocs")
NAMES_OF_ENV = ("env", ".env.txt", "env.txt", ".env.env", ".ENV", "_env", "dotenv", ".env.example")
OUR_FOLDER = "taskserver"
OUR_FILES = frozenset({"worker.py", "client.py"})
MAX_READ_BYTES = 65536
_BEGIN = rb"^(?:\xef\xbb\xbf)?[ \t]*(?:export[ \t]+)?"  # Windows editors put a byte order mark before the first key
_DATABASE = re.compile(_BEGIN + rb"TASKSERVER_DSN[ \t]*=", re.MULTILINE)
_BARE = re.compile(_BEGIN + rb"DSN[ \t]*=", re.MULTILINE | re.IGNORECASE)


def settings_elsewhere(env_file: Path) -> str:
    """The end of the message that no database is set: a file that names one and is not read; empty without one."""
    if _holds(env_file, _BARE):
        return f"; {env_file} has DSN: every key begins with TASKSERVER_"
    return settings_misnamed(env_file) or _hint(env_file, _env_files_around(env_file))


def settings_misnamed(env_file: Path) -> str:
    """The end of that message for a file in the right folder under a wrong name; empty without one."""
    return _hint(env_file, (env_file.with_name(name) for name in NAMES_OF_ENV))


def _hint(env_file: Path, others: Iterable[Path]) -> str:
    path = next((other for other in others if _holds(other, _DATABASE)), None)
    if path is None:
        return ""
    is_above = IS_INSTALLED and path.parent in env_file.parent.parents
    or_name = f", or name {path.parent} with --folder" if is_above else ""
    return f"; {path} names one, and is not read: make it {env_file}{or_name}"


def _env_files_around(env_file: Path) -> Iterator[Path]:
    for other in (*_current_folders(), *_folders_around(env_file.parent)):
        if other != env_file.parent:
            yield other / env_file.name


def _current_folders() -> Iterable[Path]:
    try:
        current = Path.cwd()
    except OSError:  # the current folder was removed
        return ()
    return current, current.parent


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


def _holds(path: Path, line: re.Pattern[bytes]) -> bool:
    try:
        if not path.is_file():  # opening a pipe would wait
            return False
        with path.open("rb") as file:
            return line.search(file.read(MAX_READ_BYTES)) is not None
    except OSError:
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
