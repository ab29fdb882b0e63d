"""Fixtures for pytest: load them by `pytest_plugins = ["taskserver.testing.fixtures"]` in a conftest.py.

Or by `-p taskserver.testing.fixtures`, before any conftest.py.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from . import TaskQueue
from . import task_queue as open_queue

# Without a database in the environment, tests without `task_queue` must not use the queue of a `.env`. Set at import:
# before pytest_configure a conftest.py may import a module that creates a TaskServer.
os.environ.setdefault("TASKSERVER_DSN", "sqlite:///:memory:")


@pytest.fixture
def task_queue_settings() -> dict[str, Any]:
    """The arguments of `taskserver.testing.task_queue`; override this fixture in a conftest.py."""
    return {}


@pytest.fixture
def task_queue(request: pytest.FixtureRequest, task_queue_settings: dict[str, Any]) -> Iterator[TaskQueue]:
    """An empty queue in memory that replaces the site's, with the settings of the `.env` in pytest's rootdir."""
    with open_queue(**{"folder": request.config.rootpath} | task_queue_settings) as queue:
        yield queue
