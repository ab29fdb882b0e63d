"""A folder of modules that can be imported, whose code notes what of it is run."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from unittest.mock import patch

import pytest

from taskserver.errors import BadTask
from taskserver.worker.callables import Callables, TaskCallable

SENTINEL = """
from note import note
note(f"{__name__} was imported")
def run(): note("sentinel ran")
class Thing:
    @staticmethod
    def run(): note("sentinel ran")
"""
"""Code of modules that nothing may import."""


class Modules:
    """The folder, and what its code noted."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.noted: list[str] = []

    def write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        importlib.invalidate_caches()

    def find(self, name: str, listed: str = "tasks") -> TaskCallable:
        return Callables(tuple(listed.split(","))).find(name)

    def run(self, name: str, *args: object, listed: str = "tasks") -> object:
        return self.find(name, listed).call(*args)

    def refuse(self, name: str, listed: str = "tasks") -> str:
        """The words that refuse a name; asserts that no sentinel was imported."""
        before = set(sys.modules)
        with pytest.raises(BadTask) as caught:
            self.find(name, listed)
        assert [module for module in set(sys.modules) - before if module.startswith("sentinel")] == []
        return str(caught.value)


@contextmanager
def importable(folder: Path) -> Iterator[Modules]:
    """A folder with the sentinels; in the `with` its modules can be imported, and after it none is left."""
    modules, note = Modules(folder), ModuleType("note")
    vars(note)["note"] = modules.noted.append
    for name in ("sentinel.py", "sentinel_package/__init__.py", "sentinel_package/below.py"):
        modules.write(name, SENTINEL)
    with patch.dict(sys.modules, note=note), patch.object(sys, "path", [str(folder), *sys.path]):
        yield modules
