"""Why a listed module cannot be imported: the error, its line, and the fix."""

from __future__ import annotations

import importlib
import os
import re
import sys
from pathlib import Path
from traceback import walk_tb

from .error_text import OUR_FOLDER, describe, traceback_of
from .programs import BESIDE, CACHE_CUT_OFF

_PYTHONS_OWN = os.path.join(os.path.dirname(importlib.__file__), "")
_INSTALLED = re.compile(r"[\\/](?:site|dist)-packages[\\/]|^" + re.escape(os.path.dirname(os.__file__)))
"""Matches paths of files that the site did not write."""
_FIXES = (
    (r"(Syntax|Value|UnicodeDecode)Error: .*(codec can't|null byte|Non-UTF-8|encoding)", "save the file as UTF-8 text"),
    (
        r"ImproperlyConfigured: .*settings are not configured|AppRegistryNotReady: ",
        "name a function that calls django.setup() in TASKSERVER_SETUP (docs/django.md)",
    ),
    (r"PermissionError: ", "let this user read it"),
    (r"EOFError: (marshal|EOF)", CACHE_CUT_OFF),
)
"""The start of an error, and its fix."""


def why_not_imported(module: str, error: BaseException, folder: Path | None) -> str:
    """The error of a module's import in words; `folder` is where modules are searched, if known."""
    missing = str(error.name) if type(error) is ModuleNotFoundError else ""
    if missing and f"{module}.".startswith(f"{missing}."):
        place = f"{BESIDE} ({folder})" if folder else BESIDE
        return f"there is no module {module}: put {_file(module)} {place}, or list another in TASKSERVER_MODULES"
    text = describe(error)
    if missing:
        fix = (
            f": if it is a file of yours, put {_file(missing)} {BESIDE}; if it is a package, install it for the Python "
            f"that runs this ({sys.executable or 'python3'} -I -m pip install …)"
        )
    else:
        fix = next((f": {fix}" for beginning, fix in _FIXES if re.match(beginning, text)), "")
    return f"module {module} cannot be imported: {text}{raised_at(error)}{fix}"


def _file(module: str) -> str:
    return f"{module.replace('.', '/')}.py"


def raised_at(error: BaseException) -> str:
    """The file and line that raised an error, if possible in the site's own files.

    Empty for a file that could not be read: its error has the place.
    """
    frames = [(frame.f_code.co_filename, line) for frame, line in walk_tb(traceback_of(error))]
    others = [(file, line) for file, line in frames if not file.startswith(("<", OUR_FOLDER, _PYTHONS_OWN))]
    own = [(os.path.basename(file), line) for file, line in others if not _INSTALLED.search(file)]
    # Packages have many files named __init__.py, so show the folder too.
    place = own[-1:] or [("/".join(Path(file).parts[-2:]), line) for file, line in others[-1:]]
    return f" ({place[0][0]}, line {place[0][1]})" if place else ""
