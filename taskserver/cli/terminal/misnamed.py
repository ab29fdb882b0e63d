"""A word to whoever names a task that the modules beside the program lack: a worker would make it fatal, later.

The task is added all the same: only a worker can tell for sure, and it may run on another host.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from pathlib import Path

from ...messages.programs import CLIENT
from ...messages.text import printable
from ...model.new_task import NewTask
from ...model.pipeline import read_stages
from ...settings.load import Settings

MAX_SECONDS = 3.0
"""A web page may wait for the command."""
MAX_NAMES = 100
MAX_SHOWN = 5
UNLISTED = "A module there defines it: if it may run, list that in TASKSERVER_MODULES before a worker meets the task"


def warn_of_missing(settings: Settings, names: Iterable[str], consequence: str) -> None:
    """Print a line for each name under which nothing may run here, with what follows from it, a sentence.

    Silent where that cannot be told: no listed module lies beside the program, as on a host that only adds; a module
    cannot be imported here, or takes long. Nothing is imported into this process; another one calls TASKSERVER_SETUP.
    """
    doubtful = [name for name in dict.fromkeys(names) if not _stands_in_source(settings, name)][:MAX_NAMES]
    if not doubtful or not any(_lies_beside(settings.folder, module) for module in settings.modules):
        return
    sys.stdout.flush()
    from ...health.modules import look_up_apart  # most names stand in the source

    setup = settings.setup if isinstance(settings.setup, str) else None
    try:
        answer = look_up_apart(settings, doubtful, (), MAX_SECONDS, setup=setup)
    except OSError:  # this host lets no process be started for it
        return
    refused = list(answer.refused.items()) if answer else []
    for name, reason in refused[:MAX_SHOWN]:
        end = "" if reason.endswith("?") else "."
        what = UNLISTED if _stands_in_source(settings, name, is_listed=False) else consequence
        print(printable(f"{CLIENT}: warning: {reason}{end} {what}"), file=sys.stderr)
    if len(refused) > MAX_SHOWN:
        print(f"{CLIENT}: warning: and {len(refused) - MAX_SHOWN} more names like these", file=sys.stderr)


def callables_of(task: NewTask) -> list[tuple[str, int]]:
    """The callables that a task is to run, each with its group: of a pipeline those of its stages."""
    stages = read_stages(task.stages)
    return [(stage.task, stage.group_id or 0) for stage in stages] or [(task.task, task.group_id)]


def _stands_in_source(settings: Settings, name: str, is_listed: bool = True) -> bool:
    """Whether a listed (or unlisted) module beside the program defines a function of this name, as its text seems.

    This costs no process. It may be mistaken for a name that is defined inside of something else.
    """
    parts = re.split("[.:]", name)
    define = re.compile(rf"^[ \t]*(?:async[ \t]+)?def {re.escape(parts[-1])}\(".encode(), re.MULTILINE)
    modules = filter(None, (".".join(parts[:-1]), ".".join(parts[:-2])))
    asked = (module for module in modules if _is_listed(settings, module) == is_listed)
    return not any(part.startswith("_") for part in parts) and any(
        define.search(_source(settings.folder, module)) for module in asked
    )


def _is_listed(settings: Settings, module: str) -> bool:
    # shop.jobs.* lists shop.jobs, and all below it.
    packages = (one[:-1] for one in settings.modules if one.endswith(".*"))
    return module in settings.modules or any(f"{module}.".startswith(package) for package in packages)


def _source(folder: Path, module: str) -> bytes:
    path = folder.joinpath(*module.split("."))
    for file in (path.with_name(f"{path.name}.py"), path / "__init__.py"):
        try:
            return file.read_bytes()
        except OSError:
            continue
    return b""


def _lies_beside(folder: Path, module: str) -> bool:
    first = folder / module.partition(".")[0]
    return first.is_dir() or first.with_name(f"{first.name}.py").is_file()
