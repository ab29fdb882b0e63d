"""Fixtures for pytest, which takes them by `pytest_plugins = ["taskserver.testing.fixtures"]` in a conftest.py.

By `-p taskserver.testing.fixtures` it takes them before any conftest.py.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from . import TaskQueue
from . import task_queue as open_queue

# Without a database in the environment, keep tests that do not ask for `task_queue` from the queue of a `.env`. By the
# import: by pytest_configure each conftest.py is imported, and may have imported a module that makes a TaskServer.
os.environ.setdefault("TASKSERVER_DSN", "sqlite:///:memory:")


@pytest.fixture
def task_queue_settings() -> dict[str, Any]:
    """The arguments of `taskserver.testing.task_queue`; a conftest.py puts a fixture of this name in its place."""
    return {}


@pytest.fixture
def task_queue(request: pytest.FixtureRequest, task_queue_settings: dict[str, Any]) -> Iterator[TaskQueue]:
    """An empty queue in memory, in the place of the site's, with the settings of the `.env` in pytest's rootdir."""
    with open_queue(**{"folder": request.config.rootpath} | task_queue_settings) as queue:
        yield queue
