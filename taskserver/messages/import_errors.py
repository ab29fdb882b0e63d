"""Words for why a listed module cannot be imported: the error, its line, and the mend."""

from __future__ import annotations

import importlib
import os
import re
import sys
from pathlib import Path
from traceback import walk_tb

from .error_text import OUR_FOLDER, describe, traceback_of
from .misplaced_files import module_elsewhere
from .programs import BESIDE

_PYTHONS_OWN = os.path.join(os.path.dirname(importlib.__file__), "")
_INSTALLED = re.compile(r"[\\/](?:site|dist)-packages[\\/]|^" + re.escape(os.path.dirname(os.__file__)))
"""Begins the path of a file that the site did not write."""
_NO_SETUP = re.compile(r"ImproperlyConfigured: .*settings are not configured|AppRegistryNotReady: ")
"""The texts of Django where nobody has called django.setup()."""
_IS_ENCODING = re.compile(r"codec can't|null byte|Non-UTF-8|unknown encoding|encoding problem")


def why_not_imported(module: str, error: BaseException, folder: Path | None) -> str:
    """The error of a module's import in words; `folder` is where modules are looked for, where that is known."""
    return _missing(module, folder) if _is_missing(module, error) else _broken(module, error, folder)


def _is_missing(module: str, error: BaseException) -> bool:
    """Whether the module itself is missing, rather than one that it imports."""
    return type(error) is ModuleNotFoundError and error.name is not None and f"{module}.".startswith(f"{error.name}.")


def _missing(module: str, folder: Path | None) -> str:
    file = f"{module.replace('.', '/')}.py"
    looked_in = f" ({folder})" if folder else ""
    elsewhere = module_elsewhere(file, folder) if folder else ""
    return (
        f"there is no module {module}: put {file} {BESIDE}{looked_in}, or list another in TASKSERVER_MODULES{elsewhere}"
    )


def _broken(module: str, error: BaseException, folder: Path | None) -> str:
    text = describe(error)
    return f"module {module} cannot be imported: {text}{raised_at(error)}{_mend(error, text, folder)}"


def _put(module: str, folder: Path | None) -> str:
    """The mend of a missing module that a listed one imports: a file of the site's own, or a package of others."""
    file = f"{module.replace('.', '/')}.py"
    elsewhere = module_elsewhere(file, folder) if folder else ""
    return (
        f"if it is a file of yours, put {file} {BESIDE}{elsewhere}; if it is a package, "
        f"install it for the Python that runs this ({sys.executable or 'python3'} -I -m pip install …)"
    )


def raised_at(error: BaseException) -> str:
    """The file and line that raised an error, of the site where it had a part in that.

    Empty for a file that could not be read: its error says where.
    """
    frames = [(frame.f_code.co_filename, line) for frame, line in walk_tb(traceback_of(error))]
    others = [(file, line) for file, line in frames if not file.startswith(("<", OUR_FOLDER, _PYTHONS_OWN))]
    own = [(os.path.basename(file), line) for file, line in others if not _INSTALLED.search(file)]
    # A package has many an __init__.py: the folder of the file tells which.
    place = own[-1:] or [("/".join(Path(file).parts[-2:]), line) for file, line in others[-1:]]
    return f" ({place[0][0]}, line {place[0][1]})" if place else ""


def _mend(error: BaseException, text: str, folder: Path | None) -> str:
    """The mend of an error that a module raised on import; empty where the error's type tells none."""
    kind = type(error)
    if isinstance(error, ModuleNotFoundError):
        return f": {_put(str(error.name), folder)}"
    if kind in (SyntaxError, ValueError, UnicodeDecodeError) and _IS_ENCODING.search(text):
        return ": save the file as UTF-8 text"
    if kind is TabError:
        return ": indent with spaces alone"
    if _NO_SETUP.match(text):
        return ": name a function that calls django.setup() in TASKSERVER_SETUP (docs/django.md)"
    if kind in (SyntaxError, IndentationError):
        return ": mend that line"
    return ": let this user read it" if kind is PermissionError else ""
