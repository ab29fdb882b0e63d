"""Checks that the listed modules can be imported, and that they hold the callables which the next rows name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..messages.programs import BESIDE
from ..settings.load import Settings
from .findings import Finding, broken, ok, unknown, warning
from .looking_up import MAX_REFUSED, Answer, look_up_apart

MAX_IMPORT_SECONDS = 60
MAX_NAMES_SHOWN = 5


def findings(settings: Settings, names: Sequence[str] | None) -> Iterator[Finding]:
    """One finding for the listed modules, and one for the callables that rows name; None: rows could not be read."""
    hook = settings.on_failure if isinstance(settings.on_failure, str) else None
    try:
        answer = look_up_apart(settings, names or (), settings.modules, MAX_IMPORT_SECONDS, hook)
    except OSError as error:
        for check in ("modules", "callables"):
            yield unknown(check, f"this host lets no process be started for it: {error.strerror}", "they may be broken")
        return
    if answer is None:
        yield broken(
            "modules",
            f"importing {', '.join(settings.modules)} ended Python, or took more than {MAX_IMPORT_SECONDS} s",
            "a worker would die or hang of it, too",
            "leave in these modules nothing but imports and definitions",
        )
        return
    yield _modules(settings, answer)
    yield _callables(names, answer)
    if settings.on_failure is not None:
        yield _hook(settings, answer)


def _modules(settings: Settings, answer: Answer) -> Finding:
    if not answer.broken:
        return ok("modules", f"{', '.join(settings.modules)} can be imported")
    return broken(
        "modules",
        "; ".join(answer.broken.values()),
        "tasks of such a module fail, and are tried again until their attempts are used up",
        "put it right and upload it again; workers try it anew by themselves",
    )


def _hook(settings: Settings, answer: Answer) -> Finding:
    if not answer.hook:
        return ok("on_failure", f"{settings.on_failure} can be imported")
    return warning(
        "on_failure",
        f"TASKSERVER_ON_FAILURE: {settings.on_failure} cannot be had: {answer.hook}",
        "nobody hears of failed tasks by it",
        f"name a function as module:function; the module lies {BESIDE}, or where Python finds it",
    )


def _callables(names: Sequence[str] | None, answer: Answer) -> Finding:
    if names is None:
        return unknown("callables", "the rows cannot be read", "they may name what is not there")
    if answer.broken and not answer.refused:
        return unknown("callables", "they cannot be told while a module is broken", "rows may name what is not there")
    if not answer.refused:
        return ok("callables", f"{len(names)} named by the rows that are next, all can be called")
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
