"""Whether the listed modules can be imported, and hold what the next rows name.

Importing runs their code: in a process of its own, so that one that ends, hangs or prints disturbs nothing.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ..errors import BadTask, ModuleBroken
from ..server import make_importable
from ..settings import Settings
from .findings import Finding, broken, ok, unknown, warning

LONGEST_IMPORT_SECONDS = 60
MOST_TOLD = 5
MOST_REFUSED = 100
"""Names; to look for what each may have meant takes time, and who may INSERT can make up any number of them."""
END = b"\0"
"""Of an answer: a process that an import left behind holds the pipe open."""


class _Outcome(NamedTuple):
    """What the other process found."""

    broken: dict[str, str]
    """Why a module cannot be imported, by module."""
    refused: dict[str, str]
    """Why a callable may not run, by the name in the rows."""


def findings(settings: Settings, names: Sequence[str] | None) -> Iterator[Finding]:
    """Of the listed modules, and of the callables that rows name; None where these could not be read."""
    outcome = _import_apart(settings, names or ())
    if outcome is None:
        yield broken(
            "modules",
            f"importing {', '.join(settings.modules)} ended Python, or took more than {LONGEST_IMPORT_SECONDS} s",
            "a worker would die or hang of it, too",
            "leave in these modules nothing but imports and definitions",
        )
        return
    yield _modules(settings, outcome)
    yield _callables(names, outcome)


def _modules(settings: Settings, outcome: _Outcome) -> Finding:
    if not outcome.broken:
        return ok("modules", f"{', '.join(settings.modules)} can be imported")
    return broken(
        "modules",
        "; ".join(outcome.broken.values()),
        "tasks of such a module fail, and are tried again until their attempts are used up",
        "put it right and upload it again; workers try it anew by themselves",
    )


def _callables(names: Sequence[str] | None, outcome: _Outcome) -> Finding:
    if names is None:
        return unknown("callables", "the rows cannot be read", "they may name what is not there")
    if outcome.broken and not outcome.refused:
        return unknown("callables", "they cannot be told while a module is broken", "rows may name what is not there")
    if not outcome.refused:
        return ok("callables", f"{len(names)} named by the rows that are next, all can be called")
    told = "; ".join(list(outcome.refused.values())[:MOST_TOLD])
    or_more = " or more" if len(outcome.refused) == MOST_REFUSED else ""
    more = f"; and {len(outcome.refused) - MOST_TOLD}{or_more} others" if len(outcome.refused) > MOST_TOLD else ""
    return warning(
        "callables",
        told + more,
        "the next worker makes these tasks fatal",
        "mend the name where the task is added, or the function's name, before a worker meets them",
    )


# ---- in another process


def _import_apart(settings: Settings, names: Sequence[str]) -> _Outcome | None:
    """None where that process ended without an answer."""
    sys.stdout.flush()
    sys.stderr.flush()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _answer(settings, names, writing)
    os.close(writing)
    try:
        text = _read_all(reading)
    finally:
        os.close(reading)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    return _Outcome(*json.loads(text)) if text else None


def _read_all(descriptor: int) -> bytes:
    """What the child says; nothing where it ends before its answer does, or takes too long."""
    until = time.monotonic() + LONGEST_IMPORT_SECONDS
    text = b""
    while (left := until - time.monotonic()) > 0 and select.select([descriptor], [], [], left)[0]:
        part = os.read(descriptor, 65536)
        text += part
        if text.endswith(END):
            return text.removesuffix(END)
        if not part:
            break
    return b""


def _answer(settings: Settings, names: Sequence[str], descriptor: int) -> None:
    """In the child: import, find, say what came of it, and end without Python's own end."""
    me = os.getpid()
    try:
        null = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(null, stream)
        text = json.dumps(_found(settings, names)).encode()
        if os.getpid() == me:  # a module that forks would answer twice
            with open(descriptor, "wb") as file:
                file.write(text + END)
    finally:
        os._exit(0)


def _found(settings: Settings, names: Sequence[str]) -> tuple[dict[str, str], dict[str, str]]:
    from ..callables import Callables

    make_importable(settings.folder)
    callables = Callables(settings.modules, settings.folder)
    broken_modules: dict[str, str] = {}
    refused: dict[str, str] = {}
    for module in settings.modules:
        try:
            callables.check_module(module.removesuffix(".*"))
        except (ModuleBroken, BadTask) as error:
            broken_modules[module] = str(error)
    for name in names:
        try:
            callables.find(name)
        except ModuleBroken as error:
            if str(error) not in broken_modules.values():  # below a listed package
                broken_modules[name] = str(error)
        except Exception as error:
            refused[name] = str(error)
            if len(refused) == MOST_REFUSED:
                break
    return broken_modules, refused
