from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest

from taskserver import TaskServer


@pytest.fixture
def make_tasks(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """Makes the module `tasks` from code, without a file."""

    def make(code: str) -> ModuleType:
        module = ModuleType("tasks")
        monkeypatch.setitem(sys.modules, "tasks", module)
        exec(code, vars(module))
        return module

    return make


@pytest.fixture
def server() -> Iterator[TaskServer]:
    with TaskServer("sqlite:///:memory:") as server:
        server.create_tables()
        yield server
