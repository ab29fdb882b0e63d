"""On which databases a test runs: the run's own (`pytest --on`, by default SQLite), or those that its mark names."""

from __future__ import annotations

import pytest

DATABASES = ("sqlite", "mysql", "postgresql")


def on(*databases: str) -> pytest.MarkDecorator:
    """The test runs on each of these; it asks for `dsn`, `queue`, `site` or for what is made of one of them."""
    return pytest.mark.parametrize("database", databases, indirect=True)


EACH_DATABASE = on(*DATABASES)
EACH_SERVER = on("mysql", "postgresql")
ON_MYSQL = on("mysql")
