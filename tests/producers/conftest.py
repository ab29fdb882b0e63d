"""Fixtures of those who add tasks.

shop        a queue beside a table of orders, for each store
sqlite_shop, mysql_shop, postgresql_shop    of one of them alone
django_python   path of a Python that has Django and mysqlclient
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.conftest import without
from tests.support.deployment import Deployment
from tests.support.servers import MySQLServer
from tests.support.shops import Shop
from tests.support.websites import web_user


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
def site(mysql_shop: Shop, tmp_path: Path) -> Path:
    """The folder of a website whose orders lie beside the queue."""
    folder = tmp_path / "site"
    folder.mkdir()
    return folder


@pytest.fixture
def user(mysql_server: MySQLServer, mysql_shop: Shop) -> Iterator[str]:
    """May INSERT orders and tasks, and nothing else."""
    with web_user(mysql_server, mysql_shop.database, "jobs_queue", "orders") as name:
        yield name


@pytest.fixture
def refuse_tasks(mysql_server: MySQLServer, mysql_shop: Shop, user: str) -> Callable[[], None]:
    """From its call on the website may add orders, but no tasks."""

    def refuse() -> None:
        mysql_server.execute(f"REVOKE INSERT ON `{mysql_shop.database}`.jobs_queue FROM '{user}'@'%'")

    return refuse


@pytest.fixture
def four_columns(mysql_server: MySQLServer, mysql_shop: Shop, user: str, refuse_tasks: Callable[[], None]) -> None:
    """The website has the least rights of docs/security.md: tasks that are to run at once take no others."""
    refuse_tasks()
    columns = "(task, args, group_id, priority)"
    mysql_server.execute(f"GRANT INSERT {columns} ON `{mysql_shop.database}`.jobs_queue TO '{user}'@'%'")
