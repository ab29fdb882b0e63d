"""Checks that the listed modules can be imported, and that they hold the callables which the next rows name."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from ..messages.programs import BESIDE, CLIENT
from ..settings.load import Settings
from .finding import Finding, critical, ok, unknown, warning
from .looking_up import MAX_REFUSED, Answer, look_up_apart

MAX_IMPORT_SECONDS = 60
MAX_NAMES_SHOWN = 5


def findings(settings: Settings, names: Sequence[str] | None) -> Iterator[Finding]:
    """Findings for the listed modules, the callables that rows name (None: they could not be read), and each hook."""
    hooks = _hooks_of(settings)
    setup = settings.setup if isinstance(settings.setup, str) else None
    try:
        answer = look_up_apart(settings, names or (), settings.modules, MAX_IMPORT_SECONDS, list(hooks.values()), setup)
    except OSError as error:
        for check in ("modules", "callables"):
            yield unknown(check, f"this host lets no process be started for it: {error.strerror}", "they may be broken")
        return
    if answer is None:
        calling = f"calling {setup}, or " if setup else ""
        yield critical(
            "modules",
            f"{calling}importing {', '.join(settings.modules)} ended Python, or took more than {MAX_IMPORT_SECONDS} s",
            "a worker would die or hang of it, too",
            "leave in these modules nothing but imports and definitions",
        )
        return
    if setup is not None:
        yield _setup(setup, answer)
    if answer.setup:
        return
    yield _modules(settings, answer)
    yield _callables(names, answer)
    for check, hook in hooks.items():
        yield _hook(check, hook, answer)


def findings_on_page(settings: Settings, names: Sequence[str] | None) -> Iterator[Finding]:
    """The same for a web page, as whose account no setup is called: what that opens and writes is the worker's."""
    if settings.setup is None:
        yield from findings(settings, names)
    else:
        found = "not looked at here, as TASKSERVER_SETUP is called before they are imported"
        yield unknown("modules", found, "they may be broken", f"have {CLIENT} doctor look")


def _hooks_of(settings: Settings) -> dict[str, str]:
    """The hooks that are named in the settings, by their checks."""
    hooks = {"between": settings.between, "on_failure": settings.on_failure}
    return {check: hook for check, hook in hooks.items() if isinstance(hook, str)}


def _setup(setup: str, answer: Answer) -> Finding:
    if not answer.setup:
        return ok("setup", f"{setup} was called, and went well")
    return critical(
        "setup",
        f"TASKSERVER_SETUP: {setup} {answer.setup}",
        "workers give their tasks back, and end: none runs, and neither modules nor callables can be looked at",
        f"put it right; the module of the function lies {BESIDE}, or where Python finds it",
    )


def _modules(settings: Settings, answer: Answer) -> Finding:
    if not answer.broken:
        return _packages(settings) or ok("modules", f"{', '.join(settings.modules)} can be imported")
    return critical(
        "modules",
        "; ".join(answer.broken.values()),
        "tasks of such a module fail, and are tried again until their attempts are used up",
        "put it right and upload it again; workers try it anew by themselves",
    )


def _packages(settings: Settings) -> Finding | None:
    """A warning of packages that are listed as if that listed their modules; None without one."""
    bare = [module for module in settings.modules if _is_bare_package(settings.folder.joinpath(*module.split(".")))]
    if not bare:
        return None
    return warning(
        "modules",
        f"{', '.join(bare)} can be imported, but defines nothing that may run",
        "a package does not list the modules in it, so tasks that name these become fatal",
        f"list a module of it, as {bare[0]}.tasks, or all of them, as {bare[0]}.*",
    )


def _is_bare_package(folder: Path) -> bool:
    """Whether a folder is a package beside the program whose own file defines nothing; a module has no folder."""
    if not folder.is_dir():
        return False
    try:
        return not _DEFINES.search((folder / "__init__.py").read_bytes())
    except FileNotFoundError:
        return True
    except OSError:  # the import told more of it
        return False


_DEFINES = re.compile(rb"^[ \t]*(?:async[ \t]+)?(?:def|class)\b", re.MULTILINE)
_WITHOUT_HOOK = {
    "between": "nothing tidies up between two tasks, as stale connections",
    "on_failure": "nobody hears of failed tasks by it",
}


def _hook(check: str, hook: str, answer: Answer) -> Finding:
    if hook not in answer.hooks:
        return ok(check, f"{hook} can be imported")
    return warning(
        check,
        f"TASKSERVER_{check.upper()}: {hook} {answer.hooks[hook]}",
        _WITHOUT_HOOK[check],
        f"name a function as module:function; the module lies {BESIDE}, or where Python finds it",
    )


def _callables(names: Sequence[str] | None, answer: Answer) -> Finding:
    if names is None:
        return unknown("callables", "the rows cannot be read", "they may name what is not there")
    if answer.broken and not answer.refused:
        return unknown("callables", "they cannot be told while a module is broken", "rows may name what is not there")
    if not answer.refused:
        return ok("callables", f"{len(names)} named by the next rows and by schedules, all can be called")
    reasons = "; ".join(list(answer.refused.values())[:MAX_NAMES_SHOWN])
    or_more = " or more" if len(answer.refused) == MAX_REFUSED else ""
    more = (
        f"; and {len(answer.refused) - MAX_NAMES_SHOWN}{or_more} others"
        if len(answer.refused) > MAX_NAMES_SHOWN
        else ""
    )
    return warning(
        "callables",
        reasons + more,
        "the next worker makes these tasks fatal",
        "mend the name where the task is added, or the function's name, before a worker meets them",
    )
