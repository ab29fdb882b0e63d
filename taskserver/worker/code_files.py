"""Remembers the files from which code was imported: whether somebody has put newer ones in their place."""

from __future__ import annotations

import os


class CodeFiles:
    """The files of the modules that a process has imported."""

    def __init__(self) -> None:
        self._states: dict[str, object] = {}
        """By path: what it was when its module was imported."""

    def note(self, path: object) -> None:
        """A module was imported from this file; one that is no text, as a module may say anything, is left out."""
        if type(path) is str:
            self._states.setdefault(path, _state_of(path))

    def have_changed(self) -> bool:
        """Whether any of them is another file now, or is gone."""
        return any(_state_of(path) != state for path, state in self._states.items())


def _state_of(path: str) -> object:
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
