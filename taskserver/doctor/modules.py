"""Checks that the listed modules can be imported, and that they hold the callables which the next rows name.

An import runs a module's code: it happens in another process, so that a module that ends, hangs or prints disturbs
nothing.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import NamedTuple

from ..errors import BadTask, ModuleBroken
from ..messages.error_text import describe
from ..settings.load import Settings, make_importable
from .findings import Finding, broken, ok, unknown, warning

MAX_IMPORT_SECONDS = 60
MAX_NAMES_SHOWN = 5
MAX_REFUSED = 100
"""Names that are looked up: suggestions take time, and who may INSERT can make up any number of names."""
PROGRAM = """
import sys
sys.path[:] = sys.argv[2:]
from taskserver.doctor.modules import write_answer
write_answer(sys.argv[1])
"""
# Until it has our path, Python would look in the current folder first, which may be another account's.


class _Outcome(NamedTuple):
    """The answer of the other process."""

    broken: dict[str, str]
    """The reason why a module cannot be imported, by module."""
    refused: dict[str, str]
    """The reason why a callable may not run, by its name in the rows."""
    hook: str
    """The reason why TASKSERVER_ON_FAILURE cannot be had; empty where it can, or is not set."""


def findings(settings: Settings, names: Sequence[str] | None) -> Iterator[Finding]:
    """One finding for the listed modules, and one for the callables that rows name; None: rows could not be read."""
    try:
        outcome = _import_apart(settings, names or ())
    except OSError as error:
        for check in ("modules", "callables"):
            yield unknown(check, f"this host lets no process be started for it: {error.strerror}", "they may be broken")
        return
    if outcome is None:
        yield broken(
            "modules",
            f"importing {', '.join(settings.modules)} ended Python, or took more than {MAX_IMPORT_SECONDS} s",
            "a worker would die or hang of it, too",
            "leave in these modules nothing but imports and definitions",
        )
        return
    yield _modules(settings, outcome)
    yield _callables(names, outcome)
    if settings.on_failure is not None:
        yield _hook(settings, outcome)


def _modules(settings: Settings, outcome: _Outcome) -> Finding:
    if not outcome.broken:
        return ok("modules", f"{', '.join(settings.modules)} can be imported")
    return broken(
        "modules",
        "; ".join(outcome.broken.values()),
        "tasks of such a module fail, and are tried again until their attempts are used up",
        "put it right and upload it again; workers try it anew by themselves",
    )


def _hook(settings: Settings, outcome: _Outcome) -> Finding:
    if not outcome.hook:
        return ok("on_failure", f"{settings.on_failure} can be imported")
    return warning(
        "on_failure",
        f"TASKSERVER_ON_FAILURE: {settings.on_failure} cannot be had: {outcome.hook}",
        "nobody hears of failed tasks by it",
        "name a function as module:function; the module lies beside worker.py, or where Python finds it",
    )


def _callables(names: Sequence[str] | None, outcome: _Outcome) -> Finding:
    if names is None:
        return unknown("callables", "the rows cannot be read", "they may name what is not there")
    if outcome.broken and not outcome.refused:
        return unknown("callables", "they cannot be told while a module is broken", "rows may name what is not there")
    if not outcome.refused:
        return ok("callables", f"{len(names)} named by the rows that are next, all can be called")
    reasons = "; ".join(list(outcome.refused.values())[:MAX_NAMES_SHOWN])
    or_more = " or more" if len(outcome.refused) == MAX_REFUSED else ""
    more = (
        f"; and {len(outcome.refused) - MAX_NAMES_SHOWN}{or_more} others"
        if len(outcome.refused) > MAX_NAMES_SHOWN
        else ""
    )
    return warning(
        "callables",
        reasons + more,
        "the next worker makes these tasks fatal",
        "mend the name where the task is added, or the function's name, before a worker meets them",
    )


# ---- in another process


def _import_apart(settings: Settings, names: Sequence[str]) -> _Outcome | None:
    """Import and look up in another process. None where it ended without an answer."""
    hook = settings.on_failure if isinstance(settings.on_failure, str) else None
    given = {"folder": str(settings.folder), "modules": settings.modules, "names": list(names), "hook": hook}
    # The answer is a file: a process that an import left behind would hold a pipe open.
    with NamedTemporaryFile() as answer:
        try:
            subprocess.run(
                [sys.executable, "-c", PROGRAM, answer.name, *sys.path],
                check=False,
                input=json.dumps(given).encode(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=MAX_IMPORT_SECONDS,
            )
        except subprocess.TimeoutExpired:
            return None
        text = answer.read()
    return _Outcome(*json.loads(text)) if text else None


def write_answer(path: str) -> None:
    """In the other process: import, look up, write the answer, and end at once, without Python's own clean-up."""
    process = os.getpid()
    try:
        text = json.dumps(_look_up(**json.load(sys.stdin)))
        if os.getpid() == process:  # a module that forks would answer twice
            Path(path).write_text(text)
    finally:
        os._exit(0)


def _look_up(
    folder: str, modules: Sequence[str], names: Sequence[str], hook: str | None
) -> tuple[dict[str, str], dict[str, str], str]:
    """The fields of an _Outcome."""
    from ..worker.callables import Callables

    make_importable(Path(folder))
    callables = Callables(modules, Path(folder))
    broken_modules: dict[str, str] = {}
    refused: dict[str, str] = {}
    for module in modules:
        try:
            callables.check_module(module.removesuffix(".*"))
        except (ModuleBroken, BadTask) as error:
            broken_modules[module] = str(error)
    for name in names:
        try:
            callables.find(name)
        except ModuleBroken as error:
            if str(error) not in broken_modules.values():  # a module below a listed package
                broken_modules[name] = str(error)
        except Exception as error:
            refused[name] = str(error)
            if len(refused) == MAX_REFUSED:
                break
    return broken_modules, refused, _why_no_hook(hook)


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
