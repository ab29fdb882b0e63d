"""Fixtures of features whose tasks run in the test's own process, as test modules give them by CODE.

make_site   makes a Site (or what the test's file calls SITE) for a DSN and settings
site        one in mode delete, for SQLite and for MySQL/MariaDB; mysql_site, sqlite_site of one of them alone
any_site    the same in each mode
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from taskserver import TaskServer
from tests.support.rows import MODES
from tests.support.servers import MySQLServer
from tests.support.sites import Site, empty_tables


@pytest.fixture(scope="module")
def kept_mysql_dsn(mysql_server: MySQLServer) -> Iterator[str]:
    with mysql_server.database() as name:
        with TaskServer(mysql_server.dsn(name)) as server:
            server.create_tables()
        yield mysql_server.dsn(name)


@pytest.fixture
def emptied_mysql_dsn(kept_mysql_dsn: str) -> str:
    empty_tables(kept_mysql_dsn)
    return kept_mysql_dsn


@pytest.fixture(params=["sqlite", "mysql"])
def site_dsn(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue("emptied_mysql_dsn" if request.param == "mysql" else "sqlite_dsn"))


@pytest.fixture
def make_site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    sites: list[Site] = []

    def make(dsn: str, **settings: Any) -> Site:
        sites.append(getattr(request.module, "SITE", Site)(dsn, tmp_path, request.module.CODE, settings))
        return sites[-1]

    yield make
    for site in sites:
        site.close()


@pytest.fixture
def site(make_site: Callable[..., Any], site_dsn: str) -> Any:
    return make_site(site_dsn)


@pytest.fixture(params=MODES)
def any_site(make_site: Callable[..., Any], site_dsn: str, request: pytest.FixtureRequest) -> Any:
    return make_site(site_dsn, mode=request.param)


@pytest.fixture
def mysql_site(make_site: Callable[..., Any], emptied_mysql_dsn: str) -> Any:
    return make_site(emptied_mysql_dsn)


@pytest.fixture
def sqlite_site(make_site: Callable[..., Any], sqlite_dsn: str) -> Any:
    return make_site(sqlite_dsn)
