"""Why a listed module cannot be imported, in words: what, where, and the mend."""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from traceback import walk_tb
from types import TracebackType

from .error_text import describe
from .misplaced import module_elsewhere

_OUR_FOLDER = os.path.join(os.path.dirname(__file__), "")
_PYTHONS_OWN = os.path.join(os.path.dirname(importlib.__file__), "")
_IS_ENCODING = re.compile(r"codec can't|null byte|Non-UTF-8|unknown encoding|encoding problem")

# Read past whatever a class of exceptions says of itself.
_traceback_of: Callable[[BaseException], TracebackType | None] = BaseException.__dict__["__traceback__"].__get__


def why_not_imported(module: str, error: BaseException, folder: Path | None) -> str:
    """What the import of a module raised, for a person; `folder` is where modules are looked for."""
    return _missing(module, folder) if _is_missing(module, error) else _broken(module, error)


def _is_missing(module: str, error: BaseException) -> bool:
    """Whether the module itself is not there, rather than something that it imports."""
    return type(error) is ModuleNotFoundError and error.name is not None and f"{module}.".startswith(f"{error.name}.")


def _missing(module: str, folder: Path | None) -> str:
    file = f"{module.replace('.', '/')}.py"
    place = f" ({folder})" if folder else ""
    elsewhere = module_elsewhere(file, folder) if folder else ""
    return (
        f"there is no module {module}: put {file} beside worker.py{place}, "
        f"or list another in TASKSERVER_MODULES{elsewhere}"
    )


def _broken(module: str, error: BaseException) -> str:
    text = describe(error)
    return f"module {module} cannot be imported: {text}{_place(error)}{_mend(error, text)}"


def _place(error: BaseException) -> str:
    """The line that raised it; of one that could not even be read, its text tells that."""
    frames = [(frame.f_code.co_filename, line) for frame, line in walk_tb(_traceback_of(error))]
    places = [place for place in frames if not place[0].startswith(("<", _OUR_FOLDER, _PYTHONS_OWN))]
    return f" ({os.path.basename(places[-1][0])}, line {places[-1][1]})" if places else ""


def _mend(error: BaseException, text: str) -> str:
    """What to do about an error that a module raised when it was imported, as far as Python's own kinds tell it."""
    kind = type(error)
    if kind is ModuleNotFoundError:
        return f": install it for the Python that runs this ({sys.executable or 'python3'} -m pip install …)"
    if kind in (SyntaxError, ValueError, UnicodeDecodeError) and _IS_ENCODING.search(text):
        return ": save the file as UTF-8 text"
    if kind is TabError:
        return ": indent with spaces alone"
    if kind in (SyntaxError, IndentationError):
        return ": mend that line"
    return ": let this user read it" if kind is PermissionError else ""
