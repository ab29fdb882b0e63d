"""Whether the listed modules can be imported, and have the callables that pending rows name.

They are imported in another process, so that a module may exit, hang or print.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import NamedTuple

from ..errors import BadTask, ModuleBroken
from ..messages.error_text import describe
from ..messages.finding import Finding, Look, critical, findings_of, ok, unknown, warning
from ..messages.programs import BESIDE, CLIENT
from ..settings.load import Settings, make_importable

MAX_IMPORT_SECONDS = 60
MAX_NAMES_SHOWN = 5
MAX_REFUSED = 100
"""After so many refused names no more are looked up: suggestions take time."""
NAME_A_FUNCTION = f"name a function as module:function; the module lies {BESIDE}, or where Python finds it"


def findings(settings: Settings, names: Sequence[str] | None, for_page: bool = False) -> Iterator[Finding]:
    """Findings for the listed modules, the names in rows (None: they could not be read), and each hook.

    `for_page`: a web server asks. Its account must not call the setup, whose files belong to the worker.
    """
    if for_page and settings.setup is not None:
        words = "not looked at here, as TASKSERVER_SETUP is called before they are imported"
        answer: Answer | Finding = unknown(words, "they may be broken", f"run {CLIENT} doctor")
    else:
        try:
            answer = _ask(settings, names or ())
        except OSError as error:
            answer = unknown(f"this host refuses to start a process for it: {error.strerror}", "they may be broken")
    if isinstance(answer, Finding):
        yield answer._replace(name="modules")
    else:
        # After a failed setup nothing else was looked up.
        yield from findings_of(CHECKS[:1] if answer.setup else CHECKS, settings, names, answer)


def _setup(settings: Settings, names: Sequence[str] | None, answer: Answer) -> Finding | None:
    if not isinstance(settings.setup, str):
        return None
    if not answer.setup:
        return ok(f"{settings.setup} was called, and went well")
    return critical(
        f"TASKSERVER_SETUP: {settings.setup} {answer.setup}",
        "workers give their tasks back, and end: none runs, and modules and callables cannot be looked at",
        NAME_A_FUNCTION,
    )


def _modules(settings: Settings, names: Sequence[str] | None, answer: Answer) -> Finding:
    if not answer.broken:
        return ok(f"{', '.join(settings.modules)} can be imported")
    return critical(
        "; ".join(answer.broken.values()),
        "tasks of such a module fail, and are retried until their attempts are used up",
        "correct it and upload it again; workers notice by themselves",
    )


def _callables(settings: Settings, names: Sequence[str] | None, answer: Answer) -> Finding:
    if names is None:
        return unknown("the rows cannot be read", "they may name what is not there")
    if answer.broken and not answer.refused:
        return unknown("a module is broken", "rows may name what is not there")
    if not answer.refused:
        return ok(f"{len(names)} named by the next rows and by schedules, all can be called")
    reasons, more = list(answer.refused.values()), len(answer.refused) - MAX_NAMES_SHOWN
    or_more = " or more" if len(reasons) == MAX_REFUSED else ""
    others = f"; and {more}{or_more} others" if more > 0 else ""
    return warning(
        "; ".join(reasons[:MAX_NAMES_SHOWN]) + others,
        "the next worker makes these tasks fatal",
        "correct the name where the task is added, or the function's name, before a worker meets them",
    )


def _hook(key: str, without: str, settings: Settings, names: Sequence[str] | None, answer: Answer) -> Finding | None:
    hook = getattr(settings, key)
    if not isinstance(hook, str):
        return None
    if why_not := answer.hooks[hook]:
        return warning(f"TASKSERVER_{key.upper()}: {hook} {why_not}", without, NAME_A_FUNCTION)
    return ok(f"{hook} can be imported")


CHECKS = (
    Look("setup", _setup),
    Look("modules", _modules, is_acceptable=False),
    Look("callables", _callables, is_acceptable=False),
    Look("between", partial(_hook, "between", "nothing tidies up between two tasks, as stale connections")),
    Look("on_failure", partial(_hook, "on_failure", "nobody is notified of failed tasks by it")),
)


# ---- in another process

LOOK_UP = """
import sys
sys.path[:] = sys.argv[2:]
from taskserver.health.modules import write_answer
write_answer(sys.argv[1])
"""
# First set our path: Python would search the current folder first, which may belong to another account.


class Answer(NamedTuple):
    """The answer of the other process."""

    broken: dict[str, str]
    """Why a module cannot be imported, by module."""
    refused: dict[str, str]
    """Why a callable may not run, by its name in the rows."""
    hooks: dict[str, str]
    """Why a function of the settings cannot be called, by its `module:function`; empty if it can."""
    setup: str
    """Why TASKSERVER_SETUP failed; then nothing else was looked up. Empty if it did not fail."""


def _ask(settings: Settings, names: Sequence[str]) -> Answer | Finding:
    """Let another process call the setup, import the modules, and look up the names and hooks.

    Returns a Finding if it does not answer in time. Raises OSError if no process can be started.
    """
    hooks = [hook for hook in (settings.between, settings.on_failure) if isinstance(hook, str)]
    setup = settings.setup if isinstance(settings.setup, str) else None
    question = json.dumps([str(settings.folder), settings.modules, names, hooks, setup]).encode()
    nowhere = subprocess.DEVNULL
    limit = MAX_IMPORT_SECONDS
    # The answer is a file: a process that an import started might keep a pipe open.
    with NamedTemporaryFile() as file:
        # -B: another account must not leave bytecode beside the modules.
        command = [sys.executable, "-B", "-c", LOOK_UP, file.name, *sys.path]
        try:
            subprocess.run(command, check=False, input=question, stdout=nowhere, stderr=nowhere, timeout=limit)
        except subprocess.TimeoutExpired:
            pass
        if text := file.read():
            return Answer(*json.loads(text))
    calling = f"calling {setup}, or " if setup else ""
    return critical(
        f"{calling}importing {', '.join(settings.modules)} ended Python, or took more than {MAX_IMPORT_SECONDS} s",
        "a worker would die of it, or hang, too",
        "leave nothing but imports and definitions in these modules",
    )


def write_answer(path: str) -> None:
    """In the other process: look up, write the answer, and exit at once without Python's clean-up."""
    process = os.getpid()
    try:
        text = json.dumps(_look_up(*json.load(sys.stdin)))
        if os.getpid() == process:  # a module that forks would answer twice
            Path(path).write_text(text)
    finally:
        os._exit(0)


def _look_up(folder: str, listed: list[str], names: list[str], hooks: list[str], setup: str | None) -> Answer:
    from ..worker.callables import Callables
    from ..worker.hooks import call_hook, find_hook

    make_importable(Path(folder))
    if setup and (why := _why_not(lambda: call_hook(find_hook(setup)))):
        return Answer({}, {}, {}, why)
    callables, broken, refused = Callables(listed, Path(folder)), dict[str, str](), dict[str, str]()
    for module in listed:
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
    return Answer(broken, refused, {hook: _why_not(partial(find_hook, hook)) for hook in hooks}, "")


def _why_not(call: Callable[[], object]) -> str:
    """Why this fails; empty if it does not."""
    from ..worker.call import Failure
    from ..worker.hooks import in_words_with_place

    try:
        call()
    except BaseException as error:  # e.g. of sys.exit()
        return in_words_with_place(Failure(error, describe(error)))
    return ""
