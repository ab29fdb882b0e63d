"""The files from which a process has its code and its settings: whether somebody has put newer ones in their place."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import ModuleType

from ..messages.classes import namespace_of_module

LOOK_SECONDS = 0.1
"""A second look within this time sees what the first one saw: many bad rows may follow each other."""
MAY_BE_OLDER_SECONDS = 60.0
"""An upload takes its time: a row that was added by so much before its end may need the new code, too."""


class CodeFiles:
    """The `.env`, and the files of imported modules that lie in the deployment's folder or belong to listed ones."""

    def __init__(self, folder: Path, modules: Sequence[str], since: float) -> None:
        """`since`, by time.time, is when the process began: what is older, the process has."""
        self._folder = os.path.join(folder, "")
        self._packages = {name.partition(".")[0] for name in modules}
        self._since = since
        self._changed_at = 0.0
        self._looks_at = 0.0

    def are_newer_for(self, waited_seconds: float) -> bool:
        """Whether a task that has been ready for so long may need a newer file than this process has read.

        A task that was there long before the change is no such task: so a file that changes all the time cannot have
        one left for ever.
        """
        now = time.time()
        if not 0 <= now - self._looks_at < LOOK_SECONDS:
            self._changed_at, self._looks_at = max(map(_changed_at, self._paths()), default=0.0), now
        is_changed = self._since < self._changed_at
        return is_changed and now - waited_seconds > self._changed_at - MAY_BE_OLDER_SECONDS

    def _paths(self) -> Iterator[str]:
        yield f"{self._folder}.env"
        for name, module in list(sys.modules.items()):
            path = namespace_of_module(module).get("__file__") if issubclass(type(module), ModuleType) else None
            if type(path) is str and (path.startswith(self._folder) or name.partition(".")[0] in self._packages):
                yield path


def _changed_at(path: str) -> float:
    """When a file was written or put there, which an upload that keeps the time of the last change does not hide."""
    with suppress(OSError, ValueError):
        return os.stat(path).st_ctime
    return 0.0
