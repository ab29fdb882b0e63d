"""Looks callables up in another process, as a worker does.

An import runs a module's code: there a module that ends, hangs or prints disturbs nothing.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import NamedTuple

from ..errors import BadTask, ModuleBroken
from ..messages.error_text import describe
from ..settings.load import Settings, make_importable

MAX_REFUSED = 100
"""Names that are looked up: suggestions take time, and who may INSERT can make up any number of names."""
PROGRAM = """
import sys
sys.path[:] = sys.argv[2:]
from taskserver.doctor.looking_up import write_answer
write_answer(sys.argv[1])
"""
# Until it has our path, Python would look in the current folder first, which may be another account's.


class Answer(NamedTuple):
    """The answer of the other process."""

    broken: dict[str, str]
    """The reason why a module cannot be imported, by module."""
    refused: dict[str, str]
    """The reason why a callable may not run, by its name in the rows."""
    hook: str
    """The reason why TASKSERVER_ON_FAILURE cannot be had; empty where it can, or was not asked for."""


def look_up_apart(
    settings: Settings, names: Sequence[str], modules: Sequence[str], max_seconds: float, hook: str | None = None
) -> Answer | None:
    """Import these listed modules, and those that the names need, and look up the names and the `hook` for failures.

    None where the other process ended without an answer, or took longer. Raises OSError where none can be started.
    """
    given = {
        "folder": str(settings.folder),
        "listed": settings.modules,
        "modules": modules,
        "names": list(names),
        "hook": hook,
    }
    # The answer is a file: a process that an import left behind would hold a pipe open.
    with NamedTemporaryFile() as answer:
        try:
            subprocess.run(
                # -B: whoever asks leaves no bytecode beside the modules.
                [sys.executable, "-B", "-c", PROGRAM, answer.name, *sys.path],
                check=False,
                input=json.dumps(given).encode(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=max_seconds,
            )
        except subprocess.TimeoutExpired:
            return None
        text = answer.read()
    return Answer(*json.loads(text)) if text else None


# ---- in the other process


def write_answer(path: str) -> None:
    """Import, look up, write the answer, and end at once, without Python's own clean-up."""
    process = os.getpid()
    try:
        text = json.dumps(_look_up(**json.load(sys.stdin)))
        if os.getpid() == process:  # a module that forks would answer twice
            Path(path).write_text(text)
    finally:
        os._exit(0)


def _look_up(
    folder: str, listed: Sequence[str], modules: Sequence[str], names: Sequence[str], hook: str | None
) -> tuple[dict[str, str], dict[str, str], str]:
    """The fields of an Answer."""
    from ..worker.callables import Callables

    make_importable(Path(folder))
    callables = Callables(listed, Path(folder))
    broken: dict[str, str] = {}
    refused: dict[str, str] = {}
    for module in modules:
        try:
            callables.check_module(module.removesuffix(".*"))
        except (ModuleBroken, BadTask) as error:
            broken[module] = str(error)
    for name in names:
        try:
            callables.find(name)
        except ModuleBroken as error:
            if str(error) not in broken.values():  # a module below a listed package
                broken[name] = str(error)
        except Exception as error:
            refused[name] = str(error)
            if len(refused) == MAX_REFUSED:
                break
    return broken, refused, _why_no_hook(hook)


def _why_no_hook(hook: str | None) -> str:
    from ..worker.failure_hook import HookMissing, find_hook

    try:
        if hook is not None:
            find_hook(hook)
    except HookMissing as error:
        return str(error)
    except BaseException as error:  # its module calls sys.exit(), say
        return describe(error)
    return ""
