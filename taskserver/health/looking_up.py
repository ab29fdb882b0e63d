"""Looks callables up in another process, as a worker does.

An import runs a module's code: there a module that ends, hangs or prints disturbs nothing.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import NamedTuple

from ..errors import BadTask, ModuleBroken
from ..messages.error_text import describe
from ..settings.load import Settings, make_importable

MAX_REFUSED = 100
"""Refused names, after which no more are looked up: suggestions take time, and there may be many wrong names."""
PROGRAM = """
import sys
sys.path[:] = sys.argv[2:]
from taskserver.health.looking_up import write_answer
write_answer(sys.argv[1])
"""
# Until it has our path, Python would look in the current folder first, which may be another account's.


class Answer(NamedTuple):
    """The answer of the other process."""

    broken: dict[str, str]
    """The reason why a module cannot be imported, by module."""
    refused: dict[str, str]
    """The reason why a callable may not run, by its name in the rows."""
    hooks: dict[str, str]
    """The reason why a function of the settings cannot be called, by its `module:function`."""
    setup: str
    """The reason why TASKSERVER_SETUP failed; then nothing else was looked up. Empty if it did not."""


def look_up_apart(
    settings: Settings,
    names: Sequence[str],
    modules: Sequence[str],
    max_seconds: float,
    hooks: Sequence[str] = (),
    setup: str | None = None,
) -> Answer | None:
    """Call the `setup`, import the modules, and look up the names and `hooks`, in another process.

    None if that process gave no answer in time. Raises OSError if no process can be started.
    """
    given = {
        "folder": str(settings.folder),
        "listed": settings.modules,
        "modules": modules,
        "names": list(names),
        "hooks": list(hooks),
        "setup": setup,
    }
    # The answer is a file: a process that an import left behind would hold a pipe open.
    with NamedTemporaryFile() as answer:
        try:
            subprocess.run(
                # -B: another account that asks leaves no bytecode beside the modules.
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
    folder: str,
    listed: Sequence[str],
    modules: Sequence[str],
    names: Sequence[str],
    hooks: Sequence[str],
    setup: str | None,
) -> Answer:
    """Look all this up in this process."""
    from ..worker.callables import Callables
    from ..worker.hooks import call_hook, find_hook

    def set_up(name: str) -> None:
        call_hook(find_hook(name))

    make_importable(Path(folder))
    if setup is not None and (why := _why_not(set_up, setup)):
        return Answer({}, {}, {}, why)
    callables = Callables(listed, Path(folder))
    broken: dict[str, str] = {}
    refused: dict[str, str] = {}
    for module in modules:
        try:
            callables.import_module(module.removesuffix(".*"))
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
    reasons = {hook: _why_not(find_hook, hook) for hook in hooks}
    return Answer(broken, refused, {hook: reason for hook, reason in reasons.items() if reason}, "")


def _why_not(function: Callable[[str], object], hook: str) -> str:
    """Why this function of a hook's name fails; empty if it does not."""
    from ..worker.call import Failure
    from ..worker.hooks import in_words_with_place

    try:
        function(hook)
    except BaseException as error:  # it calls sys.exit(), say
        return in_words_with_place(Failure(error, describe(error)))
    return ""
