"""Fixtures of those who add tasks.

shop        a queue beside a table of orders, for each store
sqlite_shop, mysql_shop, postgresql_shop    of one of them alone
django_python   path of a Python that has Django and mysqlclient
site        the folder of a website
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.deployment import Deployment
from tests.support.servers import without
from tests.support.shops import Shop


@pytest.fixture
def shop(deployment: Deployment, dsn: str) -> Iterator[Shop]:
    with closing(Shop(deployment, dsn)) as made:
        yield made


@pytest.fixture
def mysql_shop(deployment: Deployment, mysql_dsn: str) -> Iterator[Shop]:
    with closing(Shop(deployment, mysql_dsn)) as made:
        yield made


@pytest.fixture
def postgresql_shop(deployment: Deployment, postgresql_dsn: str) -> Iterator[Shop]:
    with closing(Shop(deployment, postgresql_dsn)) as made:
        yield made


@pytest.fixture
def sqlite_shop(deployment: Deployment, sqlite_dsn: str) -> Iterator[Shop]:
    with closing(Shop(deployment, sqlite_dsn)) as made:
        yield made


@pytest.fixture(scope="session")
def django_python() -> str:
    python = "/usr/bin/python3"
    check = [python, "-c", "import django, MySQLdb"]
    if not Path(python).exists() or subprocess.run(check, capture_output=True).returncode != 0:
        without(f"{python} has no Django with mysqlclient")
    return python


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """The folder of a website."""
    folder = tmp_path / "site"
    folder.mkdir()
    return folder
